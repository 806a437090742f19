"""`torch.autograd.Function.apply`: inlined where nothing needs a gradient; otherwise it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.torch_api.contexts import GradModeValue, call_inside
from framesmith_dynamo.values.torch_api.tables import CUSTOM_AUTOGRAD

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class ForwardContext:
    """The `ctx` of `forward` when no backward will follow: saved values become attributes that are never read."""

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: torch.Tensor) -> None:
        """Save tensors for forward-mode differentiation."""

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Declare outputs without gradients."""

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether missing gradients are zeros."""


class ForwardContextValue(ObjectValue):
    """The `ctx` of one inlined forward."""

    __slots__ = ()

    def reconstruct(self, codegen: Codegen) -> None:
        raise GraphBreak(CUSTOM_AUTOGRAD, "ctx outlives its forward")


@handles(
    ForwardContext.save_for_backward,
    ForwardContext.save_for_forward,
    ForwardContext.mark_non_differentiable,
    ForwardContext.set_materialize_grads,
)
def prepare_backward(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """The methods by which a forward configures its context: without effect here."""
    return tr.constant(None)


@handles(unstable.apply)
def apply(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`cls.apply(*args)`."""
    cls, rest = args[0].as_constant(), args[1:]
    needs_grad = torch.is_grad_enabled() and any(
        isinstance(arg, TensorValue) and arg.fake.requires_grad for arg in rest
    )
    setup = type_lookup(cls, "setup_context")
    if tr.facts.body.transforms:
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{cls.__module__}.{cls.__qualname__} under a transform")
    if needs_grad or kwargs or setup is None or setup.owner.__module__ != "torch.autograd.function":
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{cls.__module__}.{cls.__qualname__}")
    ctx = ForwardContextValue(ForwardContext)
    ctx.track(tr)
    ctx.store_own(tr, "needs_input_grad", tr.constant((False,) * len(rest)))
    forward = args[0].getattr_(tr, "forward")
    result = call_inside(tr, GradModeValue(torch.no_grad, (), {}), lambda: tr.call(forward, (ctx, *rest), {}))
    if not isinstance(result, TensorValue) or any(result is arg for arg in rest):
        raise GraphBreak(CUSTOM_AUTOGRAD, f"{cls.__module__}.{cls.__qualname__} returns an argument, or several values")
    return result
