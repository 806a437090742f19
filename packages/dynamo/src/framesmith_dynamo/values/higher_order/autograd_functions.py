"""`torch.autograd.Function.apply`: inlined where nothing needs a gradient, else one node with two subgraphs.

Note [Functions]: `forward` is traced on the arguments themselves, without gradients, and extracted as a subgraph; then
`backward` is traced on examples: of a gradient for each output, and of each tensor that `ctx` keeps. It is called with
a context of its own, which has the attributes that `forward` has set. The node `applied(forward, backward, ...)` is a
call of a real Function that runs the two graphs, so autograd's rules of written inputs, outputs without gradients and
second derivatives are torch's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch
from torch.autograd.function import once_differentiable

from framesmith_aten.checks.plain_tensors import why_not_plain
from framesmith_aten.graphs.autograd_functions import applied
from framesmith_aten.symbolic import is_unbacked
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.graph.subgraphs import Subgraph, extract_subgraph, last_node
from framesmith_dynamo.polyfills.autograd_functions import FunctionContext
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import ListValue, TupleValue, new_list
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_dynamo.values.higher_order.checkpoint import REENTRANT
from framesmith_dynamo.values.higher_order.subgraphs import BODY_RAISES, in_body, recorded_call
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.modules.backward_hooks import led_through_node
from framesmith_dynamo.values.objects.attributes import STAND_INS
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.torch_api.contexts import GradModeValue, call_inside
from framesmith_dynamo.values.torch_api.tables import CUSTOM_AUTOGRAD
from framesmith_guards.contexts import ambient

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

ASKS_GRAD_MODE = register_break(
    "backward-asks-grad-mode",
    what="the backward of a torch.autograd.Function asks whether gradients are recorded",
    why="it is traced once, for first and for higher derivatives",
    hint="it runs eagerly between two graphs; compute the same for both, or use once_differentiable",
)

STAND_INS.add(FunctionContext)
#: The code of all methods that `once_differentiable` has made.
ONCE: Final = once_differentiable(lambda ctx: None).__code__


#: The attributes that methods of the context set in `forward`; `backward` sees none of them.
NOTED: Final = frozenset(
    {"needs_input_grad", "to_save", "dirty_tensors", "non_differentiable", "materialize_grads", "saved_tensors"}
)


class FunctionContextValue(ObjectValue):
    """The `ctx` of one call."""

    __slots__ = ()

    def reconstruct(self, codegen: Codegen) -> None:
        raise GraphBreak(CUSTOM_AUTOGRAD, "ctx outlives its forward")


@dataclass(frozen=True)
class _Kept:
    """A tensor that a context keeps for `backward`; `saved`: by `save_for_backward`, or as an attribute."""

    tensor: TensorValue
    saved: bool


@dataclass(frozen=True)
class _Traced:
    """A traced `forward`: its result, the tensors in it, its context, and what that keeps."""

    result: Value
    outputs: list[TensorValue]
    ctx: FunctionContextValue
    kept: list[_Kept]

    def differentiable(self, undifferentiated: Sequence[int]) -> list[bool]:
        """Return for each output whether it has a gradient."""
        return [
            at not in undifferentiated and (one.fake.is_floating_point() or one.fake.is_complex())
            for at, one in enumerate(self.outputs)
        ]


@handles(unstable.apply)
def apply(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`cls.apply(*args)`."""
    cls = args[0].as_constant()
    if cls is unstable.BackwardHookFunction:
        return led_through_node(tr, args[1:])
    name = f"{cls.__module__}.{cls.__qualname__}"
    if tr.facts.body.transforms:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} under a transform")
    setup = type_lookup(cls, "setup_context")
    with_setup = setup is not None and setup.owner.__module__ != "torch.autograd.function"
    given = _with_defaults(tr, cls, args[1:], kwargs) if with_setup else args[1:]
    if kwargs and not with_setup:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} is applied to keywords")
    tensors = [arg for arg in given if isinstance(arg, TensorValue)]
    if not _needs_gradients(tr, tensors):
        return _inlined(tr, args[0], given, with_setup)
    builder = tensors[0].ref.builder
    inputs = [one.as_proxy() for one in tensors]
    last = last_node(builder)
    with _method(tr, autocast=True):
        try:
            traced = _forward(tr, args[0], given, with_setup, name)
        except TracedRaise as error:
            raise GraphBreak(BODY_RAISES, error.value.describe()) from error
    written = [_position(name, one, tensors) for one in _noted(tr, traced.ctx, "dirty_tensors")]
    undifferentiated = [_position(name, one, traced.outputs) for one in _noted(tr, traced.ctx, "non_differentiable")]
    results = [one.as_proxy() for one in (*traced.outputs, *(one.tensor for one in traced.kept))]
    forward = extract_subgraph(builder, last, inputs, results, [inputs[at] for at in written], modes=True)
    materializes = traced.ctx.getattr_(tr, "materialize_grads").bool_(tr)
    given_none = [] if materializes else _never_given(name, traced.differentiable(undifferentiated))
    backward, once = _backward(tr, args[0], given, traced, given_none, name)
    settings = (
        (len(inputs), len(forward.captured), len(traced.outputs)),
        tuple(one.saved for one in traced.kept),
        tuple(written),
        tuple(undifferentiated),
        materializes,
        once,
    )
    made = recorded_call(tr, applied, (forward, backward), settings, tensors)
    if not isinstance(traced.result, TupleValue):
        return made[0]
    left = iter(made)
    return TupleValue([next(left) if isinstance(one, TensorValue) else one for one in traced.result.unpack(tr)])


def _needs_gradients(tr: Tracer, tensors: Sequence[TensorValue]) -> bool:
    """Whether autograd records the call. A backward that is traced without gradients may itself be differentiated."""
    recording = tr.facts.body.backwards > 0
    return any(recording or (torch.is_grad_enabled() and one.fake.requires_grad) for one in tensors)


def _with_defaults(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Args:
    """Return all arguments by position, with the defaults of `forward`, as torch binds them for `setup_context`."""
    signature = inspect.signature(cls.forward)  # type: ignore[attr-defined]
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{cls.__qualname__}: {error}") from error
    given = bound.arguments
    for name, parameter in signature.parameters.items():
        if name not in given and parameter.default is not parameter.empty:
            given[name] = tr.constant(parameter.default)
    bound.arguments = {name: given[name] for name in signature.parameters if name in given}
    return bound.args


@handles(torch.is_grad_enabled)
def is_grad_enabled(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.is_grad_enabled()`; each entry guards the mode it was made in."""
    if tr.facts.body.reentrant:
        raise GraphBreak(REENTRANT, "torch.is_grad_enabled() in the function")
    if tr.facts.body.backwards:
        raise GraphBreak(ASKS_GRAD_MODE)
    return tr.constant(torch.is_grad_enabled())


def _context(tr: Tracer, needs: Value) -> FunctionContextValue:
    ctx = FunctionContextValue(FunctionContext)
    ctx.track(tr)
    ctx.store_own(tr, "needs_input_grad", needs)
    return ctx


def _run_forward(tr: Tracer, cls: Value, ctx: Value, given: Args, with_setup: bool) -> Value:
    forward = cls.getattr_(tr, "forward")
    if not with_setup:
        return tr.call(forward, (ctx, *given), {})
    result = tr.call(forward, given, {})
    tr.call(cls.getattr_(tr, "setup_context"), (ctx, TupleValue([*given]), result), {})
    return result


def _inlined(tr: Tracer, cls: Value, given: Args, with_setup: bool) -> Value:
    """Return the result of `forward` where no backward will follow."""
    ctx = _context(tr, tr.constant((False,) * len(given)))
    inside = GradModeValue(torch.no_grad, (), {})
    result = call_inside(tr, inside, lambda: _run_forward(tr, cls, ctx, given, with_setup))
    written = _noted(tr, ctx, "dirty_tensors")

    def given_back(one: Value) -> Value:
        """A tensor that is an argument is returned as a view of it, unless it was written to."""
        is_argument = isinstance(one, TensorValue) and any(one is each for each in given)
        if not is_argument or any(one is each for each in written):
            return one
        return tr.call_torch("view_as", (one, one), {})

    return TupleValue([*map(given_back, result.unpack(tr))]) if isinstance(result, TupleValue) else given_back(result)


@contextmanager
def _method(tr: Tracer, *, autocast: bool) -> Iterator[None]:
    """Context manager for tracing a method as autograd calls it: without gradients, `backward` without `autocast`.

    The switches are restored at its end, as autograd restores them; nothing of that is recorded.
    """
    tr.facts.body.functions += 1
    try:
        with ambient.preserved() as state:
            ambient.write(replace(state if autocast else ambient.without_autocast(state), grad=False))
            yield
    finally:
        tr.facts.body.functions -= 1


def _forward(tr: Tracer, cls: Value, given: Args, with_setup: bool, name: str) -> _Traced:
    needs = tuple(isinstance(arg, TensorValue) and _may_need(tr, arg) for arg in given)
    ctx = _context(tr, tr.constant(needs))
    result = _run_forward(tr, cls, ctx, given, with_setup)
    results = result.unpack(tr) if isinstance(result, TupleValue) else [result]
    outputs = [one for one in results if isinstance(one, TensorValue)]
    if not outputs:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} returns no tensor")
    kept = {(id(one), True): _Kept(one, True) for one in _noted(tr, ctx, "to_save")}

    def note(tensor: TensorValue) -> TensorValue:
        kept.setdefault((id(tensor), False), _Kept(tensor, False))
        return tensor

    for value in _attributes(tr, ctx).values():
        _with_tensors(tr, value, note)
    return _Traced(result, outputs, ctx, [*kept.values()])


def _attributes(tr: Tracer, ctx: Value) -> dict[str, Value]:
    """Return the attributes that `forward` has set in its context itself."""
    stored = tr.journal.pending_attrs(ctx)
    return {name: value for name, value in stored.items() if isinstance(value, Value) and name not in NOTED}


def _with_tensors(tr: Tracer, value: Value, of: Callable[[TensorValue], Value]) -> Value:
    """Return an attribute with its tensors, those in tuples and lists included, replaced by `of` them."""
    if isinstance(value, TensorValue):
        return of(value)
    if type(value) is TupleValue and not value.is_constant():
        return TupleValue([_with_tensors(tr, item, of) for item in value.unpack(tr)])
    if isinstance(value, ListValue) and value.python_type() is list and value.source is None:
        return new_list(tr, [_with_tensors(tr, item, of) for item in value.unpack(tr)])
    return value


def _never_given(name: str, differentiable: Sequence[bool]) -> list[int]:
    """Return the outputs whose gradient is None, without materialized gradients: all but the one that has one."""
    if sum(differentiable) > 1:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} has several outputs, and gradients that are not materialized")
    return [at for at, one in enumerate(differentiable) if not one]


def _may_need(tr: Tracer, arg: TensorValue) -> bool:
    floats = arg.fake.is_floating_point() or arg.fake.is_complex()
    return arg.fake.requires_grad or (tr.facts.body.backwards > 0 and floats)


def _noted(tr: Tracer, ctx: Value, name: str) -> list[TensorValue]:
    """Return the tensors that `forward` has noted in its context, without None."""
    found = ctx.getattr_(tr, name).unpack(tr)
    if not all(isinstance(one, TensorValue) or one.is_none() for one in found):
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} holds other things than tensors")
    return [one for one in found if isinstance(one, TensorValue)]


def _position(name: str, tensor: Value, among: Sequence[Value]) -> int:
    for index, one in enumerate(among):
        if one is tensor:
            return index
    raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} marks {tensor.describe()}, which is not among the tensors it may mark")


def _backward(
    tr: Tracer, cls: Value, given: Args, traced: _Traced, given_none: Sequence[int], name: str
) -> tuple[Subgraph, bool]:
    """Trace `backward` on examples; return its subgraph, and whether it may be differentiated only once."""
    gradients = [_example(tr, name, one) for one in traced.outputs]
    kept = [_example(tr, name, one.tensor) for one in traced.kept]
    builder, last = gradients[0].ref.builder, last_node(gradients[0].ref.builder)
    method = cls.getattr_(tr, "backward")
    once = _once_differentiable(tr, method)
    with _differentiated(tr, f"the backward of {name}"):
        ctx = _backward_context(tr, traced, kept)
        passed = _passed(tr, traced, gradients, given_none)
        found = tr.call(once or method, (ctx, *passed), {})
    results = found.unpack(tr) if isinstance(found, TupleValue) else [found]
    wanted = [isinstance(arg, TensorValue) for arg in given]
    for at, one in enumerate(results):
        if not (one.is_none() or (isinstance(one, TensorValue) and at < len(wanted) and wanted[at])):
            raise GraphBreak(CUSTOM_AUTOGRAD, f"{name}.backward gives {one.describe()} for argument {at}")
    if len(results) < len(wanted):
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name}.backward gives {len(results)} gradients for {len(wanted)} arguments")
    chosen = [one for one, of_tensor in zip(results, wanted, strict=False) if of_tensor]
    nodes = [one.as_proxy() if isinstance(one, TensorValue) else None for one in chosen]
    examples = [one.as_proxy() for one in (*gradients, *kept)]
    return extract_subgraph(builder, last, examples, nodes, modes=True), once is not None


def _example(tr: Tracer, name: str, tensor: TensorValue) -> TensorValue:
    """Return a tensor like this one, without history; it stands for the tensor in `backward`."""
    fake = tensor.fake
    why = why_not_plain(fake) or ("a lazy view" if fake.is_conj() or fake.is_neg() else None)
    if why is not None or any(map(is_unbacked, fake.shape)):
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} keeps or returns {why or 'a tensor of unbacked size'}")
    options = {"dtype": tr.constant(fake.dtype), "device": tr.constant(fake.device)}
    layout = [[tr.constant(one) for one in sizes] for sizes in (fake.shape, fake.stride())]
    made = tr.call_torch(torch.empty_strided, layout, options)
    assert isinstance(made, TensorValue)
    return made


def _once_differentiable(tr: Tracer, method: Value) -> Value | None:
    """Return the function in a method made by `once_differentiable`, or None."""
    if isinstance(method, FunctionValue) and method.function.__code__ is ONCE:
        return method.getattr_(tr, "__wrapped__")
    return None


@contextmanager
def _differentiated(tr: Tracer, what: str) -> Iterator[None]:
    tr.facts.body.backwards += 1
    tr.facts.body.differentiated += 1
    try:
        with _method(tr, autocast=False), in_body(tr, what):
            yield
    finally:
        tr.facts.body.backwards -= 1
        tr.facts.body.differentiated -= 1


def _backward_context(tr: Tracer, traced: _Traced, examples: Sequence[TensorValue]) -> FunctionContextValue:
    """Return the context of `backward`: needs, saved tensors, and the attributes that `forward` has set."""
    known = {(id(one.tensor), one.saved): example for one, example in zip(traced.kept, examples, strict=True)}
    ctx = _context(tr, traced.ctx.getattr_(tr, "needs_input_grad"))
    saved = traced.ctx.getattr_(tr, "to_save").unpack(tr)
    ctx.store_own(tr, "saved_tensors", TupleValue([known.get((id(one), True), one) for one in saved]))
    for name, value in _attributes(tr, traced.ctx).items():
        ctx.store_own(tr, name, _with_tensors(tr, value, lambda tensor: known[id(tensor), False]))
    return ctx


def _passed(tr: Tracer, traced: _Traced, gradients: Sequence[TensorValue], given_none: Sequence[int]) -> list[Value]:
    """Return the arguments of `backward`: None for an output that is no tensor, and for those without a gradient."""
    results = traced.result.unpack(tr) if isinstance(traced.result, TupleValue) else [traced.result]
    left = iter(tr.constant(None) if at in given_none else one for at, one in enumerate(gradients))
    return [next(left) if isinstance(one, TensorValue) else tr.constant(None) for one in results]
