"""Tables from Python objects to values: of objects found at a source (`wraps_...`), of objects made in the trace
(`builds_...`).

The exact type's row comes first, then the families in order. A wrapper adds the guards that its value relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.registry import register
from framesmith_dynamo.values.base import Tracer, Value

if TYPE_CHECKING:
    from framesmith_guards import Source

UNKNOWN_RESULT = register_break(
    "unknown-result",
    what="a folded call returned an object the tracer has no value for",
    why="no row of the build table accepts its type",
    hint="call it outside the compiled function and pass its result as builtin data",
)

Wrapper = Callable[[Tracer, Any, "Source"], Value]
Builder = Callable[[Tracer, Any], Value]
Predicate = Callable[[Any], bool]

WRAPPERS: dict[type, Wrapper] = {}
#: (priority, predicate, wrapper); lower priorities come first.
WRAPPER_FAMILIES: list[tuple[int, Predicate, Wrapper]] = []
BUILDERS: dict[type, Builder] = {}
BUILDER_FAMILIES: list[tuple[Predicate, Builder]] = []


def wraps_type(*types: type) -> Callable[[Wrapper], Wrapper]:
    """Register a wrapper for objects of exactly these types. Raises ValueError for a type already taken."""
    return register(WRAPPERS, *types)


def wraps_family(accepts: Predicate, *, priority: int) -> Callable[[Wrapper], Wrapper]:
    """Register a wrapper for objects that a predicate accepts; it must not run user code (no isinstance on proxies)."""

    def enter(wrapper: Wrapper) -> Wrapper:
        WRAPPER_FAMILIES.append((priority, accepts, wrapper))
        WRAPPER_FAMILIES.sort(key=lambda row: row[0])
        return wrapper

    return enter


def builds_type(*types: type) -> Callable[[Builder], Builder]:
    """Register the builder of values for exact types made while tracing. Raises ValueError for a type taken."""
    return register(BUILDERS, *types)


def builds_family(accepts: Predicate) -> Callable[[Builder], Builder]:
    """Register the builder of values for objects made while tracing that a predicate accepts."""

    def enter(builder: Builder) -> Builder:
        BUILDER_FAMILIES.append((accepts, builder))
        return builder

    return enter


def find_wrapper(obj: object) -> Wrapper | None:
    """Return the registered wrapper for an object, or None."""
    found = WRAPPERS.get(type(obj))
    return found or next((wrapper for _, accepts, wrapper in WRAPPER_FAMILIES if accepts(obj)), None)


def build(tr: Tracer, obj: Any) -> Value:
    """Return the value of an object made while tracing. Mutable containers are new objects. A Value passes through."""
    if isinstance(obj, Value):
        return obj
    builder = BUILDERS.get(type(obj)) or next((row for accepts, row in BUILDER_FAMILIES if accepts(obj)), None)
    if builder is None:
        raise GraphBreak(UNKNOWN_RESULT, f"{type(obj).__module__}.{type(obj).__qualname__}")
    return builder(tr, obj)
