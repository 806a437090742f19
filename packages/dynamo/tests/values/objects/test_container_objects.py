"""Objects that extend deque, set, frozenset, defaultdict: their contents, their results, and their guards."""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from driver import check, compiled

X = torch.ones(2)


class Ring(deque[Any]):
    def __init__(self, items: Any = (), maxlen: Any = 3) -> None:
        super().__init__(items, maxlen)
        self.dropped = 0

    def append(self, item: Any) -> None:
        self.dropped += len(self) == self.maxlen
        super().append(item)


class Bag(set[Any]):
    def add(self, item: Any) -> None:
        self.last = item
        super().add(item)


class Fixed(frozenset[Any]):
    def __new__(cls, items: Any = (), note: Any = None) -> Fixed:
        made = super().__new__(cls, items)
        made.note = note  # type: ignore[attr-defined]
        return made


class Groups(defaultdict[Any, Any]):
    stores = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.stores += 1
        super().__setitem__(key, value)


class Bytes(bytearray):
    pass


class OwnLength(deque[Any]):
    def __len__(self) -> int:
        return 7


PROGRAMS: list[Any] = []


def program(*args: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append(pytest.param(fn, args, id=fn.__name__))
        return fn

    return register


@program(lambda: Ring([1, 2, 3]))
def ring_found(ring):
    ring.append(4)
    ring.rotate(1)
    ring[0] = "first"
    return ring, ring.dropped, ring.maxlen, ring.copy(), ring + deque([5]), ring * 2, list(ring), ring == deque(ring)


@program()
def ring_made():
    ring, unbounded = Ring([1, 2, 3, 4]), Ring("ab", maxlen=None)
    ring.append(ring)
    unbounded.extendleft(ring)
    ring.__init__([7])
    return ring, unbounded, unbounded.copy(), list(iter(unbounded))


@program(lambda: Bag([1, 2]))
def bag_found(bag):
    bag.add(3)
    bag |= {4}
    bag.discard(1)
    return bag, bag.last, sorted(bag), bag | {9}, {9} - bag, bag.copy(), {2, 3, 4} == bag, frozenset(bag), {2} <= bag


@program()
def bag_made():
    bag = Bag([3, 3, 1])
    bag.add(5)
    bag.__init__([6])
    return bag, bag & {6}, Bag(bag)


@program(lambda: Fixed([1, 2], "noted"))
def fixed_found(fixed):
    table = {fixed: "found", frozenset([3]): "other"}
    return table[frozenset([2, 1])], fixed | {4}, fixed.note, fixed.copy(), 1 in fixed, {1, 2} == fixed


@program()
def fixed_made():
    return Fixed([1, 1, 2], "note"), Fixed()


@program(lambda: Groups(list, a=[1]))
def groups_found(groups):
    groups["a"].append(2)
    groups["b"].append(3)
    old, groups.default_factory = groups.default_factory, dict
    groups["c"]["k"] = 4
    return groups, old, groups.stores, groups.copy(), groups | {"z": 1}, {"z": 1} | groups


@program()
def groups_made():
    groups = Groups(lambda: 7)
    return groups["a"], groups, Groups(None, {"b": 1})


@program(lambda: OrderedDict(a=1), lambda: defaultdict(list, b=[2]))
def unions(ordered, default):
    default.default_factory = None
    return {"x": 1} | ordered, ordered | default, default | ordered, {"y": 1} | default


@program(lambda: SimpleNamespace(a=[1], b=SimpleNamespace(c=2)))
def namespaces(space):
    space.a.append(space)
    space.b.c += 1
    del space.b.c
    return space, SimpleNamespace(z=space.a), SimpleNamespace(a=1) == SimpleNamespace(a=2)


@program(lambda: [2, 3, 1])
def a_list_is_empty_while_it_is_sorted(items):
    seen = []
    items.sort(key=lambda item: seen.append(len(items)) or item)
    try:
        items.sort(key=lambda item: items.append(item) or 0)
    except ValueError as error:
        return items, seen, str(error)


@program(lambda: deque([1]))
def what_a_deque_says(ring):
    try:
        ring.remove(2)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(("fn", "makers"), PROGRAMS)
def test_equals_eager_in_one_graph(fn: Callable[..., Any], makers: Any) -> None:
    def with_a_tensor(x: Any, *args: Any) -> Any:
        return x + 1, fn(*args)

    subject = check(with_a_tensor, X, *(make() for make in makers))
    assert len(subject.graphs) == 1 and not subject.of_kind("break")


class Single:
    made: Single | None = None

    def __new__(cls, name: str) -> Single:
        made = super().__new__(cls)
        made.name = name  # type: ignore[attr-defined]
        return made


class Twice(Single):
    def __init__(self, name: str) -> None:
        self.again = name


class Bare:
    def __new__(cls, n: int) -> Bare:
        made = object.__new__(cls)
        made.n = n  # type: ignore[attr-defined]
        return made


def test_objects_of_classes_with_their_own_new() -> None:
    subject = check(lambda x: (x + 1, Single("a"), Twice("b"), Bare(3)), X)
    assert len(subject.graphs) == 1 and not subject.of_kind("break")


def test_what_is_made_is_what_is_given_out_and_shown() -> None:
    def f(x):
        groups, bag = Groups(list), Bag()
        values, members = groups.values(), [bag]
        groups["a"].append(x)
        bag.add(1)
        return groups, values, bag, members

    groups, values, bag, members = compiled(f)(X)
    groups["b"] = 1
    assert list(values) == [groups["a"], 1] and members[0] is bag and bag == {1} and groups["a"] == [X]


def test_contents_bounds_and_factories_are_guarded() -> None:
    def f(x, ring, bag, groups):
        return x + len(ring), 1 in bag, groups["a"], ring.maxlen

    subject = compiled(f)
    for ring, bag, groups in (
        (Ring([1]), Bag([1]), Groups(list)),
        (Ring([1, 2]), Bag([1]), Groups(list)),
        (Ring([1, 2], 5), Bag([1]), Groups(list)),
        (Ring([1, 2], 5), Bag([2]), Groups(list)),
        (Ring([1, 2], 5), Bag([2]), Groups(dict)),
    ):
        expected = f(X, ring, bag, Groups(groups.default_factory))
        found = subject(X, ring, bag, groups)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
    assert len(subject.of_kind("entry")) == 5


@pytest.mark.parametrize("buffer", [bytearray(b"ab"), memoryview(bytearray(b"ab")), array("i", [1]), Bytes(b"ab")])
def test_buffers_break_by_name(buffer: Any) -> None:
    def f(x, buffer):
        buffer[0] = 65
        return x + 1, len(buffer), buffer

    subject = compiled(f)
    found, length, same = subject(X, buffer)
    assert torch.equal(found, X + 1) and same is buffer and buffer[0] == 65 and length == len(buffer)
    assert {event.broken.kind.id for event in subject.of_kind("break") if event.broken} == {"shared-buffer"}


def test_classes_with_a_length_of_their_own_are_left_to_python() -> None:
    subject = check(lambda x, ring: (x + 1, len(ring), list(ring)), X, OwnLength([1]))
    assert subject.of_kind("break")
