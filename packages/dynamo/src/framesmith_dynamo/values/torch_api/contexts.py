"""torch's context managers in traced code: entry and exit record state changes in the graph.

`no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode` and `autocast`, as `with` statements and as decorators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.amp import autocast_mode

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.constants.constant import all_constant, plain_arguments, raise_like
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_guards.needs import of_torch

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

INFERENCE_MODE = register_break(
    "inference-mode-inside",
    what="torch.inference_mode is entered inside the compiled function",
    why="tensors made in it are of another kind, which the graph cannot record",
    hint="enter inference_mode around the call of the compiled function, or use no_grad",
)
DEVICE_INSIDE = register_break(
    "device-context-inside",
    what="a torch.device is entered inside the compiled function",
    why="it sets a mode for all functions of torch, which must not outlive the trace",
    hint="enter it around the call of the compiled function, or pass device=... to the functions that make tensors",
)
AUTOCAST_INSIDE = register_break(
    "autocast-inside",
    what="torch.autocast is entered inside the compiled function with options the tracer does not follow",
    why="only constant device type, dtype, enabled and cache_enabled are followed",
    hint="enter autocast around the call of the compiled function",
)


class TorchContextValue(Value):
    """A context manager of torch made in the trace. Subclasses implement `enter` and `exit_`."""

    __slots__ = ("args", "cls", "kwargs", "saved")
    #: Whether a continuation may enter such a context again, for the rest of its block.
    is_reentered: ClassVar[bool] = True

    def __init__(self, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.cls = cls
        self.args = tuple(args)
        self.kwargs = kwargs
        self.saved: list[Any] = []

    def python_type(self) -> type:
        return self.cls

    def enter(self, tr: Tracer) -> Value:
        raise NotImplementedError

    def exit_(self, tr: Tracer, args: Args) -> Value:
        raise NotImplementedError

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """As a decorator: return a function that runs inside the context."""
        return DecoratedValue(self, args[0])

    def again(self) -> TorchContextValue:
        """Return a new context with the same arguments."""
        return type(self)(self.cls, self.args, self.kwargs)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__enter__":
            return self.enter(tr)
        if name == "__exit__":
            return self.exit_(tr, args)
        return super().call_method(tr, name, args, kwargs)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_function(self.cls)
        for arg in (*self.args, *self.kwargs.values()):
            codegen.load_const(arg)
        codegen.call(len(self.args) + len(self.kwargs), tuple(self.kwargs))


class DecoratedValue(Value):
    """A function decorated, in the trace, with one of torch's context managers."""

    __slots__ = ("context", "function")

    def __init__(self, context: TorchContextValue, function: Value) -> None:
        super().__init__()
        self.context = context
        self.function = function

    def python_type(self) -> type:
        return self.function.python_type()

    def getattr_(self, tr: Tracer, name: str) -> Value:
        return self.function.getattr_(tr, name)

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return call_inside(tr, self.context.again(), lambda: tr.call(self.function, args, kwargs))

    def referents(self) -> tuple[Value, ...]:
        return (self.context, self.function)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_callable(lambda: codegen(self.context))
        codegen(self.function)
        codegen.call(1)


def call_inside(tr: Tracer, context: TorchContextValue, body: Callable[[], Value]) -> Value:
    """Run `body` inside the context; leave it too when the body raises."""
    context.enter(tr)
    try:
        return body()
    finally:
        none = tr.constant(None)
        context.exit_(tr, (none, none, none))


class GradModeValue(TorchContextValue):
    """`no_grad`, `enable_grad` and `set_grad_enabled`."""

    __slots__ = ()

    def mode(self) -> bool:
        """The mode inside."""
        return GRAD_MODES[self.cls](self.args, self.kwargs)

    def enter(self, tr: Tracer) -> Value:
        self.saved.append(torch.is_grad_enabled())
        tr.emit_state(unstable.set_grad_enabled, self.mode())
        return tr.constant(None)

    def exit_(self, tr: Tracer, args: Args) -> Value:
        tr.emit_state(unstable.set_grad_enabled, self.saved.pop())
        return tr.constant(None)


class SetGradEnabledValue(GradModeValue):
    """`set_grad_enabled(mode)`: acts when it is made, and restores the former mode at the end of a `with` block."""

    __slots__ = ("former",)

    def act(self, tr: Tracer) -> SetGradEnabledValue:
        """Set the mode, as the constructor does."""
        self.former = torch.is_grad_enabled()
        tr.emit_state(unstable.set_grad_enabled, self.mode())
        return self

    def enter(self, tr: Tracer) -> Value:
        tr.emit_state(unstable.set_grad_enabled, self.mode())
        return tr.constant(None)

    def exit_(self, tr: Tracer, args: Args) -> Value:
        tr.emit_state(unstable.set_grad_enabled, self.former)
        return tr.constant(None)

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        tr.emit_state(unstable.set_grad_enabled, self.former)
        return super().call(tr, args, kwargs)

    def again(self) -> TorchContextValue:
        fresh = SetGradEnabledValue(self.cls, self.args, self.kwargs)
        fresh.former = torch.is_grad_enabled()
        return fresh


def _first(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return bool(args[0] if args else kwargs["mode"])


GRAD_MODES: dict[type, Callable[[Sequence[Any], dict[str, Any]], bool]] = {
    torch.no_grad: lambda args, kwargs: False,
    torch.enable_grad: lambda args, kwargs: True,
    torch.set_grad_enabled: _first,
}


#: Attributes of an autocast context, in the order of the arguments of `_enter_autocast`.
AUTOCAST_SETTINGS = ("device", "fast_dtype", "_enabled", "_cache_enabled")


class AutocastValue(TorchContextValue):
    """`autocast(device_type, dtype, enabled, cache_enabled)`."""

    __slots__ = ()

    def enter(self, tr: Tracer) -> Value:
        made = self.cls(*self.args, **self.kwargs)
        settings = [getattr(made, name) for name in AUTOCAST_SETTINGS]
        self.saved.append(tr.emit_state(unstable.enter_autocast, *settings))
        return self

    def exit_(self, tr: Tracer, args: Args) -> Value:
        tr.emit_state(unstable.exit_autocast, self.saved.pop())
        return tr.constant(None)


def _grad_mode(cls: type, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.no_grad()`, `@torch.no_grad()` and `torch.no_grad(function)`."""
    context = GradModeValue(cls, (), {})
    return DecoratedValue(context, args[0]) if args else context


for _mode in (torch.no_grad, torch.enable_grad):
    handles(_mode)(functools.partial(_grad_mode, _mode))


@handles(torch.set_grad_enabled)
def make_set_grad_enabled(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.set_grad_enabled(mode)`, as a call or as a context manager."""
    positional, named = plain_arguments(args, kwargs)
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(*positional, **named)  # for its errors
    except TypeError as error:
        raise_like(tr, error)
    finally:
        unstable.set_grad_enabled(before)
    return SetGradEnabledValue(torch.set_grad_enabled, positional, named).act(tr)


@handles(autocast_mode.autocast.__enter__)
def enter_existing_autocast(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`autocast.__enter__(context)` of an existing context, as in a decorated function."""
    context = args[0]
    if isinstance(context, TorchContextValue):
        return context.enter(tr)
    settings = [context.getattr_(tr, name).as_constant() for name in AUTOCAST_SETTINGS]
    opened = tr.emit_state(unstable.enter_autocast, *settings)
    tr.facts.entered_autocast.setdefault(id(context), []).append(opened)
    return context


@handles(autocast_mode.autocast.__exit__)
def exit_existing_autocast(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`autocast.__exit__(context, ...)`."""
    if isinstance(args[0], TorchContextValue):
        return args[0].exit_(tr, args[1:])
    opened = tr.facts.entered_autocast.get(id(args[0]))
    if not opened:
        raise GraphBreak(AUTOCAST_INSIDE, "left without having been entered")
    tr.emit_state(unstable.exit_autocast, opened.pop())
    return tr.constant(False)


def _called_by_name(name: str, function: Any) -> None:
    """`type(context).__enter__(context)`, as called by `ExitStack`. For an existing context it is interpreted."""

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if args and isinstance(args[0], TorchContextValue):
            return args[0].call_method(tr, name, args[1:], kwargs)
        known = tr.constant(function)
        assert isinstance(known, FunctionValue)
        return known.interpret(tr, args, kwargs)

    handles(function)(handler)


for _path in ("no_grad", "enable_grad", "set_grad_enabled", "autograd.profiler.record_function"):
    for _name in ("__enter__", "__exit__"):
        _called_by_name(_name, of_torch(f"torch.{_path}.{_name}"))


class NoEffectValue(TorchContextValue):
    """A context manager that only annotates profiles, without effect on the graph."""

    __slots__ = ()

    def enter(self, tr: Tracer) -> Value:
        return self

    def exit_(self, tr: Tracer, args: Args) -> Value:
        return tr.constant(None)


@handles(torch.autograd.profiler.record_function)
def make_no_effect(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`record_function(name)`."""
    return NoEffectValue(torch.autograd.profiler.record_function, *plain_arguments(args, kwargs))


@c_method("__enter__", torch.device)
@c_method("__exit__", torch.device)
def break_at_device(tr: Tracer, self: Value, args: Args, kwargs: Kwargs) -> Value:
    """`with torch.device(...)` breaks."""
    raise GraphBreak(DEVICE_INSIDE)


@handles(torch.inference_mode)
def make_inference_mode(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.inference_mode()` breaks: it makes tensors of another kind."""
    raise GraphBreak(INFERENCE_MODE)


def _autocast(cls: type, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.autocast(...)` with constant arguments."""
    if not all_constant(args, kwargs):
        raise GraphBreak(AUTOCAST_INSIDE, cls.__qualname__)
    return AutocastValue(cls, *plain_arguments(args, kwargs))


for _cls in (torch.autocast, torch.cuda.amp.autocast_mode.autocast, torch.cpu.amp.autocast_mode.autocast):
    handles(_cls)(functools.partial(_autocast, _cls))
