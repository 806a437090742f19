"""What calls mean that the tracer answers itself: of functions, in Python or C, and of classes, by the object called.

What is not in the table is interpreted when it is written in Python, and breaks the graph when it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from framesmith_dynamo.breaks import BreakKind, GraphBreak
from framesmith_dynamo.registry import register
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.constants.constant import fold
from framesmith_dynamo.values.errors import refuse, takes
from framesmith_dynamo.values.lookup import type_lookup

Handler = Callable[[Tracer, Args, Kwargs], Value]

HANDLERS: dict[Any, Handler] = {}


def handles(*callables: Any) -> Callable[[Handler], Handler]:
    """Register what calling functions or classes means. Raises ValueError for one that has a handler already."""
    return register(HANDLERS, *callables)


def find_handler(function: Any) -> Handler | None:
    """The handler of a callable, or None."""
    return HANDLERS.get(function)


# Handlers of a kind


def breaking(kind: BreakKind, name: str) -> Handler:
    """The handler that ends the graph."""

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreak(kind, f"{name}({', '.join(arg.describe() for arg in args)})")

    return handler


def answering(answer: Any) -> Handler:
    """The handler that gives a constant whatever the arguments are."""
    return lambda tr, args, kwargs: tr.constant(answer)


def folding(function: Callable[..., Any]) -> Handler:
    """The handler that calls a pure function of constants, or of guarded state, now."""
    return lambda tr, args, kwargs: fold(tr, function, args, kwargs)


def inlining(function: Callable[..., Any], polyfill: Callable[..., Any], at: int = 0, *methods: str) -> Handler:
    """The handler that interprets a Python function in place of one in C.

    `methods`: the argument in position `at` must have one of these, or is refused in the C function's own words.
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
