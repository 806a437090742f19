"""Handlers of calls of functions, in Python or C, and of classes, by the object called.

Other callables are interpreted if they are written in Python, and break the graph otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from framesmith_dynamo.breaks import BreakKind, GraphBreak
from framesmith_dynamo.registry import register
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.constants.constant import fold
from framesmith_dynamo.values.errors import refuse, takes
from framesmith_dynamo.values.lookup.static import type_lookup

Handler = Callable[[Tracer, Args, Kwargs], Value]

CALL_HANDLERS: dict[Any, Handler] = {}


def handles(*callables: Any) -> Callable[[Handler], Handler]:
    """Register the handler of calls of functions or classes. Raises ValueError for one that has a handler already."""
    return register(CALL_HANDLERS, *callables)


def find_handler(function: Any) -> Handler | None:
    """Return the handler of a callable, or None."""
    return CALL_HANDLERS.get(function)


# Common handlers


def breaking(kind: BreakKind, name: str) -> Handler:
    """Return a handler that breaks the graph."""

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreak(kind, f"{name}({', '.join(arg.describe() for arg in args)})")

    return handler


def answering(answer: Any) -> Handler:
    """Return a handler that returns a constant for all arguments."""
    return lambda tr, args, kwargs: tr.constant(answer)


def folding(function: Callable[..., Any]) -> Handler:
    """Return a handler that calls a pure function of constants, or of guarded state, now."""
    return lambda tr, args, kwargs: fold(tr, function, args, kwargs)


def inlining(function: Callable[..., Any], polyfill: Callable[..., Any], at: int = 0, *methods: str) -> Handler:
    """Return a handler that interprets a Python function in place of one in C.

    `methods`: the argument in position `at` must have one of these; otherwise the C function's own error is raised.
    """

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        given = args[at].python_type() if len(args) > at else object
        lacks = methods and len(args) > at and all(type_lookup(given, name) is None for name in methods)
        if lacks or not takes(polyfill, *args, **kwargs):
            refuse(tr, function, args, kwargs)
        return tr.call(tr.constant(polyfill), args, kwargs)

    return handler


# Arguments


def one(tr: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    """Return the only argument of a call; raises the program's TypeError otherwise."""
    return between(tr, function, args, kwargs, 1, 1)[0]


def between(tr: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs, least: int, most: int) -> Args:
    """Return the positional arguments of a call without keywords; raises the program's TypeError for a wrong number."""
    if kwargs or not least <= len(args) <= most:
        refuse(tr, function, args, kwargs)
    return args


def named(
    tr: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs, names: Sequence[str], least: int
) -> dict[str, Value]:
    """Return the arguments of a call by name; raises the program's TypeError when they do not fit."""
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    repeated = set(names[: len(args)]) & set(kwargs)
    if repeated or set(given) - set(names) or len(args) > len(names) or not set(names[:least]) <= set(given):
        refuse(tr, function, args, kwargs)
    return given
