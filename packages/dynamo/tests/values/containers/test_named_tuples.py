"""Classes that extend named tuples: created by their own `__new__`, or by the generated one called by name."""

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

    def scaled(self):
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


class Place(typing.NamedTuple):
    index: int
    count: int = 3


class Edge(typing.NamedTuple):
    x: int
    index: int = 2

    def __eq__(self, other):
        return self.x == other.x if isinstance(other, Edge) else NotImplemented

    def __hash__(self):
        return hash(self.x)


class Vector(typing.NamedTuple):
    a: object
    b: object

    def __add__(self, other):
        return Vector(self.a + other.a, self.b + other.b)

    def __mul__(self, by):
        return Vector(self.a * by, self.b * by)

    __rmul__ = __mul__

    def __neg__(self):
        return Vector(-self.a, -self.b)

    def __sub__(self, other):
        return self + -other

    def __lt__(self, other):
        return self.a < other.a

    def __gt__(self, other):
        return self.a > other.a

    def __contains__(self, name):
        return name in self._fields

    def __getitem__(self, key):
        return tuple.__getitem__(self, key) if isinstance(key, int) else getattr(self, key)

    def __call__(self, x):
        return self.a * x + self.b


class Methods(typing.NamedTuple):
    a: int
    b: int = 4
    K = 7

    def index(self, value):
        return "own", tuple.index(self, self.b)

    def count(self):
        return tuple.count(self, self.a) + len(self)

    @property
    def total(self):
        return self.a + self.b

    @classmethod
    def make(cls, n):
        return cls(n, n)

    @staticmethod
    def twice(n):
        return 2 * n


class More(Pair):
    def __new__(cls, a):
        self = super().__new__(cls, a)
        self.more = 3
        return self


HELD = Scaled(torch.ones(3), 4)
WITHOUT_BREAKS = {
    "a __new__ of its own": lambda x: Scaled(x, by=3).scaled(),
    "its result": lambda x: Scaled(x, 3),
    "starred": lambda x: Typedly(x),
    "two of them": lambda x: Deeper(x).scaled(),
    "met at a source": lambda x: (HELD.scaled() + x, HELD, HELD[0], len(HELD)),
    "called by name": lambda x: Pair.__new__(Pair, x),
    "called for another class": lambda x: Pair.__new__(Scaled, x, 3),
    "tuple's own": lambda x: tuple.__new__(Scaled, (x, 1)).scaled(),
    "methods of named tuples": lambda x: (Scaled(x)._replace(b=5), Scaled._make([x, 2]), Scaled(x)._asdict()["b"]),
    "as a tuple": lambda x: (*Scaled(x), Scaled(1) == (1, 2), isinstance(Scaled(x), tuple), Scaled(x)[::-1]),
    "another truth": lambda x: (1 if Doubtful(x) else 2, Doubtful(x).a),
    "fields named as tuple's methods": lambda x: (x * Place(2).index + Place(2).count, Place(1), Place(3)[1]),
    "another equality": lambda x: (Edge(1) == Edge(1, 5), Edge(1) != Edge(1, 5), Edge(1) == (1, 2), Edge(2) == 3),
    "in a list": lambda x: (Edge(1) in [Edge(3), Edge(1, 9)], [Edge(3), Edge(1)].index(Edge(1, 7)), hash(Edge(4))),
    "operators": lambda x: (Vector(x, 1) + Vector(1, x), 2 * Vector(x, 1), -Vector(x, 1), Vector(x, 1) - Vector(x, 1)),
    "order": lambda x: (sorted([Vector(3, 1), Vector(1, 2)], reverse=True), max(Vector(1, 1), Vector(2, 0)).a),
    "items": lambda x: (Vector(x, 1)["b"], Vector(x, 1)[0], "a" in Vector(x, 1), 1 in Vector(0, 1), Vector(x, 2)(x)),
    "methods named as tuple's": lambda x: (
        Methods(3).index(2),
        Methods(3).count(),
        Methods(1).make(4),
        Methods(1).twice(x),
    ),
    "what the class has": lambda x: (Methods.K * x, Methods(1).K, Methods.make(2).total),
    "refused": lambda x: Scaled(),
    "refused by the base": lambda x: Pair.__new__(Scaled, x, 1, 2),
}
WITH_BREAKS = {
    "another length": lambda x: (len(Longer(x)), sum(Longer(x)), Longer(x).a),
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
