"""Attributes and slots that are deleted, stored again and listed, on objects that had others at the calls before."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from driver import compiled, outcome, same

X = torch.arange(6.0).reshape(2, 3)


class Plain:
    """Has a dictionary."""


class Slotted:
    """Has none."""

    __slots__ = ("a", "b")


class Both:
    """Has a slot and a dictionary."""

    __slots__ = ("__dict__", "a")


class Watched:
    """Its own `__delattr__` and `__setattr__`."""

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        object.__delattr__(self, name)


def listed(o):
    return list(vars(o).items()) if hasattr(o, "__dict__") else [getattr(o, "a", None), getattr(o, "b", None)]


def stored_and_deleted(x, o):
    o.a = 1
    del o.a
    return x + 1, hasattr(o, "a")


def moved_to_the_end(x, o):
    v = o.a
    del o.a
    o.a = v
    return x + 1, listed(o)


def deleted_twice(x, o):
    del o.b
    del o.b
    return x + 1


def deleted_under_a_swallowing_block(x, o):
    try:
        del o.b
    except AttributeError as error:
        o.a = str(error)
    else:
        o.b = 5
    return x + 1, listed(o)


def many_steps(x, o):
    o.a = 5
    if hasattr(o, "b"):
        del o.b
    o.b = 3
    seen = listed(o)
    del o.a
    o.a = 4
    return x + 1, seen, listed(o)


def by_name(x, o):
    for name in ("a", "b"):
        setattr(o, name, name)
        delattr(o, name)
        setattr(o, name, 1)
    return x + 1, listed(o)


PROGRAMS: list[Any] = [
    stored_and_deleted, moved_to_the_end, deleted_twice, deleted_under_a_swallowing_block, many_steps, by_name,
]  # fmt: skip
STATES: list[dict[str, int]] = [{}, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}, {"b": 7, "a": 3}]


def made(cls: type, attributes: dict[str, int]) -> Any:
    obj = cls()
    for name, value in attributes.items():
        setattr(obj, name, value)
    return obj


@pytest.mark.sampled(7)
@pytest.mark.parametrize("cls", [Plain, Slotted, Both, Watched], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_every_order_of_objects(fn: Any, cls: type) -> None:
    for first, second in itertools.permutations(STATES, 2):
        subject = compiled(fn)
        for attributes in (first, second, first):
            obj = made(cls, attributes)
            expected = outcome(fn, (X, copy.deepcopy(obj)))
            found = outcome(subject, (X, copy.deepcopy(obj)))
            assert same(found, expected), f"{attributes}: compiled {found}, eager {expected}"
