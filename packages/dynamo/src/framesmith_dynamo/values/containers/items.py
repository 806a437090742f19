"""Items of containers that exist already: wrapped, and so guarded, only when the trace looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constant import CONSTANT_TYPES

if TYPE_CHECKING:
    from framesmith_guards import Source

_SIMPLE = frozenset({*CONSTANT_TYPES, tuple})


class LazyItem(Value):
    """An item nobody has looked at. It never leaves its container: `resolved` replaces it; pushing loads its source."""

    __slots__ = ("obj", "tr")

    def __init__(self, tr: Tracer, obj: Any, source: Source) -> None:
        super().__init__(source=source)
        self.tr = tr
        self.obj = obj

    def python_type(self) -> type:
        return type(self.obj)

    @property
    def may_be_constant(self) -> bool:
        """Whether it is worth wrapping to learn if it is a constant."""
        return type(self.obj) in _SIMPLE


def resolved(item: Value) -> Value:
    """The item itself, wrapped now if it was not."""
    if not isinstance(item, LazyItem):
        return item
    assert item.source is not None
    return item.tr.wrap(item.obj, item.source)
