"""A guard set as one JSON document: a table of sources, each after its base, and the guards on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, Final

import torch

from framesmith_guards import sources
from framesmith_guards.errors import GuardError, nearest
from framesmith_guards.guard import Guard
from framesmith_guards.kinds.shapes import ShapeExpr
from framesmith_guards.kinds.table import kind_named
from framesmith_guards.portable.shapes import decode_expr, encode_expr
from framesmith_guards.portable.values import decode, encode
from framesmith_guards.sources import Source
from framesmith_guards.sources.base import Step
from framesmith_guards.sources.caches import CachedCall
from framesmith_guards.values.classes import ClassLayout
from framesmith_guards.values.tensors import TensorSpec

FORMAT: Final = 1

_SOURCES: Final[dict[str, type[Source]]] = {
    name: cls
    for name, cls in vars(sources).items()
    if isinstance(cls, type) and issubclass(cls, Source) and cls is not Source
}


class _Writer:
    """Collects the sources that the guards name."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._index: dict[Source, int] = {}

    def source(self, source: Source) -> int:
        """Return the source's index in the table."""
        known = self._index.get(source)
        if known is not None:
            return known
        base = () if source.base is None else (self.source(source.base),)
        values = [*base, *map(encode, source.fields()[len(base) :])]
        self.rows.append([type(source).__name__, *values])
        self._index[source] = len(self.rows) - 1
        return self._index[source]

    def expected(self, guard: Guard) -> Any:
        """Return the guard's expectation, tagged if it is more than a value."""
        expected = guard.expected
        if isinstance(expected, TensorSpec):
            return ["tensor", *(encode(getattr(expected, field.name)) for field in fields(TensorSpec))]
        if isinstance(expected, ShapeExpr):
            return ["shape", encode_expr(expected.expr), [[n, self.source(s)] for n, s in expected.symbols]]
        if isinstance(expected, ClassLayout):
            rows = [[encode(ref), found if found is None else sorted(found)] for ref, found in expected.rows]
            return ["class", rows]
        if guard.operands and not isinstance(expected, CachedCall):
            return ["sources", [self.source(s) for s in guard.operands]]
        return ["value", encode(expected)]


def dumps(guards: Iterable[Guard]) -> str:
    """Return the guards as text for another process of the same torch.

    GuardError, with the guard and the object, for one about an object of this process only: a function or class that no
    module exports.
    """
    writer = _Writer()
    rows = []
    for guard in guards:
        try:
            rows.append([guard.kind.name, writer.source(guard.source), writer.expected(guard)])
        except GuardError as error:
            raise GuardError(f"{guard.kind.name} on {guard.source.name}: {error}") from None
    document = {"format": FORMAT, "torch": torch.__version__, "sources": writer.rows, "guards": rows}
    return json.dumps(document, separators=(",", ":"))


def _read_sources(rows: list[list[Any]]) -> list[Source]:
    known: list[Source] = []
    for name, *values in rows:
        cls = _SOURCES.get(name)
        if cls is None:
            raise GuardError(f"no source kind {name!r}: {nearest(str(name), _SOURCES)}")
        base = (known[values.pop(0)],) if issubclass(cls, Step) else ()
        known.append(cls(*base, *map(decode, values)))
    return known


_EXPECTED: Final[dict[str, Callable[[list[Any], list[Source]], Any]]] = {
    "value": lambda parts, known: decode(parts[0]),
    "tensor": lambda parts, known: TensorSpec(*map(decode, parts)),
    "shape": lambda parts, known: ShapeExpr(decode_expr(parts[0]), tuple((n, known[i]) for n, i in parts[1])),
    "class": lambda parts, known: ClassLayout(
        tuple((decode(ref), found if found is None else frozenset(map(tuple, found))) for ref, found in parts[0])
    ),
    "sources": lambda parts, known: [known[index] for index in parts[0]],
}


def _read_guard(row: list[Any], known: list[Source]) -> Guard:
    name, source, (tag, *parts) = row
    kind = kind_named(name)
    expected = _EXPECTED[tag](parts, known)
    return Guard(known[source], kind, expected[0] if kind.takes_one_source else expected)


def loads(text: str) -> list[Guard]:
    """Return the guards that `dumps` wrote. Nothing is executed or imported.

    GuardError for other text, for guards of another torch, and for names that no imported module has.
    """
    try:
        document = json.loads(text)
        written = (document["format"], document["torch"])
    except (ValueError, KeyError, TypeError) as error:
        raise GuardError(f"no portable guards: {error}") from None
    if written != (FORMAT, torch.__version__):
        raise GuardError(
            f"the guards are format {written[0]} of torch {written[1]}, not {FORMAT} of {torch.__version__}"
        )
    try:
        known = _read_sources(document["sources"])
        return [_read_guard(row, known) for row in document["guards"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, GuardError):
            raise
        raise GuardError(f"damaged portable guards: {type(error).__name__}: {error}") from None
