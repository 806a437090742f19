"""`locals()`, `vars()` and `dir()`, with an object and without: as in eager mode."""

import pytest
import torch
from driver import check

X = torch.arange(3.0)


class Pair:
    kind = 1

    def __init__(self):
        self.a, self.b = 1, 2

    def method(self):
        return self.a


class Slotted:
    __slots__ = ("a",)


PAIR = Pair()


def inner(x, *args, k=2, **options):
    y = x + 1
    return locals()


def everything(x):
    k = 3
    y = x + k
    found = locals()
    return list(found), found["y"] * found["k"]


def with_cells(x):
    n = 3

    def add():
        return n + x

    found = vars()
    return sorted(found), found["n"], add()


def some_unbound(x):
    if x.shape[0] > 5:
        y = 1
    z = 2
    del z
    return sorted(locals()), x + 1


def changed(x):
    found = locals()
    found["more"] = 3
    return found["more"] * x, sorted(found)


def of_an_object(x):
    return x * sum(vars(PAIR).values()), [name for name in dir(PAIR) if not name.startswith("__")]


def of_an_object_and_a_break(x):
    x = x * sum(vars(PAIR).values())
    print(end="")
    return x + len(vars(PAIR)) + len(dir(PAIR))


def twice(x):
    first = sorted(locals())
    y = x + 1
    return first, sorted(locals()), y


WITHOUT_BREAKS = {
    "everything": everything,
    "of a callee": lambda x: (list(inner(x, 1, z=2)), inner(x)["y"]),
    "with cells": with_cells,
    "some unbound": some_unbound,
    "changed": changed,
    "of an object": of_an_object,
    "of slots": lambda x: (x + 1, [name for name in dir(Slotted()) if not name.startswith("_")]),
    "own names": lambda x: (dir(), x + 1),
    "formatted": lambda x, n=3: x + len("{n} of {m}".format(m=2, n=locals()["n"])),
}
WITH_BREAKS = {"twice": twice, "of an object and a break": of_an_object_and_a_break, "of a class": lambda x: dir(Pair)}


@pytest.mark.parametrize("name", [*WITHOUT_BREAKS, *WITH_BREAKS])
def test_as_in_eager_mode(name):
    fn = check({**WITHOUT_BREAKS, **WITH_BREAKS}[name], X)
    assert bool(fn.of_kind("break")) is (name in WITH_BREAKS)


def test_a_break_beside_vars_of_an_object_leaves_two_graphs():
    assert len(check(of_an_object_and_a_break, X).graphs) == 2
