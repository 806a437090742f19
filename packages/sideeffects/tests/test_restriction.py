"""Nested bodies change values that they make and those they are open to; other mutations are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from sideeffects_fakes import Constant, Container, NewObject, existing, new

from framesmith_guards import LocalSource
from framesmith_sideeffects import ChangedAcrossCall, Journal, MutationRefused, UsedAcrossCall


class Plain:
    """Any class."""


class Forgetful(Container):
    """A container that cannot return to an earlier state."""

    saved = None  # type: ignore[assignment]


def forgetful(journal: Journal[Any], name: str) -> Forgetful:
    found = Forgetful(list, source=LocalSource(name))
    journal.track_existing(found, [])
    return found


def test_a_body_may_change_values_that_it_makes() -> None:
    journal = Journal()
    with journal.nested("the body of map"):
        made, obj = new(journal, list), NewObject(Plain)
        journal.track_new(obj, Plain)
        journal.mutate(made)
        journal.store_attr(obj, "a", Constant(1))
    assert journal.is_mutated(made) and journal.is_mutated(obj)


def test_older_values_are_refused_by_name() -> None:
    journal = Journal()
    made, obj = forgetful(journal, "items"), existing(journal, "obj", Plain())
    with journal.nested("the body of map"):
        with pytest.raises(
            MutationRefused, match=r"the body of map may not change a list from L\['items'\], which is older"
        ):
            journal.mutate(made)
        for change in (lambda: journal.store_attr(obj, "a", Constant(1)), lambda: journal.delete_attr(obj, "a")):
            with pytest.raises(MutationRefused, match=r"a Plain from L\['obj'\]") as caught:
                change()
            assert caught.value.body == "the body of map"
    assert journal.is_empty() and not journal.is_mutated(made)
    journal.mutate(made)


def test_values_found_in_the_body_are_older_too() -> None:
    journal = Journal()
    with journal.nested("a body"):
        met = forgetful(journal, "items")
        with pytest.raises(MutationRefused):
            journal.mutate(met)


def test_globals_and_calls_are_outside() -> None:
    journal, namespace = Journal(), {"a": 1}
    with journal.nested("a body"):
        with pytest.raises(MutationRefused, match="the global 'a'"):
            journal.store_global(namespace, "a", Constant(2))
        for name in ("a", "b"):
            with pytest.raises(MutationRefused, match=f"the global '{name}'"):
                journal.delete_global(namespace, name)
        with pytest.raises(MutationRefused, match="what print changes"):
            journal.record_call(print)
    assert journal.is_empty() and journal.load_global(namespace, "a") is None


def test_a_body_may_be_opened_to_values_and_an_inner_one_not_more_than_both() -> None:
    journal = Journal()
    a, b = forgetful(journal, "a"), forgetful(journal, "b")
    with journal.nested("outer", open_to=[a]):
        journal.mutate(a)
        with journal.nested("inner", open_to=[a, b]):
            journal.mutate(a)
            with pytest.raises(MutationRefused, match="outer may not"):
                journal.mutate(b)
        with journal.nested("inner", open_to=[b]), pytest.raises(MutationRefused, match="inner may not"):
            journal.mutate(a)
        journal.mutate(a)
    journal.mutate(b)


def items(journal: Journal[Any]) -> Container:
    found = existing(journal, "items", [])
    found.items = [Constant(1)]
    return found


def test_a_body_may_change_contents_that_it_restores() -> None:
    journal: Journal[Any] = Journal()
    found = items(journal)
    with journal.nested("a body"):
        journal.mutate(found)
        [kept] = found.items
        found.items = [Constant(2)]
        journal.mutate(found)
        found.items = [kept]
    assert journal.is_empty()
    journal.mutate(found)
    with journal.nested("a body"):
        journal.mutate(found)
    assert not journal.is_empty()


def test_contents_that_are_not_restored_are_refused_at_the_end() -> None:
    journal: Journal[Any] = Journal()
    found = items(journal)
    with pytest.raises(MutationRefused, match="a body may not change a list"), journal.nested("a body"):
        journal.mutate(found)
        found.items = [Constant(2)]
    with pytest.raises(KeyError), journal.nested("a body"):
        raise KeyError


def test_an_inner_body_restores_what_an_outer_one_changes() -> None:
    journal: Journal[Any] = Journal()
    found = items(journal)
    with journal.nested("outer"):
        journal.mutate(found)
        [first] = found.items
        found.items = [Constant(2)]
        with journal.nested("inner"):
            journal.mutate(found)
            [second] = found.items
            found.items = [Constant(3)]
            found.items = [second]
        found.items = [first]
    assert journal.is_empty()


def test_nothing_changes_on_both_sides_of_an_ordered_call() -> None:
    """Neither what was changed before it, nor a new object that an older one holds by then."""
    journal = Journal()
    changed, other = existing(journal, "a", []), existing(journal, "b", [])
    shown, hidden = new(journal, list), new(journal, list)
    journal.mutate(changed)
    changed.items.append(shown)
    journal.record_ordered_call(print)
    for value in (changed, shown):
        with pytest.raises(ChangedAcrossCall):
            journal.mutate(value)
    for value in (other, hidden):
        journal.mutate(value)
    journal.record_ordered_call(print)
    with pytest.raises(ChangedAcrossCall):
        journal.mutate(other)


def test_nothing_uses_what_a_call_changes_or_changes_again_what_it_may_read() -> None:
    journal = Journal()
    handed, read, other = existing(journal, "a", Plain()), existing(journal, "b", []), existing(journal, "c", [])
    journal.mutate(read)
    journal.store_global({}, "n", Constant(1))
    journal.store_attr(handed, "x", Constant(1))
    journal.record_changing_call(print, handed, changed=[handed])
    for use in (
        lambda: journal.load_attr(handed, "x"),
        lambda: journal.pending_attrs(handed),
        lambda: journal.store_attr(handed, "x", Constant(2)),
        lambda: journal.mutate(read),
    ):
        with pytest.raises(UsedAcrossCall):
            use()
    journal.mutate(other)
