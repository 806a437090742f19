"""Kinds of targets of `compile()`: every callable but classes."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from framesmith_dynamo import why_not_compiled

#: flag of `code.co_flags` -> what such a function is called; their frames are resumed, not called.
RESUMED: dict[int, str] = {
    inspect.CO_GENERATOR: "a generator function",
    inspect.CO_COROUTINE: "a coroutine function",
    inspect.CO_ASYNC_GENERATOR: "an async generator function",
}
ADVICE = "compile the function that it calls for its tensor work instead"


def check_target(target: object) -> Callable[..., Any]:
    """`target` when it can be compiled. Raises TypeError saying what it is, and what to compile instead."""
    if not callable(target):
        raise TypeError(f"framesmith.compile takes a function, a module or another callable; got {describe(target)}")
    if isinstance(target, type):
        raise TypeError(
            f"framesmith.compile cannot compile the class {target.__qualname__}: compile its instances or methods"
        )
    return target


def why_never(target: Callable[..., Any]) -> str | None:
    """Why no call of this can be compiled, or None: TorchScript has, or its frame is resumed and not called."""
    if isinstance(target, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
        return "TorchScript has compiled it: compile the function or module that it was made from"
    function = python_function(target)
    if function is None:
        return None
    kinds = (name for flag, name in RESUMED.items() if function.__code__.co_flags & flag)
    kind = next(kinds, None)
    return None if kind is None else f"it is {kind}: {ADVICE}"


def has_frame_to_compile(function: types.FunctionType) -> bool:
    """Whether frames of the function itself are compiled; those of libraries are not, whoever calls them."""
    return why_not_compiled(function.__code__, function.__globals__) is None


def python_function(target: Callable[..., Any]) -> types.FunctionType | None:
    """The Python function that a call of `target` runs first, or None."""
    if isinstance(target, types.FunctionType):
        return target
    if isinstance(target, types.MethodType):
        return python_function(target.__func__)
    call = getattr(type(target), "__call__", None)  # noqa: B004  (the function itself is wanted)
    return call if isinstance(call, types.FunctionType) else None


def describe(target: object) -> str:
    """A value and its type, as a message names it."""
    if isinstance(target, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        return f"the builtin {getattr(target, '__qualname__', target)!s}"
    return f"{target!r} of type {type(target).__name__}"


def name_of(target: Callable[..., Any]) -> str:
    """A short name for messages and reports."""
    if isinstance(target, functools.partial):
        return f"partial of {name_of(target.func)}"
    return getattr(target, "__qualname__", type(target).__qualname__)
