"""The table of callables written in C that the tracer answers itself, by the callable object.

Order of a call: a handler here, a polyfill (Python code inlined instead), folding of a pure function, else a break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.errors import refuse

Handler = Callable[[Tracer, Args, Kwargs], Value]

HANDLERS: dict[Any, Handler] = {}
#: Pure functions: with constant arguments they are called while tracing.
PURE: set[Any] = set()
#: Python functions inlined in place of a callable.
POLYFILLS: dict[Any, Callable[..., Any]] = {}
#: Polyfilled callables that refuse an argument in words of their own: its position, and methods of which it has one.
REQUIRED: dict[Any, tuple[int, tuple[str, ...]]] = {}


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


def one(tr: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    """The only argument of a call; the program's TypeError otherwise."""
    return between(tr, function, args, kwargs, 1, 1)[0]


def between(tr: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs, least: int, most: int) -> Args:
    """The positional arguments of a call that takes no keywords; the program's TypeError when their number is wrong."""
    if kwargs or not least <= len(args) <= most:
        refuse(tr, function, args, kwargs)
    return args


def named(
    tr: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs, names: Sequence[str], least: int
) -> dict[str, Value]:
    """The arguments of a call by name, positional ones too; the program's TypeError when they do not fit."""
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    repeated = set(names[: len(args)]) & set(kwargs)
    if repeated or set(given) - set(names) or len(args) > len(names) or not set(names[:least]) <= set(given):
        refuse(tr, function, args, kwargs)
    return given
