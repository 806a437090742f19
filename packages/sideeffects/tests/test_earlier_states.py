"""Clones of a journal, differences from them, and restoring them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CellType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sideeffects_fakes import Constant, Container, Fake, NewObject, existing, function_of, new

from framesmith_guards import LocalSource
from framesmith_sideeffects import DELETED, Journal, NotRestorable
from framesmith_sideeffects.changes import AttributeChange, ContentsChange


class Plain:
    """Any class."""


class FakeIterator:
    """An iterator over a container's items."""

    def __init__(self, owner: Container) -> None:
        self.source = self.mutation = None
        self.owner = owner
        self.position = 0

    def saved(self) -> object:
        return self.position

    def restore(self, saved: Any) -> None:
        self.position = saved

    def referents(self) -> Sequence[Any]:
        return (self.owner,)

    def reconstruct(self, codegen: Any) -> None:
        raise NotImplementedError


class World:
    """Real objects, and a journal of the same operations on them: one method each."""

    def __init__(self) -> None:
        self.obj, self.items, self.table, self.members = Plain(), [1, 2], {"a": 1}, {1}
        self.cell, self.globals = CellType(0), {"kept": 0}
        self.real: dict[str, Any] = {
            "obj": self.obj, "items": self.items, "table": self.table, "members": self.members, "cell": self.cell,
        }  # fmt: skip
        self.journal = Journal()
        self.value = {name: existing(self.journal, name, obj) for name, obj in self.real.items()}
        self.iterator = FakeIterator(self.value["items"])
        self.journal.track_new(self.iterator)

    def state(self) -> Any:
        attributes = {name: value if isinstance(value, int) else list(value) for name, value in vars(self.obj).items()}
        return (
            list(attributes.items()), self.items, list(self.table.items()), self.members, self.cell.cell_contents,
            list(self.globals.items()),
        )  # fmt: skip

    def replayed(self) -> Any:
        function_of(self.journal, list(self.real), globals=self.globals)(*self.real.values())
        self.globals.pop("__builtins__", None)
        return self.state()


def append(world: World, k: int, n: int) -> None:
    world.journal.mutate(world.value["items"])
    world.value["items"].items.append(Constant(n))


def remove(world: World, k: int, n: int) -> None:
    items = world.value["items"].items
    if items:
        world.journal.mutate(world.value["items"])
        del items[k % len(items)]


def store_item(world: World, k: int, n: int) -> None:
    table = world.value["table"]
    assert isinstance(table, Container)
    world.journal.mutate(table)
    pairs = {key.value: (key, value) for key, value in zip(table.items[::2], table.items[1::2], strict=True)}
    key = "abc"[k]
    pairs[key] = (pairs[key][0] if key in pairs else Constant(key), Constant(n))
    table.items = [part for pair in pairs.values() for part in pair]


def add(world: World, k: int, n: int) -> None:
    members = world.value["members"]
    assert isinstance(members, Container)
    world.journal.mutate(members)
    if n not in [member.value for member in members.items]:
        members.items.append(Constant(n))


def store_attr(world: World, k: int, n: int) -> None:
    world.journal.store_attr(world.value["obj"], "abc"[k], Constant(n))


def delete_attr(world: World, k: int, n: int) -> None:
    if world.journal.load_attr(world.value["obj"], "abc"[k]) not in (None, DELETED):
        world.journal.delete_attr(world.value["obj"], "abc"[k])


def store_new(world: World, k: int, n: int) -> None:
    world.journal.store_attr(world.value["obj"], "abc"[k], new(world.journal, list, [Constant(n)]))


def store_cell(world: World, k: int, n: int) -> None:
    world.journal.store_cell(world.value["cell"], Constant(n))


def store_global(world: World, k: int, n: int) -> None:
    world.journal.store_global(world.globals, "xyz"[k], Constant(n))


def delete_global(world: World, k: int, n: int) -> None:
    if world.journal.load_global(world.globals, "xyz"[k]) not in (None, DELETED):
        world.journal.delete_global(world.globals, "xyz"[k])


def take_next(world: World, k: int, n: int) -> None:
    items, position = world.iterator.owner.items, world.iterator.position
    if position < len(items):
        world.iterator.position += 1
        world.journal.store_attr(world.value["obj"], "taken", items[position])


OPERATIONS: tuple[Callable[[World, int, int], None], ...] = (
    append, remove, store_item, add, store_attr, delete_attr, store_new, store_cell, store_global, delete_global,
    take_next,
)  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2), st.integers(0, 5)), max_size=12)


def run(world: World, steps: Any) -> World:
    for operation, k, n in steps:
        operation(world, k, n)
    return world


@settings(max_examples=400, deadline=None)
@given(STEPS, STEPS, STEPS)
def test_restoring_undoes_all_traced_since_the_clone(before: Any, tried: Any, after: Any) -> None:
    world = run(World(), before)
    clone = world.journal.clone()
    assert not world.journal.diff(clone)
    run(world, tried)
    world.journal.restore(clone)
    assert not world.journal.diff(clone)
    assert run(world, after).replayed() == run(World(), [*before, *after]).replayed()


@settings(max_examples=400, deadline=None)
@given(STEPS, STEPS)
def test_without_a_difference_both_replays_are_the_same(before: Any, since: Any) -> None:
    world = run(World(), before)
    clone = world.journal.clone()
    run(world, since)
    if not world.journal.diff(clone):
        assert world.replayed() == run(World(), before).replayed()


@settings(max_examples=200, deadline=None)
@given(STEPS, STEPS)
def test_a_clone_does_not_change_with_the_journal(before: Any, since: Any) -> None:
    world = run(World(), before)
    clone, twin = world.journal.clone(), world.journal.clone()
    run(world, since)
    assert not twin.diff(clone) and not clone.clone().diff(twin)


def test_a_difference_names_what_changed_since() -> None:
    journal = Journal()
    a, b = existing(journal, "a", [1]), existing(journal, "b", Plain())
    journal.mutate(a)
    journal.store_attr(b, "x", Constant(1))
    journal.store_attr(b, "y", Constant(1))
    older = journal.clone()
    journal.mutate(a)
    assert not journal.diff(older), "nothing was put into the list"
    a.items.append(Constant(1))
    journal.store_attr(b, "x", Constant(2))
    journal.delete_attr(b, "y")
    found = journal.diff(older)
    assert [type(change) for change in found.noted] == [ContentsChange, AttributeChange]
    assert [change.name for change in found.gone if isinstance(change, AttributeChange)] == ["y"]
    assert found.holders == [a] and len(older.changes()) == 3


def test_an_attribute_deleted_and_stored_again_comes_later() -> None:
    journal = Journal()
    value, one = existing(journal, "o", Plain()), Constant(1)
    for name in "ab":
        journal.store_attr(value, name, one)
    older = journal.clone()
    journal.delete_attr(value, "a")
    journal.store_attr(value, "a", one)
    [change] = journal.diff(older).noted
    assert isinstance(change, AttributeChange) and change.name == "a"


class Opaque(Fake):
    """A container that keeps no earlier contents."""


def test_a_changed_container_without_saved_contents_is_not_restorable() -> None:
    journal = Journal()
    value = Opaque(LocalSource("o"))
    journal.track_existing(value, [])
    older = journal.clone()
    journal.restore(older)
    journal.mutate(value)
    assert [change.target for change in journal.diff(older).noted] == [value]
    with pytest.raises(NotRestorable, match="Opaque has changed"):
        journal.restore(older)
    assert journal.is_mutated(value)


def test_values_made_since_the_clone_are_not_tracked() -> None:
    journal = Journal()
    older = journal.clone()
    made = NewObject(Plain)
    journal.track_new(made, Plain)
    journal.restore(older)
    assert made.mutation is None and not list(journal.made())
