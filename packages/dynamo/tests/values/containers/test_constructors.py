"""Constructors of containers whose parts are Python's own: defaults of named tuples, `fromkeys`."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from driver import check, compiled

from framesmith_dynamo.values.containers import slices

X = torch.arange(6.0).reshape(2, 3)
SHARED: list[int] = []


class Row(NamedTuple):
    """Its default can be changed."""

    a: int
    seen: list[int] = SHARED
    name: str = "row"


class Wide(Row):
    """Adds only a method."""

    __slots__ = ()

    def width(self) -> int:
        return len(self.seen) + self.a


class Initialised(Row):
    """Has an initializer of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append(self.a)


Loose = namedtuple("Loose", ["p", "q"], defaults=[{}])


@pytest.mark.parametrize("cls", [Row, Wide, Initialised], ids=lambda cls: cls.__name__)
def test_a_default_is_the_one_object_of_the_class(cls: Any) -> None:
    def program(x, a):
        row = cls(a)
        row.seen.append(a)
        return x + len(row.seen), row, row.seen is cls(2).seen

    subject = compiled(program)
    for a in (1, 1, 5):
        length = len(SHARED)
        y, row, same = subject(X, a)
        assert y.equal(X + len(row.seen) - int(cls is Initialised)) and type(row) is cls and same
        assert row.seen is SHARED and len(SHARED) > length and SHARED[length] == a


def test_a_default_that_was_replaced() -> None:
    cls = namedtuple("cls", ["p", "q"], defaults=[[1]])

    def program(x):
        return x + 1, cls(p=2), cls(q=3, p=1)

    subject = compiled(program)
    for default in ([1], [2, 3], {"k": 1}):
        cls.__new__.__defaults__ = (default,)
        _, first, second = subject(X)
        assert first == (2, default) and first.q is default and second == (1, 3)


def arguments(x, make):
    seen = []
    for args, kwargs in (
        ((), {}),
        ((1, 2, 3, 4), {}),
        ((1,), {"a": 2}),
        ((), {"unknown": 1}),
        ((1,), {"q": 2, "p": 3}),
    ):
        try:
            seen.append(make(*args, **kwargs))
        except TypeError as error:
            seen.append(str(error))
    return x + 1, seen


@pytest.mark.parametrize("make", [Row, Loose], ids=lambda make: make.__name__)
def test_arguments_that_do_not_fit(make: Any) -> None:
    check(arguments, X, make, fullgraph=True)


def from_keys(x, keys, value):
    made = [dict.fromkeys(keys), OrderedDict.fromkeys(keys), OrderedDict.fromkeys(iterable=keys, value=value)]
    made += [defaultdict.fromkeys(keys, value), {}.fromkeys(keys, value), OrderedDict().fromkeys(keys)]
    made[1]["a"] = x
    made[1].move_to_end("a", last=False)
    return x + 1, made, [type(d) for d in made], defaultdict(list).fromkeys(keys)


@pytest.mark.parametrize("keys", ["ab", ("a", "c"), ["b", "b"], {"k": 1}], ids=str)
def test_from_keys_makes_the_class_that_was_asked(keys: Any) -> None:
    check(from_keys, X, keys, [3], fullgraph=True)


def test_from_keys_of_other_classes() -> None:
    class Own(dict):
        """Inherits it."""

    def program(x, cls):
        try:
            return x + 1, cls.fromkeys("ab"), type(cls.fromkeys("a"))
        except NotImplementedError as error:
            return x, str(error)

    for cls in (Own, Counter):
        check(program, X, cls)


@pytest.mark.parametrize("make", [list, tuple, set, sum])
def test_long_ranges_break(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MAX_FOLDED", 1000)

    def program(x: torch.Tensor, count: int) -> Any:
        x = x + 1
        return x, make(range(count))

    assert not check(program, X, 1000).of_kind("break")
    subject = check(program, X, 1001)
    assert subject.of_kind("break") and subject.calls == ["add"]


class Table(dict):
    """Extends dict, and nothing else."""


class Ordered(OrderedDict):
    """Extends OrderedDict, and nothing else."""


class Many(list):
    """Extends list, and nothing else."""


MADE: list[Any] = [
    lambda: Table(x=1, y=2), lambda: Table(x=1), lambda: Ordered(x=1, y=2), lambda: Ordered(y=2, x=1),
    lambda: {"x": 1, "y": 2},
    lambda: OrderedDict(y=2, x=1), lambda: Many([1, 2]), lambda: Many([1, 3]), lambda: [1, 2], lambda: (1, 2),
]  # fmt: skip


@pytest.mark.parametrize("left", MADE)
def test_objects_that_extend_containers_meet_others(left: Any) -> None:
    def attempt(run: Any) -> Any:
        try:
            return run()
        except TypeError as error:
            return error.args

    def update(a: Any, b: Any) -> Any:
        before = a
        a |= b
        return before is a, type(a), list(a)

    def program(x: torch.Tensor, a: Any, b: Any) -> Any:
        facts = a == b, a != b, b == a, a in [b], attempt(lambda: a < b), attempt(lambda: update(a, b))
        merged = attempt(lambda: a | b)
        return x + 1, facts, type(merged), list(merged)

    for right in MADE:
        subject = compiled(program)
        assert subject(X, left(), right())[1:] == program(X, left(), right())[1:]
