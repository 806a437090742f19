"""Hooks of tensors: registered after the graph has run, in the program's order.

A hooked tensor of the trace becomes a result of the graph. aot makes an autograd node for each group of results, so the
hook sees the whole gradient of the tensor, that of its uses in the graph included, and runs when eager mode's does.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from framesmith_aten.layouts import storage_id
from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.callables import handles, named
from framesmith_dynamo.values.constants.constant import raise_like
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.tensor_tables import AUTOGRAD_STATE

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

HANDLE_ASKED = register_break(
    "hook-handle-asked",
    what="an attribute of the handle of a hook that the trace has registered is read or set, other than `remove`",
    why="the hook is registered after the graph has run, and the handle has its number only then",
    hint="read it outside of the compiled function",
)


def _removed_handle() -> RemovableHandle:
    """Return a handle whose hook has been removed."""
    return RemovableHandle(OrderedDict())


class HandleValue(Value):
    """The handle of a hook registered in the trace, by `register(tensor, hook, ...)`.

    `change` is the number of this call in the journal, None once the hook is removed. The replay makes the handle
    empty; the call that registers the hook fills it.
    """

    python_types = (RemovableHandle,)
    __slots__ = ("change", "hook", "register", "tensor")

    def __init__(self, tensor: TensorValue, register: Callable[..., RemovableHandle], hook: Value) -> None:
        super().__init__()
        self.tensor = tensor
        self.register = register
        self.hook = hook
        self.change: int | None = None

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__enter__":
            return self
        if name != "__exit__" and (name != "remove" or args or kwargs):
            raise GraphBreak(HANDLE_ASKED, f"{name}()")
        self.forget(tr)
        return tr.constant(None)

    def forget(self, tr: Tracer) -> None:
        """Leave the hook unregistered."""
        if self.change is not None:
            tr.journal.forget_call(self.change)
            self.change = None

    def getattr_(self, tr: Tracer, name: str) -> Value:
        raise GraphBreak(HANDLE_ASKED, f"attribute {name!r}")

    def reconstruct(self, codegen: Codegen) -> None:
        if self.change is None:
            codegen.push_call(_removed_handle)
        else:
            codegen.push_call(object.__new__, (), (RemovableHandle,))


@functools.cache
def _filling(register: Callable[..., RemovableHandle]) -> Callable[..., None]:
    """Return a function that registers a hook and makes its first argument, an empty handle, the hook's."""

    @functools.wraps(register)
    def fill(handle: RemovableHandle, *args: Any) -> None:
        vars(handle).update(vars(register(*args)))

    return fill


def registered(tr: Tracer, tensor: TensorValue, register: Callable[..., RemovableHandle], *args: Value) -> HandleValue:
    """Note `register(tensor, *args)` for after the graph; the tensor's contents may not change until then."""
    tr.facts.hooked.add(storage_id(tensor.fake))
    handle = HandleValue(tensor, register, args[0])
    tr.journal.track_new(handle, RemovableHandle)
    handle.change = tr.journal.record_call(_filling(register), handle, tensor, *args)
    tr.facts.registered.append(handle)
    return handle


def check_hooks(tr: Tracer, tensor: TensorValue, method: Callable[..., Any], *args: Any) -> None:
    """Break where hooks cannot wait for the graph's end; raise torch's error for a tensor that takes none."""
    body = tr.facts.body
    if body.level or body.functions or tensor.fake.is_inference():
        raise GraphBreak(AUTOGRAD_STATE, f"{method.__name__}() of {tensor.describe()}", before_effects=True)
    if not tensor.fake.requires_grad:
        try:
            method(torch.ones(()), *args)
        except RuntimeError as error:
            raise_like(tr, error)


@c_method("register_hook", torch.Tensor)
def register_hook(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    check_hooks(tr, self, torch.Tensor.register_hook, print)
    [hook] = (*args, *kwargs.values())
    return registered(tr, self, torch.Tensor.register_hook, hook)


@handles(unstable.register_hook_op)
def register_hook_op(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """torch's operator: a hook is registered, and gets the further arguments behind its gradient."""
    given = named(tr, unstable.register_hook_op, args[:2], kwargs, ("tensor", "hook_body"), 2)
    tensor, hook = given["tensor"], given["hook_body"]
    if args[2:] or not isinstance(tensor, TensorValue):
        raise GraphBreak(AUTOGRAD_STATE, "register_hook with captured values", before_effects=True)
    tensor.call_method(tr, "register_hook", (hook,), {})
    return tensor


@c_method("register_post_accumulate_grad_hook", torch.Tensor)
def register_post_accumulate_grad_hook(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    check_hooks(tr, self, torch.Tensor.register_post_accumulate_grad_hook, print)
    if not (self.fake if self.real is None else self.real).is_leaf:
        method = torch.Tensor.register_post_accumulate_grad_hook
        raise GraphBreak(AUTOGRAD_STATE, f"{method.__name__}() of {self.describe()}", before_effects=True)
    [hook] = (*args, *kwargs.values())
    return registered(tr, self, torch.Tensor.register_post_accumulate_grad_hook, hook)


@c_method("retain_grad", torch.Tensor)
def retain_grad(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    check_hooks(tr, self, torch.Tensor.retain_grad)
    if self.real is None or not self.real.is_leaf:
        tr.facts.hooked.add(storage_id(self.fake))
        tr.journal.record_call(torch.Tensor.retain_grad, self)
        if self.source is None:
            tr.facts.retains_grad[id(self)] = self
    return tr.constant(None)
