"""Replays run for real: each kind of mutation exactly once, in order, with identities kept."""

from __future__ import annotations

from collections import OrderedDict, deque
from types import CellType, SimpleNamespace
from typing import Any

import pytest
from sideeffects_fakes import Constant, Container, NewObject, Tuple, existing, function_of, new

from framesmith_guards import AttrSource, InstanceDictSource, ItemSource, LocalSource, ModuleSource
from framesmith_sideeffects import DELETED, Journal


@pytest.mark.parametrize(
    ("obj", "items", "expected"),
    [
        ([1, 2], [3], [3]),
        ({1, 2}, [3], {3}),
        (deque([1, 2], 2), [3, 4], deque([3, 4], 2)),
        ({"a": 1}, ["b", 2], {"b": 2}),
        (OrderedDict(a=1), ["b", 2], OrderedDict(b=2)),
        (bytearray(b"a"), [98], bytearray(b"b")),
    ],
)
def test_contents_of_an_existing_container_are_replaced_in_place(obj: Any, items: list[Any], expected: Any) -> None:
    journal = Journal()
    value = Container(type(obj), [], LocalSource("x"))
    journal.track_existing(value, obj)
    value.items = [Constant(item) for item in items]
    journal.mutate(value)
    returned = function_of(journal, ["x"], value)(obj)
    assert returned is obj
    assert obj == expected


def test_swapping_the_items_of_two_lists_reads_both_first() -> None:
    a, b = [1], [2]
    journal = Journal()
    first, second = existing(journal, "a", a), existing(journal, "b", b)
    assert isinstance(first, Container) and isinstance(second, Container)
    old_first = Container(list, [], ItemSource(LocalSource("a"), 0))
    old_second = Container(list, [], ItemSource(LocalSource("b"), 0))
    first.items, second.items = [old_second], [old_first]
    journal.mutate(first)
    journal.mutate(second)
    function_of(journal, ["a", "b"])(a, b)
    assert (a, b) == ([2], [1])


def test_single_items_of_a_dict_are_written_alone_and_in_order() -> None:
    class Noisy(dict[str, int]):
        def __setitem__(self, key: str, value: int) -> None:
            raise AssertionError("the override was interpreted already")

    d = Noisy(a=1, b=2, c=3)
    journal = Journal()
    value = Container(dict, [], LocalSource("d"))
    journal.track_existing(value, d)
    value.single = [(Constant("a"), DELETED), (Constant("b"), Constant(20)), (Constant("a"), Constant(10))]
    journal.mutate(value)
    function_of(journal, ["d"])(d)
    assert list(d.items()) == [("b", 20), ("c", 3), ("a", 10)]


def test_a_new_list_can_contain_itself() -> None:
    journal = Journal()
    value = new(journal, list)
    value.items = [Constant(1), value]
    journal.mutate(value)
    result = function_of(journal, [], value)()
    assert result[0] == 1 and result[1] is result and len(result) == 2


def test_cycles_through_tuples_and_dicts_are_broken_at_the_mutable_ones() -> None:
    journal = Journal()
    d = new(journal, dict)
    pair = Tuple([d, d])
    inner = new(journal, list, [pair])
    d.items = [Constant("self"), d, Constant("pair"), pair, Constant("list"), inner]
    journal.mutate(d)
    result = function_of(journal, [], pair)()
    assert result[0] is result[1]
    assert result[0]["self"] is result[0] and result[0]["pair"] is result and result[0]["list"] == [result]
    assert result[0]["list"][0] is result


def test_one_new_object_used_twice_stays_one() -> None:
    journal = Journal()
    shared = new(journal, list, [Constant(1)])
    pair = Tuple([shared])
    result = function_of(journal, [], Tuple([pair, pair, shared]))()
    assert result[0] is result[1] and result[0][0] is result[2]


def test_an_existing_list_that_contains_itself_after_the_trace() -> None:
    a: list[Any] = [1]
    journal = Journal()
    value = existing(journal, "a", a)
    assert isinstance(value, Container)
    value.items.append(value)
    journal.mutate(value)
    function_of(journal, ["a"])(a)
    assert a[0] == 1 and a[1] is a and len(a) == 2


class Plain:
    """Attributes as usual."""


class Recording:
    """An overridden `__setattr__` must not run again."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(name)

    def __delattr__(self, name: str) -> None:
        raise AssertionError(name)


@pytest.mark.parametrize("cls", [Plain, Recording])
def test_attributes_are_stored_and_deleted_once(cls: type) -> None:
    obj = cls()
    vars(obj).update(a=1, b=2)
    journal = Journal()
    value = existing(journal, "o", obj)
    journal.store_attr(value, "a", Constant(10))
    journal.delete_attr(value, "b")
    journal.store_attr(value, "c", value)
    assert journal.load_attr(value, "b") is DELETED and journal.load_attr(value, "z") is None
    function_of(journal, ["o"])(obj)
    assert vars(obj) == {"a": 10, "c": obj}


def test_a_deleted_attribute_stored_again_moves_to_the_end() -> None:
    obj = SimpleNamespace(a=1, b=2)
    journal = Journal()
    value = existing(journal, "o", obj)
    journal.delete_attr(value, "a")
    journal.store_attr(value, "a", Constant(3))
    journal.store_attr(value, "a", Constant(4))
    function_of(journal, ["o"])(obj)
    assert list(vars(obj).items()) == [("b", 2), ("a", 4)]


def test_an_attribute_only_the_trace_had_disappears_without_a_trace() -> None:
    obj = Plain()
    journal = Journal()
    value = existing(journal, "o", obj)
    journal.store_attr(value, "a", Constant(1))
    journal.delete_attr(value, "a")
    assert journal.load_attr(value, "a") is DELETED and journal.is_empty()
    function_of(journal, ["o"])(obj)
    assert vars(obj) == {}


class Slotted:
    """Slots are attributes too."""

    __slots__ = ("a", "b")


def test_slots_are_deleted_only_when_filled() -> None:
    obj = Slotted()
    obj.a = 1
    journal = Journal()
    value = existing(journal, "o", obj)
    journal.delete_attr(value, "a")
    journal.store_attr(value, "b", Constant(1))
    journal.delete_attr(value, "b")
    function_of(journal, ["o"])(obj)
    assert not hasattr(obj, "a") and not hasattr(obj, "b")


def test_new_objects_get_their_attributes_after_they_all_exist() -> None:
    journal = Journal()
    left, right = NewObject(Plain), NewObject(Recording)
    journal.track_new(left, Plain)
    journal.track_new(right, Recording)
    journal.store_attr(left, "other", right)
    journal.store_attr(right, "other", left)
    journal.store_attr(right, "gone", left)
    journal.delete_attr(right, "gone")
    result = function_of(journal, [], left)()
    assert type(result) is Plain and type(result.other) is Recording
    assert vars(result.other) == {"other": result}


def test_cells_existing_and_new() -> None:
    cell = CellType(1)
    journal = Journal()
    old = existing(journal, "c", cell)
    fresh = NewObject(CellType)
    journal.track_new(fresh)
    journal.store_cell(old, Constant(2))
    journal.store_cell(fresh, old)
    assert journal.load_cell(fresh) is old
    result = function_of(journal, ["c"], fresh)(cell)
    assert cell.cell_contents == 2 and result.cell_contents is cell
    journal = Journal()
    old = existing(journal, "c", cell)
    journal.delete_cell(old)
    function_of(journal, ["c"])(cell)
    with pytest.raises(ValueError, match="empty"):
        _ = cell.cell_contents


def test_globals_of_the_own_and_of_another_namespace() -> None:
    own: dict[str, Any] = {"a": 1, "b": 2}
    other = SimpleNamespace(x=1)
    journal = Journal()
    journal.store_global(own, "a", Constant(10))
    journal.delete_global(own, "b")
    journal.store_global(vars(other), "x", Constant(5), InstanceDictSource(LocalSource("o")))
    journal.store_global(vars(other), "y", Constant(6), InstanceDictSource(LocalSource("o")))
    journal.delete_global(vars(other), "y", InstanceDictSource(LocalSource("o")))
    journal.store_global(vars(other), "y", Constant(7), InstanceDictSource(LocalSource("o")))
    assert journal.load_global(own, "b") is DELETED and journal.load_global(own, "zz") is None
    function_of(journal, ["o"], globals=own)(other)
    assert own["a"] == 10 and "b" not in own and vars(other) == {"x": 5, "y": 7}


def test_a_global_made_and_deleted_leaves_no_change() -> None:
    own: dict[str, Any] = {"a": 1}
    journal = Journal()
    journal.store_global(own, "new", Constant(1))
    journal.delete_global(own, "new")
    assert journal.load_global(own, "new") is None and journal.is_empty()
    function_of(journal, [], globals=own)()
    assert "new" not in own


def test_calls_are_repeated_in_their_place() -> None:
    seen: list[Any] = []
    obj = SimpleNamespace(a=0)

    def note(value: Any, tag: str) -> None:
        seen.append((tag, value.a))

    journal = Journal()
    value = existing(journal, "o", obj)
    journal.record_call(note, value, Constant("before"))
    journal.store_attr(value, "a", Constant(1))
    journal.record_call(note, value, Constant("after"))
    function_of(journal, ["o"])(obj)
    assert seen == [("before", 0), ("after", 1)]


def test_values_are_read_before_anything_changes() -> None:
    obj = SimpleNamespace(inner=SimpleNamespace(a=1))
    journal = Journal()
    value = existing(journal, "o", obj)
    inner = Container(list, [], AttrSource(LocalSource("o"), "inner"))
    journal.store_attr(value, "inner", Constant(None))
    journal.store_attr(value, "saved", inner)
    before = obj.inner
    assert function_of(journal, ["o"], inner)(obj) is before
    assert obj.inner is None and obj.saved is before


def test_running_twice_makes_new_objects_each_time() -> None:
    journal = Journal()
    function = function_of(journal, [], new(journal, list, [Constant(1)]))
    assert function() == function() == [1]
    assert function() is not function()


def test_sources_of_modules_load_in_generated_code() -> None:
    import collections

    journal = Journal()
    value = Container(list, [], AttrSource(ModuleSource("collections"), "deque"))
    assert function_of(journal, [], value)() is collections.deque
