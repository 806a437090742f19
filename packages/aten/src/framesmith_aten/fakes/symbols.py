"""Symbols for sizes and numbers that change: torch's ShapeEnv made lightly, and fakes and numbers made of its symbols.

Note [Light symbols]: torch's own way imports torch._dynamo and torch._inductor (2 s, once per process) for a switch
of a debugging tool, for classes that name a size's place, and for a list of files to leave out of stack traces. The
ShapeEnv made here does without: its methods are rebuilt as light_torch.py says; where a condition comes from is told by
`current_location`, the user's line, which is what a guard is to name; and torch's structured log is not told.

Note [What a ShapeEnv remembers]: torch keeps what some methods gave in caches of the class, with the ShapeEnv in the
key: each that ever was asked stays alive until the cache is full or cleared, and two of them in turn clear each other's
results. Here each remembers for itself: for good what is always the same, and until it learns more what is not.

Note [What is presumed]: where torch's rules ask whether a condition holds of numbers that only a call knows, they are
told what they say is the general case (`guard_or_false`). To most that is a choice between ways to the same result; to
those that give a view or a copy it is one between results. The ShapeEnv keeps what it was asked, and what it said, in
`presumed`: who runs the rules may want it to be so at a call. Where they do not say, torch raises, and the error's
`asked` is the condition as it was asked, of all its symbols (torch's own `cond` has numbers of the present in it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import sympy
import torch

from framesmith_aten.fakes.light_fakes import is_described_by_layout
from framesmith_aten.fakes.light_nodes import LightNode
from framesmith_aten.fakes.light_torch import NamedSource, discard_report, rebuilt, rebuilt_globals, report_slow
from framesmith_guards.errors import GuardError
from framesmith_guards.kinds.shapes import EXACT, call_expr, type_given
from framesmith_guards.stacks import Location, current_location
from framesmith_guards.symbolic_guards import to_torch
from framesmith_guards.torch_adapter import (
    DimDynamic,
    FakeTensor,
    FakeTensorMode,
    ShapeEnv,
    StatelessSymbolicContext,
    ValueRanges,
    no_dispatch,
    symbolic_shapes,
    unstable,
)

if TYPE_CHECKING:
    from framesmith_guards.sources import Source

#: The code of what torch puts around methods to record and replay them, which is never asked for here.
_RECORDING: Final = getattr(vars(ShapeEnv).get("freeze"), "__code__", None)


@dataclass(frozen=True)
class _Place(symbolic_shapes.SLoc):  # type: ignore[name-defined, misc]
    """Where a condition on symbols comes from: a place in torch, or the user's line."""

    location: Location | None = None

    def __str__(self) -> str:
        return str(self.location)


def _methods() -> Iterator[tuple[str, FunctionType]]:
    """ShapeEnv's plain methods, without the recording around them."""
    for name, member in vars(ShapeEnv).items():
        method = _unrecorded(member)
        if isinstance(method, FunctionType) and not vars(method):  # others are caches, or context managers
            yield name, method


def _remembering_methods() -> Iterator[tuple[str, FunctionType, bool]]:
    """ShapeEnv's methods whose results are remembered, plain; whether what it learns clears them."""
    for name, member in vars(ShapeEnv).items():
        if hasattr(member, "cache_clear"):
            learns = isinstance(member, FunctionType)
            method = member.__wrapped__
            yield name, _unrecorded(method.__wrapped__ if hasattr(method, "cache_clear") else method), learns


def _unrecorded(member: Any) -> Any:
    code = getattr(member, "__code__", None)
    return member.__wrapped__ if code is not None and code is _RECORDING else member


def _remembering(name: str, method: FunctionType, learns: bool) -> Any:
    """`method` with what it gave remembered by each ShapeEnv: see Note [What a ShapeEnv remembers]."""

    def remembering(self: Any, *args: Any, **kwargs: Any) -> Any:
        version = self._version_counter if learns else None
        known = self.remembered.get(name)
        if known is None or known[0] != version:
            known = self.remembered[name] = (version, {})
        results = known[1]
        key = (args, *kwargs.items()) if kwargs else args
        if key not in results:
            results[key] = method(self, *args, **kwargs)
        return results[key]

    remembering.cache_clear = discard_report  # type: ignore[attr-defined]  # asked of the class: see `_update_var_to_range`
    return remembering


@cache
def _light_env_class() -> type[ShapeEnv]:
    names = rebuilt_globals(
        vars(symbolic_shapes), trace_structured=discard_report, dtrace_structured=discard_report, SymNode=LightNode
    )
    members: dict[str, Any] = {name: rebuilt(method, names) for name, method in _methods()}
    for name, method, learns in _remembering_methods():
        members[name] = _remembering(name, rebuilt(method, names), learns)

    def _get_stack_summary(self: ShapeEnv, is_debug: bool = False, framework_loc: str | None = None) -> Any:
        place = current_location()
        text = None if place is None else str(place)
        return _Place(framework_loc, text, place), ""

    def _log_guard(self: ShapeEnv, prefix: str, g: Any, forcing_spec: bool) -> None:
        """What a guard is and where it is from is told by whoever compiles the guards."""

    def __init__(self: ShapeEnv, **options: Any) -> None:
        self.remembered = {}  # type: ignore[attr-defined]
        initialise(self, **options)

    def _update_var_to_range(self: ShapeEnv, *args: Any, **options: Any) -> None:
        update(self, *args, **options)
        self.remembered.pop("_maybe_evaluate_static", None)  # type: ignore[attr-defined]  # a new range is no new version

    update = members["_update_var_to_range"]
    members["_update_var_to_range"] = _update_var_to_range
    initialise = members["__init__"]
    members["__init__"] = __init__
    members["_get_stack_summary"] = _get_stack_summary
    members["_log_guard"] = _log_guard
    return type("ShapeEnv", (ShapeEnv,), members | _replaced(members))


def _replaced(methods: Mapping[str, Any]) -> dict[str, Any]:
    """What is different in every ShapeEnv made here, of torch's `methods`, made lightly or not."""
    create = "_create_symbolic_sizes_strides_storage_offset"
    return {"evaluate_sym_node": _presuming(methods["evaluate_sym_node"]), create: _placed(methods[create])}


def _placed(create: Callable[..., Any]) -> Callable[..., Any]:
    """Symbols for sizes and strides, and where the tensor begins as a number.

    A symbol for that would be the one of a size that is the same at present, and a graph that takes this size from
    where a tensor begins has another one: what is made of a tensor there begins at 0.
    """

    def create_symbolic(self: Any, sizes: Any, strides: Any, offset: int, *rest: Any, **options: Any) -> Any:
        return *create(self, sizes, strides, 0, *rest, **options)[:2], offset

    return create_symbolic


def _presuming(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """ShapeEnv's answer to a question, noted where it is made up or there is none: see Note [What is presumed]."""

    def evaluate_sym_node(
        self: Any, sym_node: Any, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Any:
        try:
            answer = evaluate(self, sym_node, size_oblivious, fallback_value)
        except symbolic_shapes.GuardOnDataDependentSymNode as error:
            error.asked = sym_node.expr  # type: ignore[attr-defined]
            raise
        made_up = fallback_value is not None and bool(answer) is fallback_value and not sym_node.has_hint()
        if made_up and self._maybe_evaluate_static(sym_node.expr) is None:
            condition = torch.SymBool(sym_node)  # type: ignore[no-untyped-call]
            self.presumed.append((condition, fallback_value))
        return answer

    return evaluate_sym_node


def new_shape_env(*, specialize_zero_one: bool = True) -> ShapeEnv:
    """A ShapeEnv, made without importing torch._dynamo if nothing has imported it yet. Equal sizes share a symbol."""
    if not unstable.has("ShapeEnv"):
        return ShapeEnv()  # raises MissingNeed, which names it
    options: dict[str, Any] = {"specialize_zero_one": specialize_zero_one, "duck_shape": True}
    try:
        env = _light_env_class()(**options)
    except (AttributeError, ImportError, TypeError, KeyError) as error:
        report_slow(f"ShapeEnv is otherwise than it is known here ({type(error).__name__}: {error})")
        env = _noting_env_class()(**options)
    _prepare(env)
    return env


def _prepare(env: Any) -> None:
    """What fakes and numbers keep with the ShapeEnv of their symbols."""
    env.computed, env.results, env.presumed = {}, {}, []
    if not hasattr(env, "_replacements_version_counter"):
        env.replacements = _CountedReplacements(env)


@cache
def _noting_env_class() -> type[ShapeEnv]:
    return type("ShapeEnv", (ShapeEnv,), _replaced(vars(ShapeEnv)))


class _CountedReplacements(dict[Any, Any]):
    """A ShapeEnv's replacements that count what is set in them, as those of torch 2.13 are counted and of 2.11 not."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.replacements)
        self._env = env
        env._replacements_version_counter = 0

    def __setitem__(self, symbol: Any, becomes: Any) -> None:
        super().__setitem__(symbol, becomes)
        self._env._replacements_version_counter += 1


def attach_shape_env(mode: FakeTensorMode) -> ShapeEnv:
    """The ShapeEnv of a fake mode; a mode for static sizes gets one, and goes on making static fakes by itself."""
    if mode.shape_env is None:
        mode.shape_env = new_shape_env()
        mode.static_shapes = True
        mode.cache_enabled = False  # what it remembers of symbols it makes anew, and works out all that follows
    return mode.shape_env


def symbolic_fake(
    mode: FakeTensorMode,
    tensor: torch.Tensor,
    source: Source,
    dims: Collection[int],
    *,
    ranges: Mapping[int, tuple[int, int | None]] | None = None,
    unbacked: Collection[int] = (),
) -> torch.Tensor:
    """A fake of `tensor`, found at `source`, whose sizes of `dims` are symbols; strides follow the sizes.

    Sizes 0 and 1 stay numbers, and equal ones share a symbol, but for dimensions with a range (least, most). Those
    `unbacked` are symbols without a value. GuardError for a range that the size is not in.
    """
    env = attach_shape_env(mode)
    _check_ranges(tensor, ranges or {})
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[_kind(dim, dims, unbacked, ranges or {}) for dim in range(tensor.dim())],
        view_base_context=_static_context(tensor._base),
    )
    # A view that autograd knows of is made in the memory of its base's fake, which has to begin where the base does.
    if is_described_by_layout(tensor) and not (tensor.requires_grad and tensor.storage_offset()):
        fake = _plain_symbolic(mode, env, tensor, source, context)
    else:
        fake = mode.from_tensor(tensor, source=to_torch(source), symbolic_context=context, static_shapes=False)
    for dim, (least, most) in (ranges or {}).items():
        _limit(env, fake.size(dim), least, most)
    return fake


def _kind(dim: int, dims: Collection[int], unbacked: Collection[int], ranges: Mapping[int, Any]) -> DimDynamic:
    if dim in unbacked:
        return DimDynamic.UNBACKED
    if dim not in dims:
        return DimDynamic.STATIC
    return DimDynamic.DYNAMIC if dim in ranges else DimDynamic.DUCK


def _static_context(base: torch.Tensor | None) -> Any:
    """A view's base is as large as it is: nothing but the view is met in a trace."""
    return None if base is None else StatelessSymbolicContext(dynamic_sizes=[DimDynamic.STATIC] * base.dim())


def _check_ranges(tensor: torch.Tensor, ranges: Mapping[int, tuple[int, int | None]]) -> None:
    for dim, (least, most) in ranges.items():
        size = tensor.size(dim)
        if size < least or (most is not None and size > most):
            raise GuardError(f"dimension {dim} has size {size}, not one from {least} to {most}")


def _limit(env: ShapeEnv, size: Any, least: int, most: int | None) -> None:
    if isinstance(size, torch.SymInt):
        known = env.var_to_range[size.node.expr]
        upper = known.upper if most is None else most
        env._update_var_to_range(size.node.expr, ValueRanges(max(least, known.lower), upper))


def _plain_symbolic(
    mode: FakeTensorMode, env: ShapeEnv, tensor: torch.Tensor, source: Source, context: Any
) -> torch.Tensor:
    """As `light_fakes.plain_fake`, with symbols; where in its storage a tensor begins is not asked of it."""
    sizes, strides, _ = env._create_symbolic_sizes_strides_storage_offset(
        tuple(tensor.size()),
        tuple(tensor.stride()),
        0,
        [False] * tensor.dim(),
        to_torch(source),
        symbolic_context=context,
    )
    with unstable.DisableTorchFunction(), no_dispatch(), env.suppress_guards():
        meta = torch.empty_strided(
            sizes, strides, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad
        )
        fake: FakeTensor = FakeTensor(mode, meta, tensor.device)
    if type(tensor) is torch.nn.Parameter:
        fake._is_param = True
    mode.fake_tensor_converter.set_tensor_memo(tensor, fake)
    return fake


def specialised_at(env: ShapeEnv, number: Any) -> Location | None:
    """The user's line by which a symbolic number has come to be known."""
    place = env.replacements_slocs.get(number.node._expr)
    return getattr(place, "location", None)


def symbolic_number(mode: FakeTensorMode, number: int | float, source: Source, *, below: int | None = None) -> Any:
    """A SymInt or SymFloat for a number found at `source`: an int whose magnitude is `below` a bound, or any float.

    A guard says that an int is: graphs compute in 64 bits, and compare with floats, where Python is exact.
    """
    env = attach_shape_env(mode)
    place = to_torch(source)
    symbol = env.create_unspecified_symbol(number, place, DimDynamic.DYNAMIC)
    make = env.create_symintnode if type(number) is int else env.create_symfloatnode
    made = make(symbol, hint=number, source=place)
    if below is not None:
        _limit(env, made, 1 - below, below - 1)
    return made


def computed_number(mode: FakeTensorMode, function: str, operands: Sequence[Any]) -> Any:
    """The number that a function of `kinds.shapes.EXACT` gives for numbers, as a symbol of its own.

    Nothing is known of the symbol but its value now: floats are not to be computed with in another order than the
    program's. Guards about it compute it again. None where the function raises for the values now, or gives what no
    symbol stands for. Of operands without a value the result has none either.
    """
    env = attach_shape_env(mode)
    hints = [hint_of(operand) for operand in operands]
    if None in hints:
        kind = type_given(function, [type_of(operand) for operand in operands])
        return None if kind is None else env.create_unbacked_symint() if kind is int else env.create_unbacked_symfloat()
    try:
        result = EXACT[function](*hints)
    except (ArithmeticError, ValueError, TypeError):
        return None
    if not _has_symbol(result):
        return None
    symbol = env.create_unspecified_symbol(result, NamedSource(f"{function}()"), DimDynamic.DYNAMIC)
    env.computed[symbol] = call_expr(function, [expr_of(operand) for operand in operands])  # type: ignore[attr-defined]
    make = env.create_symintnode if type(result) is int else env.create_symfloatnode
    return make(symbol, hint=result)


def _has_symbol(result: Any) -> bool:
    """Whether a symbol may stand for a number: an int of 64 bits, or a finite float that is not one of the zeros."""
    if type(result) is int:
        return -(2**63) <= result < 2**63
    return type(result) is float and math.isfinite(result) and result != 0.0


def hint_of(number: Any) -> Any:
    """The value now of a number, symbolic or not; None of a symbol without one."""
    if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number
    return number.node.hint if number.node.has_hint() else None


def has_unbacked_length(tensor: torch.Tensor) -> bool:
    """Whether a length of the tensor has no value now."""
    return None in map(hint_of, tensor.shape)


def type_of(number: Any) -> type:
    """What Python's type of a number is, symbolic or not."""
    if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        given: type = number.node.pytype
        return given
    return type(number)


def expr_of(number: Any) -> sympy.Basic:
    """A number as a sympy expression."""
    if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number.node.expr
    return sympy.Float(number) if type(number) is float else sympy.Integer(int(number))


def symbol_name(number: Any) -> str | None:
    """What a number's symbol is called; None for a number that is known, or given by others."""
    expr = expr_of(number)
    return str(expr) if expr.is_Symbol else None


def bounds_of(number: torch.SymInt | torch.SymFloat) -> tuple[int | float | None, int | float | None]:
    """The least and the most that a symbol may be; None where there is no such bound."""
    known = number.node.shape_env.var_to_range.get(number.node.expr)
    if known is None:
        return None, None
    least, most = (int(bound) if bound.is_Integer else None for bound in (known.lower, known.upper))
    return least, most
