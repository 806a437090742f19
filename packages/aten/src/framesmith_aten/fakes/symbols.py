"""Symbols, backed and unbacked, for dynamic shapes: torch's ShapeEnv without its imports; fakes and numbers of them.

Note [Light symbols]: torch's own way imports torch._dynamo and torch._inductor (2 s, once per process) for a switch of
a debugging tool, for classes that name a size's source, and for a list of files to leave out of stack traces. The
ShapeEnv made here does without: its methods are rebuilt as light_torch.py says; the origin of a condition is
`current_location`, the user's line, which guards name; torch's structured log gets nothing.

Note [What a ShapeEnv remembers]: torch stores results of some methods in caches of the class, with the ShapeEnv in the
key: each stays alive until the cache is full or cleared, and two of them in turn clear each other's results. Here each
ShapeEnv has its own: permanent for constant results, cleared whenever it learns more for the others.

Note [What is presumed]: where torch's rules ask for a condition on unbacked symbols, they get the answer that they call
the general case (`guard_or_false`). For most this selects one of several ways to the same result; for those that return
a view or a copy it selects a result. The ShapeEnv's notes have such conditions and answers (`EnvNotes.presumed`), so
that the caller of the rules can check them at run time. Where a rule names no general case torch raises; the condition
in all its symbols is that of `condition_asked_by` (torch's own `cond` has present values in it).
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
from framesmith_aten.symbolic import LARGEST_SYMBOL, hint_or_none, number_type
from framesmith_guards.errors import GuardError
from framesmith_guards.kinds.shapes import EXACT, call_expr, type_given
from framesmith_guards.stacks import Location, current_location
from framesmith_guards.symbolic_guards import EnvNotes, to_torch
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

#: The code of torch's decorator that records and replays methods, which is never needed here.
_RECORDING: Final = getattr(vars(ShapeEnv).get("freeze"), "__code__", None)


@dataclass(frozen=True)
class _Place(symbolic_shapes.SLoc):  # type: ignore[name-defined, misc]
    """The origin of a condition on symbols: a line of torch, or the user's."""

    location: Location | None = None

    def __str__(self) -> str:
        return str(self.location)


def _methods() -> Iterator[tuple[str, FunctionType]]:
    """Return ShapeEnv's plain methods, without the recording decorator."""
    for name, member in vars(ShapeEnv).items():
        method = _unrecorded(member)
        if isinstance(method, FunctionType) and not vars(method):  # others are caches, or context managers
            yield name, method


def _remembering_methods() -> Iterator[tuple[str, FunctionType, bool]]:
    """Return ShapeEnv's memoised methods, plain, and whether new facts clear their memo."""
    for name, member in vars(ShapeEnv).items():
        if hasattr(member, "cache_clear"):
            learns = isinstance(member, FunctionType)
            method = member.__wrapped__
            yield name, _unrecorded(method.__wrapped__ if hasattr(method, "cache_clear") else method), learns


def _unrecorded(member: Any) -> Any:
    code = getattr(member, "__code__", None)
    return member.__wrapped__ if code is not None and code is _RECORDING else member


def _remembering(name: str, method: FunctionType, learns: bool) -> Any:
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
        """The compiler of the guards reports them."""

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
    """Return the replacements, in every ShapeEnv made here, of torch's `methods`."""
    create = "_create_symbolic_sizes_strides_storage_offset"
    return {"evaluate_sym_node": _presuming(methods["evaluate_sym_node"]), create: _placed(methods[create])}


def _placed(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return symbols for sizes and strides, with a constant storage offset.

    A symbol for the offset would be that of a size with the same present value, and a graph that reads this size off an
    offset would have another one: its tensors begin at 0.
    """

    def create_symbolic(self: Any, sizes: Any, strides: Any, offset: int, *rest: Any, **options: Any) -> Any:
        return *create(self, sizes, strides, 0, *rest, **options)[:2], offset

    return create_symbolic


def _presuming(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """Answer a condition as ShapeEnv does, noting presumed answers and errors: see Note [What is presumed]."""

    def evaluate_sym_node(
        self: Any, sym_node: Any, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Any:
        try:
            answer = evaluate(self, sym_node, size_oblivious, fallback_value)
        except symbolic_shapes.GuardOnDataDependentSymNode as error:
            error.condition_asked = sym_node.expr  # type: ignore[attr-defined]
            raise
        made_up = fallback_value is not None and bool(answer) is fallback_value and not sym_node.has_hint()
        if made_up and self._maybe_evaluate_static(sym_node.expr) is None:
            condition = torch.SymBool(sym_node)  # type: ignore[no-untyped-call]
            self.framesmith_notes.presumed.append((condition, fallback_value))
        return answer

    return evaluate_sym_node


def condition_asked_by(error: Exception) -> Any:
    """Return the condition on unbacked numbers for which torch raised, or None: see Note [What is presumed]."""
    return getattr(error, "condition_asked", getattr(error, "cond", None))


def new_shape_env(*, specialize_zero_one: bool = True) -> ShapeEnv:
    """Return a ShapeEnv without importing torch._dynamo. Equal sizes share a symbol."""
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
    """Add the entries of this module to a ShapeEnv."""
    env.framesmith_notes = EnvNotes()
    if not hasattr(env, "_replacements_version_counter"):
        env.replacements = _CountedReplacements(env)


@cache
def _noting_env_class() -> type[ShapeEnv]:
    return type("ShapeEnv", (ShapeEnv,), _replaced(vars(ShapeEnv)))


class _CountedReplacements(dict[Any, Any]):
    """A ShapeEnv's replacements with a count of changes, which torch 2.13 has and 2.11 lacks."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.replacements)
        self._env = env
        env._replacements_version_counter = 0

    def __setitem__(self, symbol: Any, becomes: Any) -> None:
        super().__setitem__(symbol, becomes)
        self._env._replacements_version_counter += 1


def attach_shape_env(mode: FakeTensorMode) -> ShapeEnv:
    """Return the ShapeEnv of a fake mode; a mode for static sizes gets one, and goes on making static fakes itself."""
    if mode.shape_env is None:
        mode.shape_env = new_shape_env()
        mode.static_shapes = True
        mode.cache_enabled = False  # torch's cache makes the symbols of each result afresh
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
    """Return a fake of `tensor`, found at `source`, whose sizes of `dims` are symbols; strides follow the sizes.

    Sizes 0 and 1 stay numbers, and equal sizes share a symbol, except dimensions with a range (least, most). Those
    `unbacked` are symbols without a hint. GuardError for a range without the present size.
    """
    env = attach_shape_env(mode)
    for dim, (least, most) in (ranges or {}).items():
        if (size := tensor.size(dim)) < least or (most is not None and size > most):
            raise GuardError(f"dimension {dim} has size {size}, not one from {least} to {most}")
    # The trace meets a view alone: the sizes of its base are static.
    static = [DimDynamic.STATIC] * tensor._base.dim() if tensor._base is not None else None
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[_kind(dim, dims, unbacked, ranges or {}) for dim in range(tensor.dim())],
        view_base_context=None if static is None else StatelessSymbolicContext(dynamic_sizes=static),
    )
    # Autograd's views are made in the memory of the base's fake, which has to have the base's offset.
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


def _limit(env: ShapeEnv, size: Any, least: int, most: int | None) -> None:
    if isinstance(size, torch.SymInt):
        known = env.var_to_range[size.node.expr]
        upper = known.upper if most is None else most
        env._update_var_to_range(size.node.expr, ValueRanges(max(least, known.lower), upper))


def _plain_symbolic(
    mode: FakeTensorMode, env: ShapeEnv, tensor: torch.Tensor, source: Source, context: Any
) -> torch.Tensor:
    """`light_fakes.plain_fake` with symbols; the storage offset is not read."""
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
    """Return the user's line that specialised a symbolic number, or None."""
    reason = env.replacements_slocs.get(number.node._expr)
    return getattr(reason, "location", None)


def symbolic_number(mode: FakeTensorMode, number: int | float, source: Source, *, below: int | None = None) -> Any:
    """Return a SymInt or SymFloat for a number found at `source`: an int of magnitude `below` a bound, or any float.

    A guard states the bound: graphs compute in 64 bits, and compare with floats, where Python is exact.
    """
    env = attach_shape_env(mode)
    place = to_torch(source)
    symbol = env.create_unspecified_symbol(number, place, DimDynamic.DYNAMIC)
    make = env.create_symintnode if type(number) is int else env.create_symfloatnode
    made = make(symbol, hint=number, source=place)
    if below is not None:
        _limit(env, made, 1 - below, below - 1)
    return made


def unbacked_size(mode: FakeTensorMode, least: int = 0) -> torch.SymInt:
    """Return a size that only a call has."""
    env = attach_shape_env(mode)
    size = env.create_unbacked_symint()
    _limit(env, size, least, LARGEST_SYMBOL - 1)
    env.size_like.add(size.node.expr)
    return size


def computed_number(mode: FakeTensorMode, function: str, operands: Sequence[Any]) -> Any:
    """Return the result of a function of `kinds.shapes.EXACT` on numbers, as a symbol of its own.

    Only its present value is known: floats must be computed in the program's order. Guards about it compute it again.
    None where the function raises for the present values, or where no symbol can have the result. Unbacked operands
    give an unbacked result.
    """
    env = attach_shape_env(mode)
    hints = [hint_or_none(operand) for operand in operands]
    if None in hints:
        kind = type_given(function, [number_type(operand) for operand in operands])
        return None if kind is None else env.create_unbacked_symint() if kind is int else env.create_unbacked_symfloat()
    try:
        result = EXACT[function](*hints)
    except (ArithmeticError, ValueError, TypeError):
        return None
    if not _has_symbol(result):
        return None
    symbol = env.create_unspecified_symbol(result, NamedSource(f"{function}()"), DimDynamic.DYNAMIC)
    notes: EnvNotes = env.framesmith_notes  # type: ignore[attr-defined]
    notes.computed[symbol] = call_expr(function, [expr_of(operand) for operand in operands])
    make = env.create_symintnode if type(result) is int else env.create_symfloatnode
    return make(symbol, hint=result)


def _has_symbol(result: Any) -> bool:
    """Whether a symbol may have this value: an int of 64 bits, or a finite nonzero float."""
    if type(result) is int:
        return -(2**63) <= result < 2**63
    return type(result) is float and math.isfinite(result) and result != 0.0


def expr_of(number: Any) -> sympy.Basic:
    if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number.node.expr
    return sympy.Float(number) if type(number) is float else sympy.Integer(int(number))


def symbol_name(number: Any) -> str | None:
    """Return the name of a number's symbol; None for a constant or an expression."""
    expr = expr_of(number)
    return str(expr) if expr.is_Symbol else None


def bounds_of(number: torch.SymInt | torch.SymFloat) -> tuple[int | float | None, int | float | None]:
    """Return the least and the greatest value of a symbol, None where it has no such bound."""
    known = number.node.shape_env.var_to_range.get(number.node.expr)
    if known is None:
        return None, None
    least, most = (int(bound) if bound.is_Integer else None for bound in (known.lower, known.upper))
    return least, most
