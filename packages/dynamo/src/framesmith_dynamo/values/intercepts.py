"""Functions, in Python or C, that the tracer answers itself instead of inlining: a registry by function object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

Intercept = Callable[[Tracer, Args, Kwargs], Value]
INTERCEPTS: dict[int, tuple[Any, Intercept]] = {}


def intercepts(*functions: Any) -> Callable[[Intercept], Intercept]:
    """Register what a call of a function means. Raises ValueError when one has an intercept already."""

    def register(intercept: Intercept) -> Intercept:
        for function in functions:
            if id(function) in INTERCEPTS:
                raise ValueError(f"{function.__qualname__} has an intercept already")
            INTERCEPTS[id(function)] = (function, intercept)
        return intercept

    return register


def find_intercept(function: Any) -> Intercept | None:
    """The registered meaning of a function, or None."""
    row = INTERCEPTS.get(id(function))
    return row[1] if row is not None else None
