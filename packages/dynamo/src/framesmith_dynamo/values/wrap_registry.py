"""Registries of `wrap`: from a Python object met at a source to the value that stands for it.

First the exact type's row, then the protocols in order of priority. A row's function installs the guards the value
relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Tracer, Value

if TYPE_CHECKING:
    from framesmith_guards import Source

Wrapper = Callable[[Tracer, Any, "Source"], Value]
Predicate = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A family of types told by a predicate; lower priorities are asked first."""

    priority: int
    name: str
    accepts: Predicate
    wrapper: Wrapper


BY_TYPE: dict[type, Wrapper] = {}
PROTOCOLS: list[Protocol] = []


def wraps_type(*types: type) -> Callable[[Wrapper], Wrapper]:
    """Register a wrapper for objects whose type is exactly one of `types`. Raises ValueError for a type already
    taken.
    """

    def register(wrapper: Wrapper) -> Wrapper:
        for cls in types:
            if cls in BY_TYPE:
                raise ValueError(f"{cls.__qualname__} has a wrapper already: {BY_TYPE[cls].__qualname__}")
            BY_TYPE[cls] = wrapper
        return wrapper

    return register


def wraps_protocol(accepts: Predicate, *, priority: int) -> Callable[[Wrapper], Wrapper]:
    """Register a wrapper for objects a predicate accepts. The predicate must not run user code (no isinstance on
    proxies).
    """

    def register(wrapper: Wrapper) -> Wrapper:
        PROTOCOLS.append(Protocol(priority, wrapper.__qualname__, accepts, wrapper))
        PROTOCOLS.sort(key=lambda row: row.priority)
        return wrapper

    return register


def find_wrapper(obj: object) -> Wrapper | None:
    """The registered wrapper for an object, or None."""
    found = BY_TYPE.get(type(obj))
    if found is not None:
        return found
    return next((row.wrapper for row in PROTOCOLS if row.accepts(obj)), None)
