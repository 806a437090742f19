"""Keys and values as `dict.update` takes them: of a mapping, or of an iterable of pairs."""

from __future__ import annotations

from collections.abc import Iterator

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.errors import refused
from framesmith_dynamo.values.holders import type_lookup
from framesmith_dynamo.values.iteration.iterators import next_or_none


class Paired(Value):
    """A mapping whose items are known."""

    __slots__ = ()

    def pairs_now(self, tr: Tracer) -> list[tuple[Value, Value]]:
        """All items in order."""
        raise NotImplementedError


def pairs_of(tr: Tracer, other: Value, cls: type = dict) -> Iterator[tuple[Value, Value]]:
    """Key-value pairs from a mapping (anything with `keys`) or an iterable of pairs, one by one, for a `cls`."""
    if isinstance(other, Paired):
        yield from other.pairs_now(tr)
    elif type_lookup(other.python_type(), "keys") is not None:
        for key in other.call_method(tr, "keys", (), {}).unpack(tr):
            yield key, other.getitem(tr, key)
    else:
        iterator, position = other.iter_(tr), 0
        while (item := next_or_none(tr, iterator)) is not None:
            yield _pair(tr, cls, position, item)
            position += 1


def _pair(tr: Tracer, cls: type, position: int, item: Value) -> tuple[Value, Value]:
    own = item.python_type()
    parts = None
    if type_lookup(own, "__iter__") is not None or type_lookup(own, "__getitem__") is not None:
        parts = item.unpack(tr)
    if parts is None or len(parts) != 2:
        before = [(key, None) for key in range(position)]
        refused(tr, lambda obj: cls([*before, obj if parts is None else range(len(parts))]), item)
    return parts[0], parts[1]


def is_unhashable(key: Value) -> bool:
    """Whether a key is of a type without hashes."""
    found = type_lookup(key.python_type(), "__hash__")
    return found is not None and found.raw is None
