"""What `compile()` returns: a function like the one given, or a view of the module given, called compiled."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from framesmith_frames import CompiledFunction, FrameCallback, activated

#: Gives a context within which this thread's frames are compiled.
Activate = Callable[[], AbstractContextManager[Any]]
#: Compiles another module as this one was.
Restore = Callable[[torch.nn.Module], torch.nn.Module]


def compile_callable(target: Callable[..., Any], callback: FrameCallback) -> Callable[..., Any]:
    """A callable like `target` whose Python function dispatches natively to its entries.

    Functions keep name, signature, method binding and pickling; methods and partials keep what they bind.
    """
    if isinstance(target, types.FunctionType):
        return CompiledFunction(target, callback)
    if isinstance(target, types.MethodType):
        return types.MethodType(compile_callable(target.__func__, callback), target.__self__)
    if isinstance(target, functools.partial):
        return functools.partial(compile_callable(target.func, callback), *target.args, **target.keywords)
    return compile_object(target, callback)


def compile_object(target: Callable[..., Any], callback: FrameCallback) -> Callable[..., Any]:
    """A function that calls an object of a class with `__call__` while the frame hook is active."""

    @functools.wraps(target, updated=())
    def compiled(*args: Any, **kwargs: Any) -> Any:
        with activated(callback):
            return target(*args, **kwargs)

    return compiled


class CompiledModule(torch.nn.Module):
    """A compiled module shares the attributes of the one it was made from: a change to either shows in the other.

    Its class is derived from the original's: `isinstance` holds, `state_dict` has the same keys, and methods are
    inherited. Calling it, and `forward`, run the original with the frame hook active.
    """

    _framesmith_original: torch.nn.Module
    _framesmith_activate: Activate
    _framesmith_restore: Restore

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._framesmith_activate():
            return self._framesmith_original(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._framesmith_activate():
            return self._framesmith_original.forward(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self._framesmith_restore, (self._framesmith_original,)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        return self._framesmith_restore(copy.deepcopy(self._framesmith_original, memo))


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
    """A class derived from both `CompiledModule` and `original`, under the original's name."""
    names = ("__module__", "__qualname__", "__doc__")
    namespace: dict[str, Any] = {name: getattr(original, name) for name in names}
    namespace["__slots__"] = ("_framesmith_activate", "_framesmith_original", "_framesmith_restore")
    return types.new_class(original.__name__, (CompiledModule, original), exec_body=lambda ns: ns.update(namespace))


def compile_module(module: torch.nn.Module, activate: Activate, restore: Restore) -> torch.nn.Module:
    """A compiled view of `module`."""
    cls = compiled_class(type(module))
    compiled = cls.__new__(cls)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    object.__setattr__(compiled, "_framesmith_original", module)
    object.__setattr__(compiled, "_framesmith_activate", activate)
    object.__setattr__(compiled, "_framesmith_restore", restore)
    return compiled


def original_of(target: Any) -> Any:
    """What a compiled function or module was made from; anything else as it is."""
    if isinstance(target, CompiledFunction):
        return target.__wrapped__
    return target._framesmith_original if isinstance(target, CompiledModule) else target
