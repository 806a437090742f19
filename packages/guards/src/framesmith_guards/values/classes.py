"""What a guard knows of a class: its bases in their order, and the names of the entries that each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from framesmith_guards.errors import GuardError
from framesmith_guards.values.refs import Ref, describe

BOOKKEEPING: Final = frozenset({"__annotations__", "__slotnames__"})
"""Entries that CPython and copyreg put into a class when they are first asked for; no lookup depends on them."""

_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the entries of other classes cannot be changed
_mro: Final[Any] = type.__dict__["__mro__"].__get__
_entries: Final[Any] = type.__dict__["__dict__"].__get__


@dataclass(frozen=True)
class ClassLayout:
    """Which class in the order of resolution has which names, so what any attribute lookup finds and where.

    `rows` are (class, its names; None for a class that cannot change). Values of entries are guarded on their own.
    """

    rows: tuple[tuple[Ref, frozenset[str] | None], ...]

    @classmethod
    def of(cls, value: type) -> ClassLayout:
        """The layout of a class as it is now. GuardError for anything else."""
        if not issubclass(type(value), type):
            raise GuardError(f"CLASS_LAYOUT expects a class, not {describe(value)}; pass type(value)")
        return cls(tuple((Ref(owner), _names(owner)) for owner in _mro(value)))

    def holds(self, value: Any) -> bool:
        """Whether `value` is a class of this layout; TypeError if it is no class. Runs no code of a metaclass."""
        owners = _mro(value)
        return len(owners) == len(self.rows) and all(
            ref.refers_to(owner) and _names(owner) == names
            for owner, (ref, names) in zip(owners, self.rows, strict=True)
        )

    def explain(self, value: Any) -> str:
        """What differs, in words."""
        owners = _mro(value)
        found = [describe(owner) for owner in owners]
        if len(owners) != len(self.rows) or not all(
            ref.refers_to(owner) for (ref, _), owner in zip(self.rows, owners, strict=True)
        ):
            return f"expected the bases {[ref.text for ref, _ in self.rows]}, found {found}"
        for owner, (ref, names) in zip(owners, self.rows, strict=True):
            now = _names(owner) or frozenset()
            if now != names and names is not None:
                return f"expected {ref.text} to have lost and gained no entries, {_changes(names - now, now - names)}"
        return "the class has the expected entries"

    def __str__(self) -> str:
        return f"the entries of {self.rows[0][0].text} and its bases"


def _names(owner: type) -> frozenset[str] | None:
    return frozenset(_entries(owner)) - BOOKKEEPING if owner.__flags__ & _HEAP_TYPE else None


def _changes(lost: frozenset[str], gained: frozenset[str]) -> str:
    parts = [f"{verb} {', '.join(map(repr, sorted(names)))}" for verb, names in (("lost", lost), ("gained", gained))]
    return "found that it " + " and ".join(part for part, names in zip(parts, (lost, gained), strict=True) if names)
