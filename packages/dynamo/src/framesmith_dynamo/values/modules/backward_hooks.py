"""Backward hooks of modules: torch's Python around a call is interpreted, and its autograd nodes become views.

`torch.utils.hooks.BackwardHook` leads the tensors that a module takes, and those that it returns, through a Function
that does nothing, and hooks the Function's node. In a graph the node of one tensor is that of a view of it: aot makes
the view after the graph by its operator, so it has a node of its own, which is hooked then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.tensors.hooks import check_hooks, registered
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.tensor_tables import AUTOGRAD_STATE

BACKWARD_HOOKS = register_break(
    "module-backward-hooks",
    what="a module with backward hooks takes or returns several tensors with gradients",
    why="the hooks wait for all of these gradients, at one autograd node; a graph has a node for each tensor",
    hint="the module's call runs eagerly between two graphs; register the hooks on modules with one such tensor",
)


def register_node_hook(tensor: torch.Tensor, hook: Any) -> RemovableHandle:
    """Register a hook behind the node that made a tensor."""
    assert tensor.grad_fn is not None
    return tensor.grad_fn.register_hook(hook)


def register_node_prehook(tensor: torch.Tensor, hook: Any) -> RemovableHandle:
    """Register a hook in front of the node that made a tensor."""
    assert tensor.grad_fn is not None
    return tensor.grad_fn.register_prehook(hook)


_REGISTERING: Final[dict[str, Callable[..., RemovableHandle]]] = {
    "register_hook": register_node_hook,
    "register_prehook": register_node_prehook,
}


class HookNodeValue(Value):
    """The autograd node of a tensor on its way into or out of a module."""

    python_types = (torch.autograd.graph.Node,)
    __slots__ = ("tensor",)

    def __init__(self, tensor: TensorValue) -> None:
        super().__init__()
        self.tensor = tensor

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "name" and not args and not kwargs:
            return tr.constant(f"{unstable.BackwardHookFunction.__name__}Backward")
        if name not in _REGISTERING or len(args) != 1 or kwargs:
            raise GraphBreak(AUTOGRAD_STATE, f"{name}() of an autograd node")
        return registered(tr, self.tensor, _REGISTERING[name], *args)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        raise GraphBreak(AUTOGRAD_STATE, f"attribute {name!r} of an autograd node")


def led_through_node(tr: Tracer, args: Args) -> Value:
    """`BackwardHookFunction.apply(*args)`: views of the tensors; the node of the one that has a gradient is known."""
    tensors = [arg for arg in args if isinstance(arg, TensorValue)]
    differentiable = [one for one in tensors if one.fake.requires_grad]
    if len(differentiable) > 1:
        raise GraphBreak(BACKWARD_HOOKS, ", ".join(one.describe() for one in differentiable))
    for one in differentiable:
        check_hooks(tr, one, torch.Tensor.register_hook, print)
    views = [tr.call_torch("view_as", (one, one), {}) for one in tensors]
    for view in views:
        if isinstance(view, TensorValue) and view.fake.requires_grad:
            tr.facts.hook_nodes[id(view)] = HookNodeValue(view)
    return TupleValue(views)
