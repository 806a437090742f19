"""Objects of user classes, compared with eager mode: attribute look-up, descriptors, operators, special methods."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import pytest
import torch
from driver import check

X = torch.arange(6.0).reshape(2, 3)


class Base:
    scale = 2.0

    def __init__(self, weight: float = 1.5) -> None:
        self.weight = weight
        self.calls = 0

    @property
    def doubled(self) -> float:
        return self.weight * 2

    @doubled.setter
    def doubled(self, value: float) -> None:
        self.weight = value / 2

    @classmethod
    def make(cls, weight: float) -> Base:
        return cls(weight)

    @staticmethod
    def plus(x: Any, y: Any) -> Any:
        return x + y

    @functools.cached_property
    def cached(self) -> float:
        self.calls += 1
        return self.weight + 1

    def apply(self, x: Any, *, bias: float = 0.0) -> Any:
        self.calls += 1
        return x * self.weight * self.scale + bias

    half = functools.partialmethod(apply, bias=0.5)


class Derived(Base):
    scale = 3.0

    def apply(self, x: Any, *, bias: float = 0.0) -> Any:
        return super().apply(x, bias=bias) + super().doubled


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


class Fallback:
    def __init__(self) -> None:
        self.real = 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("made_"):
            return len(name)
        raise AttributeError(name)


class Intercepting:
    def __init__(self) -> None:
        self.a = 1
        self.b = 2

    def __getattribute__(self, name: str) -> Any:
        if name == "alias":
            name = "b"
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("b" if name == "alias" else name, value)


class Typed:
    """A data descriptor written in Python."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        return self if obj is None else getattr(obj, self.name, -1)

    def __set__(self, obj: Any, value: Any) -> None:
        setattr(obj, self.name, value * 10)


class Described:
    field = Typed()


class Number:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Number):
            return Number(self.value + other.value)
        return NotImplemented if isinstance(other, str) else Number(self.value + other)

    def __radd__(self, other: Any) -> Any:
        return Number(other + self.value)

    def __iadd__(self, other: Any) -> Any:
        self.value = self.value + other
        return self

    def __neg__(self) -> Any:
        return Number(-self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.value == other.value

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other.value)

    __hash__ = None  # type: ignore[assignment]


class Louder(Number):
    def __radd__(self, other: Any) -> Any:
        return Number(100)


class Bag:
    def __init__(self, items: Any) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: Any) -> Any:
        return self.items[i]

    def __setitem__(self, i: Any, value: Any) -> None:
        self.items[i] = value

    def __delitem__(self, i: Any) -> None:
        del self.items[i]

    def __contains__(self, item: Any) -> bool:
        return item in self.items

    def __iter__(self) -> Any:
        return iter(self.items)

    def __call__(self, x: Any, k: int = 1) -> Any:
        return x * k + len(self)


class Countdown:
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Manager:
    def __init__(self, swallow: bool = False) -> None:
        self.log: list[str] = []
        self.swallow = swallow

    def __enter__(self) -> Manager:
        self.log.append("in")
        return self

    def __exit__(self, kind: Any, error: Any, where: Any) -> bool:
        self.log.append("out" if kind is None else kind.__name__)
        return self.swallow


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"

    def describe(self) -> str:
        return f"{self.name}!"


@dataclasses.dataclass(eq=False)
class Point:
    x: Any
    y: float = 2.0
    tags: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.total = self.x + self.y


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int
    y: int = 3


class Pair(NamedTuple):
    first: Any
    second: Any = 5

    def swap(self) -> Pair:
        return Pair(self.second, self.first)


class CustomError(ValueError):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def existing_attributes(x: Any, obj: Any) -> Any:
    obj.doubled = obj.doubled + 1
    return (
        obj.apply(x) + obj.half(x) + obj.plus(x, obj.cached) + obj.cached,
        type(obj).__name__,
        obj.__class__ is Derived,
    )


def made_in_the_trace(x: Any) -> Any:
    made = Derived.make(2.0)
    made.extra = x + made.weight
    return made.apply(made.extra), made


def slots(x: Any) -> Any:
    made = Slots(x)
    made.b = made.a * 2
    has_c = hasattr(made, "c")
    del made.a
    return made.b, has_c, hasattr(made, "a")


class SlotsOnly(Slots):
    __slots__ = ()
    scale = 2


def refused_in_slots(x: Any) -> Any:
    errors = []
    for made in (SlotsOnly(x), Slots(x)):
        for name in ("b", "scale", "apply", "__init__"):
            for change in (setattr, delattr, getattr):
                try:
                    change(made, name, *([x] if change is setattr else []))
                except AttributeError as error:
                    errors.append((name, change.__name__, str(error)))
    return x + 1, errors


def getattr_fallbacks(x: Any) -> Any:
    f, i = Fallback(), Intercepting()
    i.alias = 7
    return x + f.real + f.made_up + i.alias + i.a, hasattr(f, "nothing"), getattr(f, "nothing", 3), vars(i)


def descriptors(x: Any) -> Any:
    d = Described()
    before = d.field
    d.field = 4
    return x + d.field + before, isinstance(Described.field, Typed)


def operators(x: Any) -> Any:
    a, b = Number(x), Number(2.0)
    c = a + b
    d = 1.0 + b
    b += 3
    louder = b + Louder(1)
    return c.value + d.value, (-b).value, b == Number(5.0), b != Number(5.0), Number(1) < b, louder.value


def containers(x: Any) -> Any:
    bag = Bag([1, 2, 3])
    bag[0] = 10
    del bag[1]
    return (
        bag(x, k=2),
        len(bag),
        10 in bag,
        2 in bag,
        [i for i in bag],
        bool(bag),
        bool(Bag([])),
        list(Countdown(3)),
        sum(Countdown(4)),
    )


def managers(x: Any) -> Any:
    with Manager() as m:
        y = x + 1
    swallowing = Manager(swallow=True)
    with swallowing:
        raise ValueError("gone")
    return y, m.log, swallowing.log


def enums(x: Any) -> Any:
    color = Color("blue")
    return x + Color.RED.value, color is Color.BLUE, color.describe(), color.name, {Color.RED: 1}[Color.RED]


def dataclass_objects(x: Any) -> Any:
    p = Point(x)
    p.tags.append("a")
    q = dataclasses.replace(Frozen(1), y=9)
    return p, p.total, q.x + q.y, Frozen(1) == Frozen(1, 3), [f.name for f in dataclasses.fields(p)]


def named_tuples(x: Any) -> Any:
    pair = Pair(x)
    return pair.swap(), pair.second, pair[0] + 1, pair._fields, isinstance(pair, tuple)


def exceptions(x: Any) -> Any:
    try:
        raise CustomError(3)
    except ValueError as error:
        caught = error
    return x + caught.code, caught.args, str(caught)


def dictionary(x: Any) -> Any:
    made = Base()
    made.__dict__["late"] = 4
    made.__dict__.update(more=5)
    return x + made.late + made.more, sorted(made.__dict__), "weight" in made.__dict__, made.__dict__.get("none")


PROGRAMS = [
    made_in_the_trace,
    slots,
    refused_in_slots,
    getattr_fallbacks,
    descriptors,
    operators,
    containers,
    managers,
    enums,
    dataclass_objects,
    named_tuples,
    exceptions,
    dictionary,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(program: Any) -> None:
    subject = check(program, X)
    assert not subject.of_kind("break"), [str(event.broken) for event in subject.of_kind("break")]


def test_existing_object_keeps_its_mutations() -> None:
    subject = check(existing_attributes, X, Derived())
    assert not subject.of_kind("break")


def test_two_kinds_of_object_do_not_share_an_entry() -> None:
    def program(x: Any, obj: Any) -> Any:
        return obj.apply(x)

    check(program, X, Base(2.0))
    check(program, X, Derived(2.0))


def test_shadowing_a_class_attribute_recompiles() -> None:
    from driver import compiled

    obj = Base()
    subject = compiled(lambda x: x * obj.scale)
    assert torch.equal(subject(X), X * 2.0)
    obj.scale = 5.0
    assert torch.equal(subject(X), X * 5.0)
    del obj.scale
    Base.scale = 4.0
    try:
        assert torch.equal(subject(X), X * 4.0)
    finally:
        Base.scale = 2.0


class SetOnly:
    """A descriptor without `__get__`: the instance dictionary is read first, and stores go through it."""

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["nodes"] = value
        owner.__dict__.pop("cached", None)


class Graph:
    nodes = SetOnly()

    def __init__(self) -> None:
        self.nodes = {}


class SetOnlyMeta(type):
    nodes = SetOnly()


class OfMeta(metaclass=SetOnlyMeta):
    nodes = 3


def test_what_a_descriptor_without_get_is_named_like_is_read_from_the_instance() -> None:
    def found(x: Any, graph: Any) -> Any:
        return x + len(graph.nodes), graph.nodes

    def made(x: Any, graph: Any) -> Any:
        graph.nodes = {1: 2}
        graph.nodes[3] = 4
        new = Graph()
        new.nodes["a"] = x
        return vars(new), new.nodes, x + 1

    def through_the_class(x: Any, graph: Any) -> Any:
        return OfMeta.nodes + x

    for fn in (found, made, through_the_class):
        graph = Graph()
        vars(graph)["cached"] = 5
        check(fn, X, graph)
