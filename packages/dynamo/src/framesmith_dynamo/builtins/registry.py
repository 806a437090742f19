"""The table of callables written in C that the tracer answers itself, by the callable object.

Order of a call: a handler here, a polyfill (Python code inlined instead), folding of a pure function, else a break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

Handler = Callable[[Tracer, Args, Kwargs], Value]

HANDLERS: dict[Any, Handler] = {}
#: Pure functions: with constant arguments they are called while tracing.
PURE: set[Any] = set()
#: Python functions inlined in place of a callable.
POLYFILLS: dict[Any, Callable[..., Any]] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register what calling a C function means. Raises ValueError when it has a handler already."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            if function in HANDLERS:
                raise ValueError(f"{function!r} has a handler already")
            HANDLERS[function] = handler
        return handler

    return register


def declare_pure(functions: Iterable[Any]) -> None:
    """Let calls of these functions fold when all arguments are constants."""
    PURE.update(functions)


def lookup_handler(function: Any) -> Handler | None:
    """The handler of a C callable, or None."""
    return HANDLERS.get(function)


def one(tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
    """The only argument of a call; the program's TypeError otherwise."""
    if len(args) != 1 or kwargs:
        tr.raise_(TypeError, f"{name}() takes exactly one argument ({len(args)} given)")
    return args[0]


def between(tr: Tracer, name: str, args: Args, kwargs: Kwargs, least: int, most: int) -> Args:
    """The positional arguments of a call that takes no keywords; the program's TypeError when their number is wrong."""
    if kwargs:
        tr.raise_(TypeError, f"{name}() takes no keyword arguments")
    if not least <= len(args) <= most:
        bound = f"at least {least}" if len(args) < least else f"at most {most}"
        tr.raise_(TypeError, f"{name} expected {bound} argument{'s' * (most != 1)}, got {len(args)}")
    return args
