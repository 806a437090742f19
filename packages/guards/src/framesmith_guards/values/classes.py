"""Layouts of classes: the bases in order, and the names and kinds of each one's entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, NoneType
from typing import Any, Final

from framesmith_guards.errors import GuardError
from framesmith_guards.values.refs import Ref, describe

BOOKKEEPING: Final = frozenset({"__annotations__", "__annotations_cache__", "__annotate_func__", "__slotnames__"})
"""Entries that CPython and copyreg put into a class when they are first asked for; no lookup depends on them."""

Entry = tuple[str, str]
"""The name of an entry and, for a descriptor, its kind: what an attribute lookup makes of it."""

#: `Py_TPFLAGS_IMMUTABLETYPE`: the entries of the class cannot be changed. No `class` statement makes such a class.
IMMUTABLE_TYPE: Final = 1 << 8

_KINDS: Final[dict[type, str]] = {
    FunctionType: "function",
    classmethod: "classmethod",
    property: "property",
    staticmethod: "staticmethod",
    **dict.fromkeys((NoneType, bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset), ""),
}
_ACCESS: Final = (("__get__", "read"), ("__set__", "write"), ("__delete__", "delete"))
mro: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
"""`cls.__mro__`, past any metaclass."""
class_dict: Final[Callable[[type], Any]] = type.__dict__["__dict__"].__get__
"""`cls.__dict__`, past any metaclass."""


@dataclass(frozen=True)
class ClassLayout:
    """The entries of each class in the order of resolution, which determine where an attribute lookup finds its kind of
    object.

    `rows` are (class, its entries; None for a class that cannot change). Values of entries are guarded on their own.
    """

    rows: tuple[tuple[Ref, frozenset[Entry] | None], ...]

    @classmethod
    def of(cls, value: type) -> ClassLayout:
        """Return the layout of a class as it is now. GuardError for anything else."""
        if not issubclass(type(value), type):
            raise GuardError(f"CLASS_LAYOUT expects a class, not {describe(value)}; pass type(value)")
        return cls(tuple((Ref(owner), _layout(owner)) for owner in mro(value)))

    def holds(self, value: Any) -> bool:
        """Whether `value` is a class of this layout; TypeError if it is no class. Runs no code of a metaclass."""
        owners = mro(value)
        return len(owners) == len(self.rows) and all(
            ref.refers_to(owner) and _layout(owner) == entries
            for owner, (ref, entries) in zip(owners, self.rows, strict=True)
        )

    def explain(self, value: Any) -> str:
        owners = mro(value)
        found = [describe(owner) for owner in owners]
        if len(owners) != len(self.rows) or not all(
            ref.refers_to(owner) for (ref, _), owner in zip(self.rows, owners, strict=True)
        ):
            return f"expected the bases {[ref.text for ref, _ in self.rows]}, found {found}"
        for owner, (ref, entries) in zip(owners, self.rows, strict=True):
            now = _layout(owner) or frozenset()
            if now != entries and entries is not None:
                return f"expected {ref.text} to have lost and gained no entries, {_changes(dict(entries), dict(now))}"
        return "the class has the expected entries"

    def __str__(self) -> str:
        return f"the entries of {self.rows[0][0].text} and its bases"


def _layout(owner: type) -> frozenset[Entry] | None:
    if owner.__flags__ & IMMUTABLE_TYPE:
        return None
    return frozenset((name, _kind(type(raw))) for name, raw in class_dict(owner).items() if name not in BOOKKEEPING)


def _kind(cls: type) -> str:
    kind = _KINDS.get(cls)
    if kind is None:
        names = {name for base in mro(cls) for name in class_dict(base)}
        kind = "/".join(text for name, text in _ACCESS if name in names)
    return kind


def _changes(before: dict[str, str], now: dict[str, str]) -> str:
    parts = []
    for verb, names in (("lost", before.keys() - now.keys()), ("gained", now.keys() - before.keys())):
        if names:
            parts.append(f"{verb} {', '.join(map(repr, sorted(names)))}")
    if not parts:
        other = sorted(name for name in before if before[name] != now[name])
        parts.append(f"has another kind of {', '.join(map(repr, other))}")
    return "found that it " + " and ".join(parts)
