"""The journal: mutations found while tracing, none of them carried out. One journal belongs to one trace.

The contents of containers live in the tracer's values; attributes, cells and globals live here until the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from framesmith_sideeffects.changes import AttributeChange, CallChange, Change, ContentsChange, GlobalChange
from framesmith_sideeffects.difference import Difference, Key, NotRestorable, moved
from framesmith_sideeffects.liveness import parts, reachable
from framesmith_sideeffects.mutations import Mutation, NotTracked, Origin, mutation_of
from framesmith_sideeffects.presence import has_own_attribute
from framesmith_sideeffects.protocol import DELETED, Deleted, Restorable, TracedValue, is_new
from framesmith_sideeffects.restriction import (
    ChangedAcrossCall,
    MutationRefused,
    NestedBody,
    NotMadeHere,
    UsedAcrossCall,
    described,
)

if TYPE_CHECKING:
    from framesmith_guards import Source

CELL_CONTENTS = "cell_contents"

V = TypeVar("V", bound=TracedValue)


class Journal(Generic[V]):
    """Mutations in the order they were first made, each object and attribute once. `V`: the tracer's values."""

    def __init__(self) -> None:
        self._tracked: dict[int, V] = {}
        self._objects: dict[int, tuple[object, V]] = {}
        self._real: dict[int, object] = {}
        self._changes: dict[Key, Change] = {}
        self._attributes: dict[int, dict[str, V | Deleted]] = {}
        self._globals: dict[int, dict[str, Any]] = {}
        self._calls = 0
        self._sealed: frozenset[Key | int] = frozenset()
        self._handed: frozenset[Key | int] = frozenset()
        self._live: tuple[TracedValue, ...] | None = None
        self._reached: dict[int, TracedValue] | None = None
        self._saved: dict[int, object] | None = None
        self._bodies: tuple[NestedBody, ...] = ()
        self._lent: dict[int, TracedValue] = {}

    # Tracked values

    def track_existing(self, value: V, obj: object) -> None:
        """Allow mutations of a value standing for an object older than the trace; keeps the object alive.

        Raises ValueError when another value stands for the same object: each would undo the other's mutations.
        """
        known = self._objects.get(id(obj))
        if known is not None and known[1] is not value:
            raise ValueError(f"a second value for one {type(obj).__name__} object; reuse the first (`value_of`)")
        self._objects[id(obj)] = (obj, value)
        self._real[id(value)] = obj
        self._track(value, Origin.EXISTING, type(obj))

    def track_new(self, value: V, cls: type | None = None) -> None:
        """Allow mutations of a value made in the trace; `cls` is its class when attributes of it can be written."""
        self._track(value, Origin.NEW, cls)

    def _track(self, value: V, origin: Origin, cls: type | None) -> None:
        if id(value) in self._tracked:
            raise ValueError("the value is tracked already")
        value.mutation = mutation_of(origin, cls)
        self._tracked[id(value)] = value

    def lend(self, value: TracedValue, maker: TracedValue) -> None:
        """Mark a value of the trace as an object that `maker` makes when the compiled code runs.

        It may be read, not changed; a replay that needs to make it raises NotMadeHere.
        """
        self._lent[id(value)] = maker

    def check_made_here(self, value: TracedValue) -> None:
        """Raise NotMadeHere for a value that is lent."""
        if id(value) in self._lent:
            raise NotMadeHere(self._lent[id(value)])

    def value_of(self, obj: object) -> V | None:
        """The value that stands for an existing tracked object."""
        known = self._objects.get(id(obj))
        return None if known is None else known[1]

    def _require(self, value: TracedValue, *, contents: bool = False) -> Mutation:
        if value.mutation is None or id(value) not in self._tracked:
            raise NotTracked(f"{type(value).__name__} may not be mutated: it is not tracked by this journal")
        if id(value) in self._lent:
            raise MutationRefused("the trace", f"a {described(value)}, which it does not make")
        for body in reversed(self._bodies):
            why = body.why_refused(value)
            if why is not None and not (contents and body.borrows(value, why)):
                raise MutationRefused(body.name, why)
        return value.mutation

    # Nested bodies

    @contextmanager
    def nested(self, name: str, open_to: Iterable[TracedValue] = ()) -> Iterator[None]:
        """Context manager for tracing a nested body, which may change values that it makes and those in `open_to`.

        It may change the contents of other `Restorable` values if it has undone that by its end, as
        `torch.func.functional_call` does with parameters: then no change is noted. Other mutations raise
        MutationRefused with the body's `name`. An inner body is bound by the outer ones too.
        """
        around, changed = self._bodies, {*self._changes}
        body = NestedBody(name, frozenset(self._tracked), frozenset(id(value) for value in open_to))
        self._bodies = (*around, body)
        try:
            yield
        finally:
            self._bodies = around
        for one in body.borrowed.values():
            if not one.is_undone():
                raise MutationRefused(name, one.why)
            one.container.restore(one.before)
            if (key := ("contents", id(one.container))) not in changed:
                self._changes.pop(key, None)

    @property
    def is_nested(self) -> bool:
        """Whether a nested body is being traced."""
        return bool(self._bodies)

    def _refuse_outside(self, what: str) -> None:
        if self._bodies:
            raise MutationRefused(self._bodies[-1].name, what)

    # Mutations

    def mutate(self, value: TracedValue) -> None:
        """Note that a container's contents change. Raises NotTracked when the value is immutable here."""
        self._require(value, contents=True)
        key = ("contents", id(value))
        self._check_order(key, value)
        known = self._changes.get(key)
        version = known.version + 1 if isinstance(known, ContentsChange) else 1
        self._changes[key] = ContentsChange(value, version)

    def is_mutated(self, value: TracedValue) -> bool:
        """Whether contents or attributes of a value changed since it was tracked."""
        return ("contents", id(value)) in self._changes or bool(self._attributes.get(id(value)))

    def store_attr(self, value: TracedValue, name: str, new: V) -> None:
        """Note `value.name = new`, bypassing properties and `__setattr__` of the class."""
        self._require(value)
        key = ("attribute", id(value), name)
        self._check_order(key, value)
        known = self._changes.get(key)
        deletes = isinstance(known, AttributeChange) and known.deletes
        if isinstance(known, AttributeChange) and isinstance(known.new, Deleted):
            del self._changes[key]
        self._changes[key] = AttributeChange(value, name, new, deletes)
        self._remember(value, name, new)

    def delete_attr(self, value: TracedValue, name: str) -> None:
        """Note `del value.name`; the attribute must exist. One stored by the trace alone leaves no change."""
        self._require(value)
        key = ("attribute", id(value), name)
        self._check_order(key, value)
        self._changes.pop(key, None)
        if id(value) in self._real and has_own_attribute(self._real[id(value)], name):
            self._changes[key] = AttributeChange(value, name, DELETED, deletes=True)
        self._remember(value, name, DELETED)

    def _remember(self, value: TracedValue, name: str, new: V | Deleted) -> None:
        pending = self._attributes.setdefault(id(value), {})
        if new is DELETED or pending.get(name) is DELETED:  # a deleted attribute stored again is the last one
            pending.pop(name, None)
        pending[name] = new

    def load_attr(self, value: TracedValue, name: str) -> V | Deleted | None:
        """The pending value of an attribute, DELETED, or None when the trace has not touched it (or may not)."""
        self._check_not_handed(value)
        pending = self._attributes.get(id(value))
        return None if pending is None else pending.get(name)

    def stored_attr(self, value: TracedValue, name: str) -> V | None:
        """The pending value of an attribute; None when it is deleted or not touched."""
        pending = self.load_attr(value, name)
        return None if isinstance(pending, Deleted) else pending

    def pending_attrs(self, value: TracedValue) -> dict[str, V | Deleted]:
        """All pending attributes of a value, in the order of its `__dict__`; DELETED for deleted ones."""
        self._check_not_handed(value)
        return dict(self._attributes.get(id(value), ()))

    def was_deleted(self, value: TracedValue, name: str) -> bool:
        """Whether an attribute of an existing object was deleted, even if it was stored again."""
        change = self._changes.get(("attribute", id(value), name))
        return isinstance(change, AttributeChange) and change.deletes

    def store_cell(self, cell: TracedValue, new: V) -> None:
        """Note a store to a closure cell."""
        self.store_attr(cell, CELL_CONTENTS, new)

    def delete_cell(self, cell: TracedValue) -> None:
        """Note that a closure cell is emptied."""
        self.delete_attr(cell, CELL_CONTENTS)

    def load_cell(self, cell: TracedValue) -> V | Deleted | None:
        """The pending contents of a cell, DELETED, or None when the trace has not touched it."""
        return self.load_attr(cell, CELL_CONTENTS)

    def store_global(self, owner: dict[str, Any], name: str, new: V, source: Source | None = None) -> None:
        """Note a store to a global of `owner`, a real dict found at `source` (None: the compiled frame's own)."""
        self._set_global(owner, name, new, source)

    def delete_global(self, owner: dict[str, Any], name: str, source: Source | None = None) -> None:
        """Note the deletion of a global; see `store_global`. One made by the trace leaves no change."""
        if name in owner:
            self._set_global(owner, name, DELETED, source)
        else:
            self._refuse_outside(f"the global {name!r}")
            self._check_order(("global", id(owner), name))
            self._changes.pop(("global", id(owner), name), None)

    def _set_global(self, owner: dict[str, Any], name: str, new: V | Deleted, source: Source | None) -> None:
        self._refuse_outside(f"the global {name!r}")
        self._globals[id(owner)] = owner  # kept alive: the key is its id
        key = ("global", id(owner), name)
        self._check_order(key)
        known = self._changes.get(key)
        deletes = new is DELETED or (isinstance(known, GlobalChange) and known.deletes)
        if isinstance(known, GlobalChange) and (new is DELETED or known.new is DELETED):
            del self._changes[key]  # a deleted global stored again is the last one
        self._changes[key] = GlobalChange(source, name, new, deletes and name in owner)

    def load_global(self, owner: dict[str, Any], name: str) -> V | Deleted | None:
        """The pending value of a global, DELETED, or None when the trace has not touched it."""
        known = self._changes.get(("global", id(owner), name))
        return cast("V | Deleted", known.new) if isinstance(known, GlobalChange) else None

    def pending_globals(self, owner: dict[str, Any]) -> dict[str, GlobalChange]:
        """All pending changes of a namespace, in the order of the entries that they add."""
        changes = (change for key, change in self._changes.items() if key[:2] == ("global", id(owner)))
        return {change.name: change for change in changes if isinstance(change, GlobalChange)}

    def record_call(self, function: Callable[..., Any], *args: TracedValue) -> int:
        """Note a call to repeat for its effect, after the mutations noted so far and before later ones.

        Returns its number, for `forget_call`.
        """
        self._refuse_outside(f"what {getattr(function, '__qualname__', function)} changes")
        self._calls += 1
        self._changes["call", self._calls] = CallChange(function, args)
        return self._calls

    def record_ordered_call(self, function: Callable[..., Any], *args: TracedValue) -> None:
        """Note a call that may raise: mutations noted so far are made by then, and later ones are not.

        A later mutation of what was mutated before, or of a new object that is shown by then, raises ChangedAcrossCall.
        """
        shown = reachable(self.escaping(), self.held_values)
        self.record_call(function, *args)
        self._sealed = frozenset([*self._changes, *(key for key, value in shown.items() if is_new(value))])

    def record_changing_call(self, function: Callable[..., Any], *args: TracedValue, changed: Iterable[V]) -> None:
        """Note a call that changes the objects `changed`, and reads of others no more than variables and containers.

        The trace may not use the objects afterwards, nor change again what the call may read: UsedAcrossCall.
        """
        self.record_call(function, *args)
        read = (key for key in self._changes if key[0] in ("global", "contents") or key[-1] == CELL_CONTENTS)
        self._handed |= {*read, *map(id, changed)}

    def _check_not_handed(self, value: TracedValue) -> None:
        if self._handed and id(value) in self._handed:
            raise UsedAcrossCall(f"a {described(value)}")

    def _check_order(self, key: Key, value: TracedValue | None = None) -> None:
        if self._handed and (key in self._handed or id(value) in self._handed):
            raise UsedAcrossCall(f"the {key[0]} {key[-1]!r}" if value is None else f"a {described(value)}")
        if self._sealed and (key in self._sealed or id(value) in self._sealed):
            raise ChangedAcrossCall(f"the {key[0]} {key[-1]!r}" if value is None else f"a {described(value)}")

    def forget_call(self, number: int) -> None:
        """Drop a call noted by `record_call`, whose effect the program has undone."""
        change = self._changes["call", number]
        self._refuse_outside(f"what {getattr(change, 'function', change)} has changed")
        self._check_order(("call", number))
        del self._changes["call", number]

    # Pruning and the changes to replay

    def prune(self, live: Iterable[TracedValue]) -> None:
        """Drop unreachable new objects. `live`: the values used after the replay."""
        self._live = tuple(live)
        self._reached = None
        reached = self.reached()
        self._changes = {key: change for key, change in self._changes.items() if _counts(change, reached)}
        self._reached = reached

    def reached(self) -> dict[int, TracedValue]:
        """Values reachable from live ones and changes, by id. Before the first `prune`, every tracked value is live."""
        if self._reached is None:
            self._reached = reachable(self._roots(), self.held_values)
        return self._reached

    def _roots(self) -> Iterator[TracedValue]:
        yield from self._tracked.values() if self._live is None else self._live
        yield from self.escaping()

    def escaping(self) -> Iterator[TracedValue]:
        """Values that escape: stored by the changes so far into objects older than the trace."""
        for change in self._changes.values():
            if change.target is None or not is_new(change.target):
                yield from change.operands()

    def made(self) -> Iterator[V]:
        """Tracked values made by the trace."""
        return (value for value in self._tracked.values() if is_new(value))

    def held_values(self, value: TracedValue) -> Iterator[TracedValue]:
        """Values held by a value: its referents if it has no source, and the attributes of a new object."""
        yield from parts(value)
        if is_new(value):
            yield from (new for new in self._attributes.get(id(value), {}).values() if not isinstance(new, Deleted))

    def changes(self) -> list[Change]:
        """The changes to replay, in order. New containers are made with their contents, which are no change."""
        return [change for change in self._changes.values() if not _made_with(change)]

    def uses(self, made: Iterable[TracedValue]) -> Iterator[TracedValue]:
        """Every use of a value: live, as a part of those in `made`, and by the changes."""
        yield from self._live or ()
        for value in made:
            yield from parts(value)
        for change in self.changes():
            yield from change.operands()

    def is_empty(self) -> bool:
        """Whether a replay would change nothing that exists."""
        return not any(change.target is None or not is_new(change.target) for change in self._changes.values())

    # Earlier states

    def clone(self) -> Journal[V]:
        """A copy of the state, for `diff` and `restore`: records, and contents of `Restorable` values."""
        copy: Journal[V] = Journal()
        copy._take(self)
        copy._saved = dict(self._states())
        return copy

    def diff(self, older: Journal[V]) -> Difference:
        """The difference from an older clone.

        A container has changed if its contents are different; one that is not `Restorable`, if it was mutated.
        """
        states = dict(self._states())
        known = older._saved or {}
        both = states.keys() & known.keys()
        same = {key for key in both if states[key] == known[key]}

        def unchanged(key: Key, change: Change) -> bool:
            before = older._changes.get(key)
            return before == change or (isinstance(change, ContentsChange) and key[1] in same)

        noted = {key: change for key, change in self._changes.items() if not unchanged(key, change)}
        noted |= {key: self._changes[key] for key in moved(older._changes, self._changes)}
        gone = [change for key, change in older._changes.items() if key not in self._changes]
        return Difference(list(noted.values()), gone, [self._tracked[key] for key in states if key in both - same])

    def restore(self, older: Journal[V]) -> None:
        """Go back to the state of an older clone: forget all changes, tracking and contents since.

        Raises NotRestorable, and changes nothing, when a container that is not `Restorable` has changed since.
        """
        saved = older._saved or {}
        for change in self.diff(older).noted:
            if isinstance(change, ContentsChange) and id(change.target) in older._tracked.keys() - saved.keys():
                raise NotRestorable(f"{type(change.target).__name__} has changed and keeps no earlier contents")
        for key in self._tracked.keys() - older._tracked.keys():
            self._tracked[key].mutation = None
        self._take(older)
        for key, state in saved.items():
            value = self._tracked[key]
            assert isinstance(value, Restorable)
            value.restore(state)

    def _states(self) -> Iterator[tuple[int, object]]:
        """Contents of `Restorable` values; in a clone, those saved in it."""
        if self._saved is not None:
            yield from self._saved.items()
            return
        for key, value in self._tracked.items():
            if isinstance(value, Restorable):
                yield key, value.saved()

    def _take(self, other: Journal[V]) -> None:
        self._tracked = dict(other._tracked)
        self._objects = dict(other._objects)
        self._real = dict(other._real)
        self._changes = dict(other._changes)
        self._attributes = {key: dict(pending) for key, pending in other._attributes.items()}
        self._globals = dict(other._globals)
        self._calls = other._calls
        self._sealed = other._sealed
        self._handed = other._handed
        self._lent = dict(other._lent)
        self._live = other._live
        self._reached = None


def _counts(change: Change, reached: dict[int, TracedValue]) -> bool:
    return change.target is None or not is_new(change.target) or id(change.target) in reached


def _made_with(change: Change) -> bool:
    return isinstance(change, ContentsChange) and is_new(change.target)
