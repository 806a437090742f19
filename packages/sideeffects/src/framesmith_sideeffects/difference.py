"""Differences between two states of a journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from framesmith_sideeffects.changes import Change
from framesmith_sideeffects.protocol import TracedValue

Key = tuple[object, ...]


class NotRestorable(TypeError):
    """A container has changed since a clone was made, and has no copy of its former contents."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`noted`: changes that are new, different or later in order; `gone`: changes of the older state alone.

    `holders`: values known in both states with different contents. False if a replay of both would be the same.
    """

    noted: list[Change]
    gone: list[Change]
    holders: list[TracedValue]

    def __bool__(self) -> bool:
        return bool(self.noted or self.gone or self.holders)


def moved(older: Mapping[Key, Change], newer: Mapping[Key, Change]) -> Iterator[Key]:
    """Keys of both whose order differs: a change made again moves to the end."""
    indices = {key: index for index, key in enumerate(older)}
    last = -1
    for key in newer:
        index = indices.get(key, last)
        if index < last:
            yield key
        last = max(last, index)
