"""Tensors of the trace that become leaves, or lose their history, in place.

The same object goes on with another tensor of the graph: an alias that requires gradients, or that has no history.
"""

from __future__ import annotations

import torch

from framesmith_aten.graphs.autograd_calls import new_leaf
from framesmith_aten.layouts import storage_id
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.constants.constant import raise_like
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.tensor_tables import AUTOGRAD_STATE, HOOKED


@c_method("requires_grad_", torch.Tensor)
def requires_grad_(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`requires_grad_()`, and `tensor.requires_grad = ...`: of a tensor of the trace that has no history."""
    [flag] = (*args, *kwargs.values()) or (tr.constant(True),)
    _check_made_here(tr, self, "requires_grad_", changes=not self.is_same_flag(flag))
    if self.is_same_flag(flag):
        return self
    fake, wanted = self.fake, flag.as_constant()
    if not fake.is_leaf or not (fake.is_floating_point() or fake.is_complex()):
        _raise_refusal(tr, fake, wanted)
    made = tr.call_torch(new_leaf, (self,), {}) if wanted else tr.call_torch("detach", (self,), {})
    tr.become(self, made)
    return self


@c_method("detach_", torch.Tensor)
def detach_(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`detach_()` of a tensor that the trace has made."""
    _check_made_here(tr, self, "detach_", changes=True)
    if self.fake.requires_grad:
        tr.become(self, tr.call_torch("detach", (self,), {}))
    return self


def _check_made_here(tr: Tracer, tensor: TensorValue, name: str, *, changes: bool) -> None:
    """Break for a tensor that others have seen, a view or one with views or hooks, whose state would change.

    Under a transform torch rejects the method.
    """
    body = tr.facts.body
    shared = tensor.source is not None or tensor.fake._is_view() or tensor.fake.is_inference() or body.functions
    if body.level or (changes and (shared or _has_views(tensor))):
        raise GraphBreak(AUTOGRAD_STATE, f"{name}() of {tensor.describe()}", before_effects=True)
    if changes and storage_id(tensor.fake) in tr.facts.hooked:
        raise GraphBreak(HOOKED, f"{name}()", before_effects=True)


def _has_views(tensor: TensorValue) -> bool:
    """Whether the trace has made views of a tensor: they follow its state."""
    return any(ref.fake._base is tensor.fake for ref in tensor.ref.builder.refs.values())


def _raise_refusal(tr: Tracer, fake: torch.Tensor, wanted: bool) -> None:
    """Raise torch's error for a tensor that may not require gradients, or whose history says that it does."""
    try:
        if fake.is_leaf:
            torch.empty((), dtype=fake.dtype).requires_grad_(wanted)
        else:
            with torch.enable_grad():
                (torch.ones((), requires_grad=True) * 1).requires_grad_(wanted)
    except RuntimeError as error:
        raise_like(tr, error)
