"""Classes that extend named tuples: made by `__new__`s of their own, or by the generated one called by name."""

import collections
import typing

import pytest
import torch
from driver import compiled, outcome, same

X = torch.arange(3.0)
Pair = collections.namedtuple("Pair", "a b", defaults=[1.0])


class Typed(typing.NamedTuple):
    a: torch.Tensor
    b: int = 3


class Scaled(Pair):
    __slots__ = ()

    def __new__(cls, a, b=2, *, by=1):
        return super().__new__(cls, a, b * by)

    def product(self):
        return self.a * self.b


class Typedly(Typed):
    def __new__(cls, data):
        return super().__new__(cls, *(data + i for i in range(2)))


class Deeper(Scaled):
    def __new__(cls, a):
        made = super().__new__(cls, a, by=5)
        return made if made.b > 0 else None


class Longer(Pair):
    def __len__(self):
        return 7

    def __iter__(self):
        return iter([5, 6])


class Doubtful(Pair):
    def __bool__(self):
        return False


class More(Pair):
    def __new__(cls, a):
        self = super().__new__(cls, a)
        self.more = 3
        return self


HELD = Scaled(torch.ones(3), 4)
WITHOUT_BREAKS = {
    "a __new__ of its own": lambda x: Scaled(x, by=3).product(),
    "its result": lambda x: Scaled(x, 3),
    "starred": lambda x: Typedly(x),
    "two of them": lambda x: Deeper(x).product(),
    "met at a source": lambda x: (HELD.product() + x, HELD, HELD[0], len(HELD)),
    "called by name": lambda x: Pair.__new__(Pair, x),
    "called for another class": lambda x: Pair.__new__(Scaled, x, 3),
    "tuple's own": lambda x: tuple.__new__(Scaled, (x, 1)).product(),
    "methods of named tuples": lambda x: (Scaled(x)._replace(b=5), Scaled._make([x, 2]), Scaled(x)._asdict()["b"]),
    "as a tuple": lambda x: (*Scaled(x), Scaled(1) == (1, 2), isinstance(Scaled(x), tuple), Scaled(x)[::-1]),
    "refused": lambda x: Scaled(),
    "refused by the base": lambda x: Pair.__new__(Scaled, x, 1, 2),
}
WITH_BREAKS = {
    "another length": lambda x: (len(Longer(x)), sum(Longer(x)), Longer(x).a),
    "another truth": lambda x: (1 if Doubtful(x) else 2, Doubtful(x).a),
    "an attribute": lambda x: More(x).a * More(x).more,
}


@pytest.mark.parametrize("name", [*WITHOUT_BREAKS, *WITH_BREAKS])
def test_as_in_eager_mode(name):
    function = {**WITHOUT_BREAKS, **WITH_BREAKS}[name]
    expected = outcome(function, (X,))
    fn = compiled(function)
    for _ in range(3):
        assert same(outcome(fn, (X,)), expected)
    assert bool(fn.of_kind("break")) is (name in WITH_BREAKS)
