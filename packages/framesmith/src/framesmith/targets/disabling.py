"""`disable`: functions that run eagerly, whatever calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import framesmith_dynamo
import framesmith_frames
from framesmith.choices import check_bool
from framesmith.targets.kinds import describe, python_function


def disable(fn: Callable[..., Any] | None = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Return a function that always runs eagerly; as a decorator, with or without arguments.

    `recursive=False` skips only this function's own frame: functions that it calls are compiled. Raises TypeError
    for what cannot be called.
    """
    check_bool("recursive", recursive)
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if not callable(fn):
        raise TypeError(f"framesmith.disable takes a function or another callable; got {describe(fn)}")
    why = reason or "marked with framesmith.disable"
    return disable_all(fn, why) if recursive else disable_one(fn, why)


def disable_all(fn: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """A wrapper that switches the hook off while `fn` runs."""

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        with framesmith_frames.deactivated():
            return fn(*args, **kwargs)

    framesmith_dynamo.disable(cast(FunctionType, disabled).__code__, reason)
    return disabled


def disable_one(fn: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """`fn` itself, its own code marked so that the hook lets it pass."""
    function = python_function(fn)
    if function is None:
        raise TypeError(f"framesmith.disable(recursive=False) needs a Python function; got {describe(fn)}")
    framesmith_dynamo.disable(function.__code__, reason)
    return fn
