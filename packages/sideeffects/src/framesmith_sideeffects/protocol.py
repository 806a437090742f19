"""Protocols of a tracer's values: their source, their mutability, and code that pushes them.

The value classes of a tracer implement these structurally.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source
    from framesmith_sideeffects.mutations import Mutation


class Deleted(Enum):
    """The type of `DELETED`."""

    DELETED = "deleted"


#: Represents an attribute, item or global that the trace removed.
DELETED: Final = Deleted.DELETED


class TracedValue(Protocol):
    """A value of a tracer, which represents one Python object.

    `source`: the path by which compiled code finds the object (None: made in the trace); `mutation`: the journal's
    record, None if the object may not be changed.
    """

    source: Source | None
    mutation: Mutation | None

    def reconstruct(self, codegen: Codegen) -> None:
        """Push the object. A new one is pushed as it is created: containers with contents, without attributes."""

    def referents(self) -> Iterable[TracedValue]:
        """The values that `reconstruct` pushes for it: items, keys, cells, defaults; no journalled attributes."""


def is_new(value: TracedValue) -> bool:
    """Whether the trace has made the object, and may change it."""
    return value.mutation is not None and value.mutation.is_new


@runtime_checkable
class TracedContainer(Protocol):
    """A value with contents, which can be written into an existing object or into one made empty first."""

    def contents_type(self) -> type:
        """The builtin type whose methods write the contents: a key of `contents.ROWS`."""

    def reconstruct_contents(self, codegen: Codegen) -> None:
        """Push a fresh plain container (list for deques, dict for mappings) with the current contents."""

    def reconstruct_empty(self, codegen: Codegen) -> None:
        """Push a new empty object of the value's type; for containers that contain themselves."""

    def item_changes(self) -> Sequence[tuple[TracedValue, TracedValue | Deleted]] | None:
        """Deletions, then stores in order, that turn the original contents into the current ones.

        None: not known; all contents are written.
        """


@runtime_checkable
class Restorable(Protocol):
    """A value with a state (contents, a position) that a journal can save and restore."""

    def saved(self) -> object:
        """The current state: equal to an earlier one exactly if nothing has changed in between."""

    def restore(self, saved: Any) -> None:
        """Restore a state returned by `saved`."""
