"""Results of `compile()`: a compiled function, or a compiled view of a module."""

from __future__ import annotations

import copy
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from framesmith.targets.callers import called_by, caller_of
from framesmith.targets.kinds import has_frame_to_compile, name_of, python_function, why_never
from framesmith.targets.module_calls import call_of, is_module_call
from framesmith_frames import CompiledFunction, FrameCallback
from framesmith_frames.pickling import restore

#: Compiles another module as this one was.
Restore = Callable[[torch.nn.Module], torch.nn.Module]


def compile_callable(target: Callable[..., Any], callback: FrameCallback) -> Callable[..., Any]:
    """A callable like `target` whose Python function dispatches natively to its entries.

    Functions keep name, signature, method binding and pickling; methods and partials keep their bound arguments. A
    callable without a frame to compile is called by a function that has one. A target that cannot be compiled at all
    (see `why_never`) is returned after a warning; EagerNotAllowed is raised where calls may not run eagerly.
    """
    target = original_of(target)
    never = why_never(target)
    if never is not None:
        if isinstance(callback, WatchesEager):
            callback.never_compiled(name_of(target), never)
        return target
    if isinstance(target, torch.nn.Module):
        return called_compiled(target, callback)
    module = module_called_by(target)
    if module is not None:
        return called_compiled(module, callback)
    if isinstance(target, types.MethodType):
        return types.MethodType(compile_callable(target.__func__, callback), target.__self__)
    if type(target) is functools.partial:
        return compile_partial(target, callback)
    function = python_function(target)
    if function is not None and has_frame_to_compile(function):
        compiled = compiled_function(function, callback)
        return compiled if function is target else types.MethodType(compiled, target)
    caller = compiled_function(caller_of(target, name_of(target)), callback)
    caller.__reduce_ex__ = functools.partial(reduced, target)  # type: ignore[method-assign]
    return caller


def module_called_by(target: Callable[..., Any]) -> torch.nn.Module | None:
    """The module whose `__call__` this is, bound; or None."""
    owner = getattr(target, "__self__", None)
    if isinstance(target, types.MethodType) and isinstance(owner, torch.nn.Module):
        return owner if target.__func__ is type(owner).__call__ else None
    return None


def compile_partial(target: functools.partial[Any], callback: FrameCallback) -> functools.partial[Any]:
    """A partial object with the same arguments and attributes, of the compiled callable."""
    made = functools.partial(compile_callable(target.func, callback), *target.args, **target.keywords)
    vars(made).update(vars(target))
    return made


def reduced(target: Callable[..., Any], protocol: object) -> tuple[Any, ...]:
    """Pickle a compiled callable, whose function is none of the program's, as the callable."""
    return restore, (target,)


@runtime_checkable
class WatchesEager(Protocol):
    """A callback with a method for calls of compiled functions that run eagerly; see `CompiledFunction`."""

    @property
    def refuses(self) -> bool: ...

    def on_eager(self, function: types.FunctionType, reason: str) -> None: ...

    def never_compiled(self, name: str, reason: str) -> None: ...


def compiled_function(function: types.FunctionType, callback: FrameCallback) -> CompiledFunction[..., Any]:
    """The function, compiled by the callback."""
    if isinstance(callback, WatchesEager):
        return CompiledFunction(function, callback, on_eager=callback.on_eager, refuses=callback.refuses)
    return CompiledFunction(function, callback)


class InstanceSignature:
    """The signature of an instance's call, which `inspect` cannot find where `__call__` is no function."""

    def __get__(self, instance: object, owner: type | None = None) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")  # the class is called as its `__init__` says
        return inspect.signature(torch.nn.Module.__call__.__get__(instance))


class CompiledModule(torch.nn.Module):
    """A compiled module shares the attributes of the one it was made from: a change to either shows in the other.

    Its class is derived from the original's: `isinstance` holds, `state_dict` has the same keys, and methods are
    inherited. Calling it calls the original, hooks and all, through a compiled function; `forward` is the original's,
    compiled.
    """

    _framesmith_original: torch.nn.Module
    _framesmith_call: Callable[..., Any]
    _framesmith_callback: FrameCallback
    _framesmith_forward: tuple[Callable[..., Any], Callable[..., Any]] | None
    _framesmith_restore: Restore
    __signature__ = InstanceSignature()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self._framesmith_restore, (self._framesmith_original,)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        return self._framesmith_restore(copy.deepcopy(self._framesmith_original, memo))


class CompiledGraphModule(CompiledModule):
    """A compiled `fx.GraphModule`: `recompile()` changes a class, which has to be the original's."""

    def recompile(self) -> object:
        return self._framesmith_original.recompile()  # type: ignore[operator]


#: The fields of `CompiledModule` itself; its other attributes are the original's.
SLOTS = tuple(CompiledModule.__annotations__)

#: original class -> its compiled class, which dies with its last instance
_classes: weakref.WeakKeyDictionary[type[torch.nn.Module], weakref.ref[type[CompiledModule]]]
_classes = weakref.WeakKeyDictionary()


def compiled_class(original: type[torch.nn.Module]) -> type[CompiledModule]:
    """The class of compiled modules of type `original`."""
    known = _classes.get(original)
    cls = known() if known is not None else None
    if cls is None:
        cls = make_class(original)
        _classes[original] = weakref.ref(cls)
    return cls


def make_class(original: type[torch.nn.Module]) -> type[CompiledModule]:
    """A class derived from both `CompiledModule` and `original`, under the original's name.

    Its `__call__` is the slot that holds an instance's compiled function: no Python code runs on the way there.
    """

    @functools.wraps(original.forward)
    def forward(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        return compiled_forward(self)(*args, **kwargs)

    names = ("__module__", "__qualname__", "__doc__")
    namespace: dict[str, Any] = {name: getattr(original, name) for name in names}
    namespace["__slots__"] = SLOTS
    namespace["forward"] = forward
    kind = CompiledGraphModule if issubclass(original, torch.fx.GraphModule) else CompiledModule
    cls = types.new_class(original.__name__, (kind, original), exec_body=lambda ns: ns.update(namespace))
    cls.__call__ = cls.__dict__["_framesmith_call"]  # type: ignore[method-assign]
    return cls


def compile_module(module: torch.nn.Module, callback: FrameCallback, restore: Restore) -> torch.nn.Module:
    """A compiled view of `module`."""
    cls = compiled_class(type(module))
    compiled = _bare(cls)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    object.__setattr__(compiled, "_framesmith_original", module)
    object.__setattr__(compiled, "_framesmith_call", called_compiled(module, callback))
    object.__setattr__(compiled, "_framesmith_callback", callback)
    object.__setattr__(compiled, "_framesmith_forward", None)
    object.__setattr__(compiled, "_framesmith_restore", restore)
    return compiled


def compiled_forward(view: CompiledModule) -> Callable[..., Any]:
    """The original's `forward`, compiled; made again only where the original has another one than at the last call."""
    forward, known = view._framesmith_original.forward, view._framesmith_forward
    if known is None or not _is_same_callable(forward, known[0]):
        known = forward, compile_callable(forward, view._framesmith_callback)
        object.__setattr__(view, "_framesmith_forward", known)
    return known[1]


def _is_same_callable(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    if isinstance(one, types.MethodType) and isinstance(other, types.MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    return one is other


def called_compiled(module: torch.nn.Module, callback: FrameCallback) -> Callable[..., Any]:
    """Return the bound function that a call of a compiled view of `module` runs."""
    return types.MethodType(compiled_function(call_of(module), callback), module)


def _bare(cls: type[CompiledModule]) -> CompiledModule:
    """An instance, made without what a `__new__` written in Python does: a view is no new module.

    `fx.GraphModule` makes a class for each, others may take arguments or count.
    """
    inherited = (vars(base).get("__new__") for base in cls.__mro__)
    native = next(new for new in inherited if isinstance(new, types.BuiltinMethodType))
    made: CompiledModule = native(cls)
    return made


def original_of(target: Any) -> Any:
    """Return the original of a compiled function, method or module; other objects unchanged."""
    if isinstance(target, CompiledFunction):
        return called_by(target.__wrapped__) or target.__wrapped__
    if isinstance(target, types.MethodType) and isinstance(target.__func__, CompiledFunction):
        function = original_of(target.__func__)
        is_module = isinstance(function, types.FunctionType) and is_module_call(function.__code__)
        return target.__self__ if is_module else types.MethodType(function, target.__self__)
    if isinstance(target, types.MethodType) and isinstance(target.__self__, CompiledModule):
        forward = vars(type(target.__self__)).get("forward")
        return target.__self__._framesmith_original.forward if target.__func__ is forward else target
    return target._framesmith_original if isinstance(target, CompiledModule) else target


def callback_of(target: Any) -> FrameCallback | None:
    """Return the frame callback of a compiled function, method or module; None for other objects."""
    if isinstance(target, types.MethodType):
        target = target.__func__
    if isinstance(target, CompiledFunction):
        return target.callback
    return target._framesmith_callback if isinstance(target, CompiledModule) else None
