"""Frozen dataclasses as keys of dicts and members of sets: as in eager mode."""

from dataclasses import dataclass, field

import pytest
import torch
from driver import check, compiled, same

import framesmith_frames as frames

X = torch.arange(3.0)


@dataclass(frozen=True)
class Key:
    a: int
    b: str = "b"


@dataclass(frozen=True)
class Wider(Key):
    c: int = 0


@dataclass(frozen=True)
class Partly:
    a: int
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class OwnHash:
    a: int

    def __hash__(self):
        return 7


@dataclass(unsafe_hash=True)
class Changing:
    a: int


TABLE = {Key(1): 3, Key(2): 5}


def stored(x, table):
    table[Key(3)] = x.shape[0]
    table[Key(1)] += 1
    return x + table[Key(3)], table


def over_a_break(x):
    made = {Key(1): x, Wider(1): 3}
    print(end="")
    return made[Key(1)] + made[Wider(1)], made


WITHOUT_BREAKS = {
    "looked up": lambda x: (x * TABLE[Key(2)] + TABLE.get(Key(9), 7), Key(1) in TABLE, Key(1, "c") in TABLE),
    "made": lambda x: (x * {Key(1): 2, Key(1): 4}[Key(1)], len({Key(1), Key(1), Key(2)})),
    "returned": lambda x: ({Key(1): x, Key(2): [x]}, {Key(1)} == {Key(1)}),
    "a subclass": lambda x: x + len({Key(1): 1, Wider(1): 2}),
    "fields that are not compared": lambda x: (x + len({Partly(1, "a"), Partly(1, "b")}), {Partly(1, "a"): 1}),
}
WITH_BREAKS = {
    "a hash of its own": lambda x: x + len({OwnHash(1), OwnHash(1)}),
    "fields that may change": lambda x: x + len({Changing(1), Changing(1)}),
    "over a break": over_a_break,
}


@pytest.mark.parametrize("name", [*WITHOUT_BREAKS, *WITH_BREAKS])
def test_as_in_eager_mode(name):
    fn = check({**WITHOUT_BREAKS, **WITH_BREAKS}[name], X)
    assert bool(fn.of_kind("break")) is (name in WITH_BREAKS)


def test_stored_in_an_existing_dict():
    assert not check(stored, X, {Key(1): 0, Key(2): 1}).of_kind("break")


def test_fields_are_guarded():
    frames.reset()
    table, key = {Key(1): 2}, Key(1)

    def function(x):
        return x * table.get(key, 9)

    fn = compiled(function)
    assert same(fn(X), X * 2)
    object.__setattr__(key, "a", 5)
    assert same(fn(X), X * 9)
    table[Key(5)] = 4
    assert same(fn(X), X * 4)
