"""Backward hooks of modules: torch's Python around a call is interpreted, and its autograd nodes become views.

`torch.utils.hooks.BackwardHook` leads the tensors that a module takes, and those that it returns, through a Function
that does nothing, and hooks the node of it. In a graph that is a call of `through_one_node`: all of its views become
results of the graph, and aot makes them by the Function itself, outside of its own nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from framesmith_aten.graphs.autograd_calls import through_one_node
from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.tensors.hooks import check_hooks, registered
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.tensor_tables import AUTOGRAD_STATE


def register_node_hook(tensor: torch.Tensor, hook: Any, *others: torch.Tensor) -> RemovableHandle:
    """Register a hook behind the node that made a tensor, and others: it waits for the gradients of all."""
    assert tensor.grad_fn is not None
    return tensor.grad_fn.register_hook(hook)


def register_node_prehook(tensor: torch.Tensor, hook: Any, *others: torch.Tensor) -> RemovableHandle:
    """Register a hook in front of the node that made a tensor, and others."""
    assert tensor.grad_fn is not None
    return tensor.grad_fn.register_prehook(hook)


_REGISTERING: Final[dict[str, Callable[..., RemovableHandle]]] = {
    "register_hook": register_node_hook,
    "register_prehook": register_node_prehook,
}


class HookNodeValue(Value):
    """The autograd node of tensors on their way into or out of a module: `views` are all that it makes of `tensors`."""

    python_types = (torch.autograd.graph.Node,)
    __slots__ = ("tensors", "views")

    def __init__(self, tensors: Sequence[TensorValue], views: Sequence[TensorValue]) -> None:
        super().__init__()
        self.tensors = tensors
        self.views = views

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "name" and not args and not kwargs:
            return tr.constant(f"{unstable.BackwardHookFunction.__name__}Backward")
        if name not in _REGISTERING or len(args) != 1 or kwargs:
            raise GraphBreak(AUTOGRAD_STATE, f"{name}() of an autograd node")
        [first, *others] = sorted(self.views, key=lambda view: not view.fake.requires_grad)
        return registered(tr, first, _REGISTERING[name], *args, *others)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        raise GraphBreak(AUTOGRAD_STATE, f"attribute {name!r} of an autograd node")


def led_through_node(tr: Tracer, args: Args) -> Value:
    """`BackwardHookFunction.apply(*args)`: views of the tensors, and their node."""
    tensors = [arg for arg in args if isinstance(arg, TensorValue)]
    for one in tensors:
        if one.fake.requires_grad:
            check_hooks(tr, one, torch.Tensor.register_hook, print)
    made = tr.call_torch(through_one_node, tensors, {})
    views = [one for one in made.unpack(tr) if isinstance(one, TensorValue)]
    node = HookNodeValue(tensors, views)
    tr.facts.hook_nodes.update((id(view), node) for view in views if view.fake.requires_grad)
    return TupleValue([*views])
