"""Needs of torch that may move between its releases: named in tables, looked up once, their absence logged once.

Note [Needs]: a package lists in its `torch_adapter.py` the names of torch that it uses and that are no stable, public
API: private names, internal classes, their attributes. A row gives the name's location, in each spelling of the
releases, and the feature lost without it. The code asks whether torch has the name; it never compares versions. A
missing name is logged once (`framesmith.torch`) and replaced by the row's substitute, or by a stand-in: a class that
can be named, stored, compared, put into tables and derived from, and that raises MissingNeed when called. So tables of
torch's functions lose a row, and a graph that needs the function fails to compile and runs eagerly.
`why_nothing_compiles` names the missing needs without which no graph is compiled.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

logger: Final = logging.getLogger("framesmith.torch")

_STAND_IN: Final = object()


class MissingNeed(RuntimeError):
    """A name is used that this release of torch does not have."""


@dataclass(frozen=True)
class Need:
    """A name of torch's that may move.

    paths: its dotted names, in one release or another; the first that torch has counts. lost: the feature lost without
    it. essential: nothing can be compiled without it. members: attributes that it must have. check: returns why torch's
    object does not serve. instead: its substitute; by default a stand-in. built: whether this build of torch would have
    it; others lack it silently.
    """

    name: str
    paths: tuple[str, ...]
    lost: str
    essential: bool = False
    built: bool = True
    members: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None
    instead: Any = _STAND_IN

    def find(self) -> Any:
        """Return torch's object; MissingNeed, with the reason, if it does not serve."""
        for path in self.paths:
            try:
                found = look_up(path)
            except AttributeError:
                continue
            if lacking := [name for name in self.members if not hasattr(found, name)]:
                raise MissingNeed(f"{path} has no {', '.join(lacking)}")
            if self.check is not None and (reason := self.check(found)) is not None:
                raise MissingNeed(f"{path} {reason}")
            return found
        raise MissingNeed(f"there is no {' or '.join(self.paths)}")


def need(path: str, lost: str, *spellings: str, name: str | None = None, **options: Any) -> Need:
    """Return a row for `path`, or for further spellings, by default named by its last part."""
    return Need(name or path.rpartition(".")[2].lstrip("_"), (path, *spellings), lost, **options)


def look_up(path: str) -> Any:
    """Return the object of a dotted path, importing modules on the way; AttributeError if there is none."""
    first, *parts = path.split(".")
    found: Any = importlib.import_module(first)
    module = first
    for part in parts:
        module = f"{module}.{part}"
        try:
            found = found[part] if isinstance(found, Mapping) else getattr(found, part)
        except (AttributeError, KeyError):
            try:
                found = importlib.import_module(module)
            except ImportError:
                raise AttributeError(f"there is no {path}") from None
    return found


# Stand-ins


class _StandIn(type):
    """The type of stand-ins: see Note [Needs]."""

    path: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{cls.path}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise MissingNeed(f"torch {_release()} has no {cls.path}, as it is needed here")

    def __repr__(cls) -> str:
        return f"<no {cls.path}>"


def stand_in(path: str) -> Any:
    """Return a stand-in for a name that torch does not have."""
    return _StandIn(path.rpartition(".")[2], (), {"path": path})


def is_missing(value: object) -> bool:
    """Whether this is a stand-in."""
    return isinstance(value, _StandIn)


def _release() -> str:
    return str(importlib.import_module("torch").__version__)


def report_missing(what: str, lost: str) -> None:
    """Log that torch lacks a name, and the feature lost without it."""
    logger.warning("torch %s: %s: %s", _release(), what, lost)


# Tables


class Needs:
    """The needs of a package as attributes, with those of the packages below."""

    def __init__(self, package: str, rows: Iterable[Need], *below: Needs) -> None:
        self.package = package
        self.rows: Final = {row.name: row for row in rows}
        self.below = below
        self.missing: dict[str, str] = {}
        TABLES.append(self)
        for row in self.rows.values():
            vars(self)[row.name] = self._take(row)

    def __getattr__(self, name: str) -> Any:
        for table in vars(self).get("below", ()):
            if table.declares(name):
                found = vars(self)[name] = getattr(table, name)  # looked up in each call of a graph
                return found
        raise AttributeError(f"no need of torch is called {name!r} here")

    def __iter__(self) -> Iterator[Need]:
        return iter(self.rows.values())

    def declares(self, name: str) -> bool:
        """Whether this table, or one below, has a need of this name."""
        return name in self.rows or any(table.declares(name) for table in self.below)

    def has(self, name: str) -> bool:
        """Whether torch meets the need of this name, in this table or one below."""
        if name in self.rows:
            return name not in self.missing
        return any(table.has(name) for table in self.below if table.declares(name))

    def _take(self, row: Need) -> Any:
        try:
            return row.find()
        except MissingNeed as reason:
            if row.built:
                self.missing[row.name] = str(reason)
                report_missing(str(reason), row.lost)
            return stand_in(row.paths[0]) if row.instead is _STAND_IN else row.instead


#: The tables of all packages that are imported.
TABLES: Final[list[Needs]] = []


def why_nothing_compiles() -> str | None:
    """Return the essential needs that torch does not meet; None if it meets them all."""
    lacks = [
        f"{table.missing[row.name]} ({row.lost})"
        for table in TABLES
        for row in table
        if row.essential and row.name in table.missing
    ]
    return f"torch {_release()} lacks what is needed to compile: {'; '.join(lacks)}" if lacks else None


# The keys of tables


def of_torch(path: str) -> Any:
    """Return a function, class or operator of torch for the key of a table's row; a stand-in where torch lacks it."""
    ASKED.add(path)
    try:
        return look_up(path)
    except AttributeError:
        return _missing_key(path)


@cache
def _missing_key(path: str) -> Any:
    report_missing(f"there is no {path}", "rows of tables about it serve nothing")
    return stand_in(path)


class Operators:
    """The operators of a namespace of `torch.ops` as attributes; stand-ins where torch lacks one."""

    def __init__(self, namespace: str) -> None:
        self._path = f"torch.ops.{namespace}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._path}.{name}"
        found = of_torch(path)
        vars(self)[name] = found = found if is_missing(found) else _Operator(path, found)
        return found


class _Operator:
    """An operator of torch's: callable, with its overloads as attributes.

    Not a key of a table: programs call torch's own object, `of_torch("torch.ops...")`, which is another one.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: str, packet: Callable[..., Any]) -> None:
        self._path, self._packet = path, packet

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._packet(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = vars(self)[name] = of_torch(f"{self._path}.{name}")
        return found


#: Names looked up as keys of tables.
ASKED: Final[set[str]] = set()
