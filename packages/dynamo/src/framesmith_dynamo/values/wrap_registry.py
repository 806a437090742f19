"""Tables from Python objects to values: of objects found at a source (`wraps_...`), of objects made in the trace
(`builds_...`).

The exact type's row comes first, then the families in the order of `Family`. A wrapper adds the guards that its value
relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.registry import Row, register
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


class Family(IntEnum):
    """Families of types, in the order in which their predicates are tried: some accept the same objects."""

    TENSOR = auto()
    BUFFER = auto()
    OPERATOR = auto()
    ENUM = auto()  # before NAMED_TUPLE, OBJECT: members may be of these types, too
    PYTHON_MODULE = auto()
    NAMED_TUPLE = auto()
    CLASS = auto()
    MODULE = auto()  # before CONTAINER_OBJECT, OBJECT
    CONTAINER_OBJECT = auto()
    OBJECT = auto()
    BUILTIN = auto()


WRAPPERS: dict[type, Wrapper] = {}
BUILDERS: dict[type, Builder] = {}
WRAPPER_FAMILIES: dict[Family, tuple[Predicate, Wrapper]] = {}
BUILDER_FAMILIES: dict[Family, tuple[Predicate, Builder]] = {}


def wraps_type(*types: type) -> Callable[[Wrapper], Wrapper]:
    """Register a wrapper for objects of exactly these types. Raises ValueError for a type already taken."""
    return register(WRAPPERS, *types)


def wraps_family(family: Family, accepts: Predicate) -> Callable[[Wrapper], Wrapper]:
    """Register a wrapper for objects that a predicate accepts; it must not run user code (no isinstance on proxies)."""
    return _registers_family(WRAPPER_FAMILIES, family, accepts)


def builds_type(*types: type) -> Callable[[Builder], Builder]:
    """Register the builder of values for exact types made while tracing. Raises ValueError for a type taken."""
    return register(BUILDERS, *types)


def builds_family(family: Family, accepts: Predicate) -> Callable[[Builder], Builder]:
    """Register the builder of values for objects made while tracing that a predicate accepts."""
    return _registers_family(BUILDER_FAMILIES, family, accepts)


def _registers_family(
    table: dict[Family, tuple[Predicate, Row]], family: Family, accepts: Predicate
) -> Callable[[Row], Row]:
    def enter(row: Row) -> Row:
        register(table, family)((accepts, row))
        rows = sorted(table.items(), key=lambda entry: entry[0])
        table.clear()
        table.update(rows)
        return row

    return enter


def find_wrapper(obj: object) -> Wrapper | None:
    """Return the registered wrapper for an object, or None."""
    return WRAPPERS.get(type(obj)) or _of_family(WRAPPER_FAMILIES, obj)


def _of_family(table: dict[Family, tuple[Predicate, Row]], obj: object) -> Row | None:
    return next((row for accepts, row in table.values() if accepts(obj)), None)


def build(tr: Tracer, obj: Any) -> Value:
    """Return the value of an object made while tracing. Mutable containers are new objects. A Value passes through."""
    if isinstance(obj, Value):
        return obj
    builder = BUILDERS.get(type(obj)) or _of_family(BUILDER_FAMILIES, obj)
    if builder is None:
        raise GraphBreak(UNKNOWN_RESULT, f"{type(obj).__module__}.{type(obj).__qualname__}")
    return builder(tr, obj)
