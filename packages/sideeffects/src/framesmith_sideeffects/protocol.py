"""What the journal asks of the values of a tracer: where an object comes from, whether it may change, how to push it.

A tracer's value classes implement these structurally; nothing here knows a tracer's classes.
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


#: Stands for an attribute, item or global that the trace removed.
DELETED: Final = Deleted.DELETED


class TracedValue(Protocol):
    """A Python object as a tracer sees it.

    `source` tells where the compiled code finds the object (None: made in the trace); `mutation` is the journal's
    record, or None when the object may not be changed.
    """

    source: Source | None
    mutation: Mutation | None

    def reconstruct(self, codegen: Codegen) -> None:
        """Push the object. One tracked as new is pushed as after its creation: no attributes, but containers filled."""

    def referents(self) -> Iterable[TracedValue]:
        """The values that `reconstruct` pushes on the way: items, keys, cells, defaults; no journalled attributes."""


@runtime_checkable
class TracedContainer(Protocol):
    """A value with contents: what is needed to write them into an existing object, or into one made empty first."""

    def contents_type(self) -> type:
        """The builtin type whose methods write the contents: a key of `contents.ROWS`."""

    def reconstruct_contents(self, codegen: Codegen) -> None:
        """Push a fresh plain container (list for deques, dict for mappings) with the present contents."""

    def reconstruct_empty(self, codegen: Codegen) -> None:
        """Push a new object of the value's own type without contents; used for containers that contain themselves."""

    def item_changes(self) -> Sequence[tuple[TracedValue, TracedValue | Deleted]] | None:
        """Deletions, then stores in order, that turn the object as found into the present one.

        None: not known; all contents are written anew.
        """


@runtime_checkable
class Restorable(Protocol):
    """A value with a state of its own, contents or a position, which a journal can keep and put back."""

    def saved(self) -> object:
        """The state as it is: equal to that of another time exactly when nothing has changed in between."""

    def restore(self, saved: Any) -> None:
        """Go back to a state that `saved` gave."""
