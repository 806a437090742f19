"""Snapshots that a speculative trace can return to, and what was added since."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Checkpoint(Generic[K, V]):
    """An immutable snapshot of a context's entries."""

    entries: Mapping[K, V]

    @classmethod
    def of(cls, entries: Mapping[K, V]) -> Checkpoint[K, V]:
        """A snapshot of `entries` as they are now."""
        return cls(MappingProxyType(dict(entries)))

    def diff(self, other: Checkpoint[K, V]) -> frozenset[K] | None:
        """The keys that this has and `other` lacks, or holds another value for; None if there are none."""
        missing = object()
        added = frozenset(k for k, v in self.entries.items() if not _same(other.entries.get(k, missing), v))
        return added or None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self.diff(other) is None and other.diff(self) is None

    __hash__ = None  # type: ignore[assignment]


def _same(a: object, b: object) -> bool:
    # Entries are modules, settings and None: identity, or equality of the settings' plain values.
    return a is b or (type(a) is type(b) and type(a).__eq__ is not object.__eq__ and a == b)


class Checkpointable(Protocol[State]):
    """A context whose state can be snapshotted and restored."""

    def checkpoint(self) -> State:
        """A snapshot of the state as it is now."""

    def restore(self, state: State) -> None:
        """Return to a snapshot."""
