"""The `ctx` of a `torch.autograd.Function`: what `forward` puts in it, and what `backward` and `jvp` find there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from framesmith_aten.checks.plain_tensors import why_not_plain
from framesmith_aten.symbolic import is_unbacked
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.polyfills.autograd_functions import FunctionContext
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers import ListValue, TupleValue, new_list
from framesmith_dynamo.values.objects.attributes import STAND_INS
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.torch_api.tables import CUSTOM_AUTOGRAD

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

STAND_INS.add(FunctionContext)

#: The attributes that methods of the context set in `forward`; `backward` sees none of them.
NOTED: Final = frozenset(
    {
        "needs_input_grad",
        "to_save",
        "saved_for_forward",
        "dirty_tensors",
        "non_differentiable",
        "materialize_grads",
        "saved_tensors",
    }
)


class FunctionContextValue(ObjectValue):
    """The `ctx` of one call."""

    __slots__ = ()

    def reconstruct(self, codegen: Codegen) -> None:
        raise GraphBreak(CUSTOM_AUTOGRAD, "ctx outlives its forward")


@dataclass(frozen=True)
class Kept:
    """A tensor that a context keeps for `backward`; `saved`: by `save_for_backward`, or as an attribute."""

    tensor: TensorValue
    saved: bool


@dataclass(frozen=True)
class Traced:
    """A traced `forward`: its result, the tensors in it, its context, and what that keeps."""

    result: Value
    outputs: list[TensorValue]
    ctx: FunctionContextValue
    kept: list[Kept]

    def differentiable(self, undifferentiated: Sequence[int]) -> list[int]:
        """Return the outputs that have a gradient."""
        floats = [one.fake.is_floating_point() or one.fake.is_complex() for one in self.outputs]
        return [at for at, one in enumerate(floats) if one and at not in undifferentiated]

    def with_outputs(self, tr: Tracer, outputs: Sequence[Value]) -> Value:
        """Return the result of `forward` with other tensors."""
        if not isinstance(self.result, TupleValue):
            return outputs[0]
        left = iter(outputs)
        return TupleValue([next(left) if isinstance(one, TensorValue) else one for one in self.result.unpack(tr)])

    def results(self, tr: Tracer, of_outputs: Sequence[Value]) -> list[Value]:
        """Return the results of `forward` with other values for its tensors, and None for all else."""
        results = self.result.unpack(tr) if isinstance(self.result, TupleValue) else [self.result]
        left = iter(of_outputs)
        return [next(left) if isinstance(one, TensorValue) else tr.constant(None) for one in results]


def new_context(tr: Tracer, needs: Value) -> FunctionContextValue:
    ctx = FunctionContextValue(FunctionContext)
    ctx.track(tr)
    ctx.store_own(tr, "needs_input_grad", needs)
    return ctx


def noted(tr: Tracer, ctx: Value, name: str) -> list[TensorValue]:
    """Return the tensors that `forward` has noted in its context, without None."""
    found = ctx.getattr_(tr, name).unpack(tr)
    if not all(isinstance(one, TensorValue) or one.is_none() for one in found):
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} holds other things than tensors")
    return [one for one in found if isinstance(one, TensorValue)]


def kept_by(tr: Tracer, ctx: Value) -> list[Kept]:
    """Return the tensors that a context keeps: those saved for backward, then others."""
    kept = {(id(one), True): Kept(one, True) for one in noted(tr, ctx, "to_save")}

    def note(tensor: TensorValue) -> TensorValue:
        kept.setdefault((id(tensor), False), Kept(tensor, False))
        return tensor

    for value in _attributes(tr, ctx).values():
        _with_tensors(tr, value, note)
    for one in noted(tr, ctx, "saved_for_forward"):
        if (id(one), True) not in kept:
            note(one)
    return [*kept.values()]


def saved_for_forward(tr: Tracer, traced: Traced) -> tuple[int, ...]:
    """Return the positions among the kept tensors of those that `save_for_forward` keeps."""
    known = {id(one.tensor): at for at, one in reversed([*enumerate(traced.kept)])}
    return tuple(known[id(one)] for one in noted(tr, traced.ctx, "saved_for_forward"))


def context_of(tr: Tracer, traced: Traced, examples: Sequence[TensorValue], saved: str) -> FunctionContextValue:
    """Return the context of `backward` or `jvp`: needs, `saved` tensors, and the attributes that `forward` has set.

    `examples` stand for the tensors that are kept.
    """
    known = {(id(one.tensor), one.saved): example for one, example in zip(traced.kept, examples, strict=True)}
    ctx = new_context(tr, traced.ctx.getattr_(tr, "needs_input_grad"))
    tensors = traced.ctx.getattr_(tr, saved).unpack(tr)
    found = [known.get((id(one), True), known.get((id(one), False), one)) for one in tensors]
    ctx.store_own(tr, "saved_tensors", TupleValue(found))
    for name, value in _attributes(tr, traced.ctx).items():
        ctx.store_own(tr, name, _with_tensors(tr, value, lambda tensor: known[id(tensor), False]))
    return ctx


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


def stand_in(tr: Tracer, name: str, tensor: TensorValue) -> TensorValue:
    """Return a tensor like this one, without history; it stands for the tensor in a method that runs later."""
    fake = tensor.fake
    why = why_not_plain(fake) or ("a lazy view" if fake.is_conj() or fake.is_neg() else None)
    if why is not None or any(map(is_unbacked, fake.shape)):
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{name} keeps or returns {why or 'a tensor of unbacked size'}")
    options = {"dtype": tr.constant(fake.dtype), "device": tr.constant(fake.device)}
    layout = [[tr.constant(one) for one in sizes] for sizes in (fake.shape, fake.stride())]
    made = tr.call_torch(torch.empty_strided, layout, options)
    assert isinstance(made, TensorValue)
    return made
