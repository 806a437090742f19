"""Closure cells, shared by an outer function and the functions it defines."""

from __future__ import annotations

from collections.abc import Iterable
from types import CellType
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.lookup.entries import value_at
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import CellContentsSource
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

EMPTY_CELL = register_break(
    "empty-cell",
    what="a variable of an enclosing function is read before that function has given it a value",
    why="no guard can check that a cell is empty, and it may be filled at a later call",
    hint="give the variable a value before the compiled function is called",
)


class CellValue(Value):
    """A cell. `contents` are those at the beginning of the trace (None: empty); stores go to the journal.

    `source` is that of the cell object if it exists already (`f.__closure__[i]`); `local_name` is set for a variable of
    the outermost frame, so that residual code may use LOAD_CLOSURE / STORE_DEREF.
    """

    python_types = (CellType,)
    __slots__ = ("contents", "local_name")

    def __init__(
        self, contents: Value | None = None, *, local_name: str | None = None, source: Source | None = None
    ) -> None:
        super().__init__(source=source)
        self.contents = contents
        self.local_name = local_name

    def load(self, tr: Tracer) -> Value | None:
        """Return the current contents, or None when empty."""
        pending = tr.journal.load_cell(self)
        if pending is None:
            return self.found_contents(tr)
        return None if pending is DELETED else pending

    def found_contents(self, tr: Tracer) -> Value | None:
        """The contents before the trace changed them."""
        return self.contents

    def store(self, tr: Tracer, value: Value) -> None:
        """Store the contents."""
        tr.journal.store_cell(self, value)

    def delete(self, tr: Tracer) -> None:
        """Empty the cell."""
        tr.journal.delete_cell(self)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name != "cell_contents":
            return super().getattr_(tr, name)
        value = self.load(tr)
        if value is None:
            tr.raise_(ValueError, "Cell is empty")
        return value

    def hash_key(self, tr: Tracer) -> object:
        return self

    def referents(self) -> Iterable[Value]:
        return () if self.contents is None else (self.contents,)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.local_name is not None:
            codegen.load_closure(self.local_name)
        elif self.source is not None:
            super().reconstruct(codegen)
        else:
            codegen.push_call(CellType, self.referents())


class FoundCellValue(CellValue):
    """An existing cell. Its contents, found at `where`, are guarded when they are read."""

    __slots__ = ("cell", "where")

    def __init__(
        self, cell: CellType, where: Source, *, source: Source | None = None, local_name: str | None = None
    ) -> None:
        super().__init__(source=source, local_name=local_name)
        self.cell = cell
        self.where = where

    def found_contents(self, tr: Tracer) -> Value | None:
        if self.contents is None:
            try:
                contents = self.cell.cell_contents
            except ValueError:
                raise GraphBreak(EMPTY_CELL, self.where.name) from None
            self.contents = value_at(tr, contents, self.where)
        return self.contents


@wraps_type(CellType)
def wrap_cell(tr: Tracer, obj: CellType, source: Source) -> Value:
    """Wrap a closure cell of an existing function; a cell found at several sources is guarded to remain the same."""
    value = FoundCellValue(obj, CellContentsSource(source), source=source)
    tr.journal.track_existing(value, obj)
    return value
