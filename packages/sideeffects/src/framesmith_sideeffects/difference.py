"""How two states of a journal differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from framesmith_sideeffects.changes import Change
from framesmith_sideeffects.protocol import TracedValue

Key = tuple[object, ...]


class NotRestorable(TypeError):
    """A container has changed since a clone was made, and does not keep what it held then."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`noted`: changes that are new or other than before, or come later; `gone`: those that are noted no more.

    `holders`: the values known then that hold something else now. False when both states do the same.
    """

    noted: list[Change]
    gone: list[Change]
    holders: list[TracedValue]

    def __bool__(self) -> bool:
        return bool(self.noted or self.gone or self.holders)


def moved(older: Mapping[Key, Change], newer: Mapping[Key, Change]) -> Iterator[Key]:
    """The keys that both have and that come later in the newer one: a change made again is the last."""
    places = {key: place for place, key in enumerate(older)}
    last = -1
    for key in newer:
        place = places.get(key, last)
        if place < last:
            yield key
        last = max(last, place)
