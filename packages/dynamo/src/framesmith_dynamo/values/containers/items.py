"""Items of existing containers: wrapped, and so guarded, only when the trace reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import CONSTANT_TYPES
from framesmith_guards import ItemSource
from framesmith_sideeffects import UsedAcrossCall

if TYPE_CHECKING:
    from framesmith_guards import Source

_SIMPLE = frozenset(CONSTANT_TYPES)


def _is_simple(obj: Any) -> bool:
    return type(obj) in _SIMPLE or (type(obj) is tuple and all(map(_is_simple, obj)))


class LazyItem(Value):
    """An item not yet read. It never leaves its container: `resolved` replaces it; pushing loads its source.

    Its source, `step(base, key)`, is created on demand: a container may have many items.
    """

    __slots__ = ("base", "key", "obj", "step", "tr")

    def __init__(self, tr: Tracer, obj: Any, base: Source, key: Any, step: Callable[..., Source] = ItemSource) -> None:
        self.mutation = None
        self.tr = tr
        self.obj = obj
        self.base = base
        self.key = key
        self.step = step

    @property
    def source(self) -> Source:  # type: ignore[override]
        """The source of the item in compiled code."""
        return self.step(self.base, self.key)

    def python_type(self) -> type:
        return type(self.obj)

    def can_be_constant(self) -> bool:
        return _is_simple(self.obj)

    def read(self) -> Value:
        """Return the value of the item."""
        return self.tr.wrap(self.obj, self.source)


class HandedItem(LazyItem):
    """An item of a dict that a call changes, which is made after the graph: the trace does not know it any more."""

    __slots__ = ()

    def read(self) -> Value:
        raise UsedAcrossCall(f"the item {self.key!r} of {self.base.name}")


def resolved(item: Value) -> Value:
    """Return the item itself, wrapped now if it was not."""
    return item.read() if isinstance(item, LazyItem) else item
