"""The journal: recording, refusing, pruning, comparing."""

from __future__ import annotations

import pytest
from sideeffects_fakes import Constant, Fake, NewObject, Tuple, existing, new

from framesmith_sideeffects import Journal, NotTracked, has_own_attribute
from framesmith_sideeffects.contents import row_for


class Plain:
    """Any class."""


def test_untracked_values_may_not_be_mutated() -> None:
    journal = Journal()
    with pytest.raises(NotTracked, match="not tracked"):
        journal.mutate(Fake())
    tracked_elsewhere = new(Journal(), list)
    with pytest.raises(NotTracked):
        journal.store_attr(tracked_elsewhere, "a", Constant(1))


def test_one_object_has_one_value() -> None:
    journal = Journal()
    obj: list[int] = []
    value = existing(journal, "a", obj)
    assert journal.value_of(obj) is value and journal.value_of([]) is None
    with pytest.raises(ValueError, match="second value"):
        existing(journal, "b", obj)
    with pytest.raises(ValueError, match="already"):
        journal.track_new(value)


def test_mutated_means_contents_or_attributes() -> None:
    journal = Journal()
    a, b, c = (new(journal, list) for _ in range(3))
    journal.mutate(a)
    journal.store_attr(b, "x", Constant(1))
    assert [journal.is_mutated(value) for value in (a, b, c)] == [True, True, False]


def test_pending_attributes_come_in_the_order_of_the_dict() -> None:
    journal = Journal()
    value = NewObject(Plain)
    journal.track_new(value, Plain)
    one, two = Constant(1), Constant(2)
    journal.store_attr(value, "a", one)
    journal.store_attr(value, "b", one)
    journal.store_attr(value, "a", two)
    assert list(journal.pending_attrs(value)) == ["a", "b"]
    journal.delete_attr(value, "a")
    journal.store_attr(value, "a", one)
    assert journal.pending_attrs(value) == {"b": one, "a": one} and list(journal.pending_attrs(value)) == ["b", "a"]


def test_pruning_drops_unreachable_values() -> None:
    journal = Journal()
    kept, dropped, held = NewObject(Plain), NewObject(Plain), new(journal, list)
    for value in (kept, dropped):
        journal.track_new(value, Plain)
    journal.store_attr(kept, "held", held)
    journal.store_attr(dropped, "held", kept)
    journal.prune([Tuple([kept])])
    assert [change.target for change in journal.changes()] == [kept]
    assert id(held) in journal.reached() and id(dropped) not in journal.reached()


def test_values_stored_in_existing_objects_stay_alive() -> None:
    journal = Journal()
    owner = existing(journal, "o", Plain())
    held = NewObject(Plain)
    journal.track_new(held, Plain)
    journal.store_attr(owner, "held", held)
    journal.store_attr(held, "x", Constant(1))
    journal.prune([])
    assert [change.target for change in journal.changes()] == [owner, held]
    assert not journal.is_empty()


def test_escaping_values_new_values_and_parts() -> None:
    journal = Journal()
    owner, held, loose = existing(journal, "o", Plain()), NewObject(Plain), NewObject(Plain)
    for value in (held, loose):
        journal.track_new(value, Plain)
    inner, part = Constant(1), Constant(2)
    journal.store_attr(owner, "held", held)
    journal.store_attr(loose, "inner", inner)
    journal.store_attr(loose, "gone", part)
    journal.delete_attr(loose, "gone")
    assert list(journal.escaping()) == [held] and list(journal.made()) == [held, loose]
    assert list(journal.held_values(loose)) == [inner] and list(journal.held_values(Tuple([part]))) == [part]


def test_objects_of_the_trace_alone_change_nothing_that_exists() -> None:
    journal = Journal()
    value = new(journal, list)
    journal.mutate(value)
    assert journal.is_empty() and journal.changes() == []


class WithProperty:
    """A property must not be read to learn whether an instance has an attribute."""

    def __init__(self) -> None:
        self.plain = 1

    @property
    def computed(self) -> int:
        raise AssertionError

    def __getattr__(self, name: str) -> int:
        raise AssertionError(name)


def test_own_attributes_are_found_without_running_code() -> None:
    obj = WithProperty()
    assert has_own_attribute(obj, "plain")
    assert not has_own_attribute(obj, "computed") and not has_own_attribute(obj, "missing")
    assert has_own_attribute(Plain, "__doc__") and not has_own_attribute(Plain, "missing")


def test_a_strange_contents_type_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"one of .*deque.* not tuple"):
        row_for(tuple)


def test_presence_of_annotations_evaluates_none() -> None:
    def annotate(format: int) -> dict[str, object]:
        raise AssertionError

    def annotated() -> None:
        pass

    class Annotated:
        pass

    for owner in (annotated, Annotated):
        setattr(owner, "__annotate__", annotate)
    assert has_own_attribute(annotated, "__annotations__") and has_own_attribute(Annotated, "__annotations__")
    assert not has_own_attribute(int, "__annotations__")
