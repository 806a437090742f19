"""Sets that may change; constructors and wrappers of sets and frozensets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import plain
from framesmith_dynamo.values.containers.base import ContainerValue, MutableContainer
from framesmith_dynamo.values.containers.sets import (
    OPERATORS,
    SET_ORDER,
    FrozenSetValue,
    hashed,
    is_set,
    member_key,
    members_of,
    set_argument,
)
from framesmith_dynamo.values.iteration.consuming import each
from framesmith_dynamo.values.lookup.libraries import is_trusted
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type
from framesmith_guards import is_constant
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

SET_OF_OBJECTS = register_break(
    "set-of-objects",
    what="a set of objects that are not constants is used",
    why="its members cannot be found again from the set when the compiled code runs",
    hint="keep the objects in a list or dict",
)


class SetValue(FrozenSetValue, MutableContainer):
    """A set. Create new ones with `new_set`.

    `found` are the original members of one found at a source: it is changed member by member, since its order depends
    on its history. None when it was emptied.
    """

    python_types = (set,)
    __slots__ = ("found",)
    mirror: set[object]
    found: dict[object, Value] | None

    def __init__(self, mirror: set[object], members: dict[object, Value], *, source: Source | None = None) -> None:
        super().__init__(mirror, members, source=source)
        self.found = None if source is None else dict(members)

    def is_constant(self) -> bool:
        return False

    def can_be_constant(self) -> bool:
        return False

    def as_constant(self) -> Any:
        return ContainerValue.as_plain(self)

    def as_plain(self) -> Any:
        return {plain(self.members[key]) for key in self.mirror}

    def hash_key(self, tr: Tracer) -> object:
        return ContainerValue.hash_key(self, tr)

    def make(self, tr: Tracer, mirror: set[object] | frozenset[object], members: dict[object, Value]) -> Value:
        value = SetValue(set(mirror) if isinstance(mirror, frozenset) else mirror, members)
        tr.journal.track_new(value)
        return value

    def changes(self, tr: Tracer) -> None:
        super().changes(tr)
        self.version += 1

    def m_copy(self, tr: Tracer) -> Value:
        return self.operation(tr, "copy", [])

    def m_add(self, tr: Tracer, item: Value, /) -> None:
        key = operations.hash_key(tr, item, set)
        self.changes(tr)
        self.mirror.add(key)
        self.members.setdefault(key, item)

    def m_discard(self, tr: Tracer, item: Value, /) -> None:
        self._drop(tr, member_key(tr, item))

    def _drop(self, tr: Tracer, key: object) -> None:
        self.changes(tr)
        self.mirror.discard(key)
        self.members.pop(key, None)

    def m_remove(self, tr: Tracer, item: Value, /) -> None:
        if member_key(tr, item) not in self.mirror:
            tr.raise_(KeyError, item)
        self.m_discard(tr, item)

    def m_pop(self, tr: Tracer) -> Value:
        """`pop()`: the member that the program's own set would return."""
        if not self.mirror:
            tr.raise_(KeyError, "pop from an empty set")
        if not self.ordered and len(self.mirror) > 1:
            raise GraphBreak(SET_ORDER, self.describe())
        self.changes(tr)
        return self.members.pop(self.mirror.pop())

    def m_clear(self, tr: Tracer) -> None:
        self.changes(tr)
        self.mirror.clear()
        self.members.clear()
        self.found = None
        self.ordered = True

    def in_place(self, tr: Tracer, name: str, others: Sequence[Value]) -> None:
        """Apply a method of set that changes it to the real sets of hash keys."""
        theirs = [hashed(tr, other, name) for other in others]
        arguments = [set_argument(other, keys) for other, keys in zip(others, theirs, strict=True)]
        self.changes(tr)
        getattr(self.mirror, name)(*arguments)
        self.members = members_of(self.mirror, [self.members, *theirs])
        self.ordered = self.ordered and all(other.builtin_contents().has_known_order() for other in others)

    def inplace_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in OPERATORS or not isinstance(other.builtin_contents(), FrozenSetValue):
            return None
        self.in_place(tr, "update" if op == "|" else f"{OPERATORS[op]}_update", [other])
        return self

    def m_update(self, tr: Tracer, *others: Value) -> None:
        """`update(*others)`; iterables other than sets are taken item by item, up to an error."""
        for other in others:
            if is_set(other) or other.python_type() is dict:
                self.in_place(tr, "update", [other])
                continue
            for item in each(tr, other):
                self.m_add(tr, item)

    def m_intersection_update(self, tr: Tracer, *others: Value) -> None:
        if all(map(is_set, others)):
            self.in_place(tr, "intersection_update", others)
            return
        common = self.m_intersection(tr, *others)
        assert isinstance(common, FrozenSetValue)
        self.changes(tr)
        self.mirror, self.members, self.ordered = set(common.mirror), dict(common.members), common.ordered

    def m_difference_update(self, tr: Tracer, *others: Value) -> None:
        """`difference_update(*others)`; iterables other than sets are taken item by item."""
        for other in others:
            if is_set(other):
                self.in_place(tr, "difference_update", [other])
                continue
            for item in each(tr, other):
                self._drop(tr, operations.hash_key(tr, item, set))

    def m_symmetric_difference_update(self, tr: Tracer, other: Value, /) -> None:
        self.in_place(tr, "symmetric_difference_update", [other])

    # Back to bytecode

    def contents_type(self) -> type:
        return set

    def item_changes(self) -> Any:
        if self.found is None:
            return None
        # of equal ones (1 and True) it may be another than before: members are compared, not keys
        gone = [(member, DELETED) for key, member in self.found.items() if self.members.get(key) is not member]
        return gone + [(member, member) for key, member in self.members.items() if self.found.get(key) is not member]

    def reconstruct_contents(self, codegen: Codegen) -> None:
        self.push_members(codegen)

    def reconstruct_empty(self, codegen: Codegen) -> None:
        codegen.build("set", 0)

    def reconstruct(self, codegen: Codegen) -> None:
        MutableContainer.reconstruct(self, codegen)


def new_set(tr: Tracer, items: Iterable[Value] = ()) -> SetValue:
    """Return a set made in the trace, members added in order."""
    members: dict[object, Value] = {}
    mirror: set[object] = set()
    for item in items:
        key = operations.hash_key(tr, item, set)
        mirror.add(key)
        members.setdefault(key, item)
    value = SetValue(mirror, members)
    tr.journal.track_new(value)
    return value


def set_of(tr: Tracer, iterable: Value) -> SetValue:
    """`set(iterable)`."""
    members = hashed(tr, iterable)
    value = SetValue(set(set_argument(iterable, members)), dict(members))
    value.ordered = iterable.builtin_contents().has_known_order()
    tr.journal.track_new(value)
    return value


def frozenset_of(tr: Tracer, iterable: Value) -> FrozenSetValue:
    """`frozenset(iterable)`."""
    if type(iterable) is FrozenSetValue:
        return iterable
    members = hashed(tr, iterable)
    value = FrozenSetValue(frozenset(set_argument(iterable, members)), dict(members))
    value.ordered = iterable.builtin_contents().has_known_order()
    return value


@builds_type(set)
def _build_set(tr: Tracer, obj: set[Any]) -> Value:
    value = SetValue(obj.copy(), {item: build(tr, item) for item in obj})
    tr.journal.track_new(value)
    return value


@builds_type(frozenset)
def _build_frozenset(tr: Tracer, obj: frozenset[Any]) -> Value:
    value = FrozenSetValue(obj, {item: build(tr, item) for item in obj})
    value.real = obj
    return value


def _is_known(item: object) -> bool:
    """Whether an object can be found by its name: a class, or a function of a library."""
    return type(item) is type or (isinstance(item, FunctionType) and is_trusted(item.__module__))


@wraps_type(set, frozenset)
def wrap_set(tr: Tracer, obj: set[Any] | frozenset[Any], source: Source) -> Value:
    """Wrap a set of constants found at a source, guarded by its contents; a frozenset may contain classes, too."""
    constant = all(is_constant(item) for item in obj)
    if not constant and isinstance(obj, frozenset) and all(is_constant(item) or _is_known(item) for item in obj):
        tr.guard(source, "ID_MATCH", obj)
        known = FrozenSetValue(obj, {item: tr.constant(item) for item in obj}, source=source)
        known.real = obj
        return known
    if not constant:
        raise GraphBreak(SET_OF_OBJECTS, f"at {source.name}")
    tr.guard(source, "EQUALS_MATCH", obj)
    members = {item: tr.constant(item) for item in obj}
    if isinstance(obj, frozenset):
        frozen = FrozenSetValue(obj, members, source=source)
        frozen.real = obj
        return frozen
    value = SetValue(set(obj), members, source=source)
    tr.journal.track_existing(value, obj)
    return value
