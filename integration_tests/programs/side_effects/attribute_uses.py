"""Attributes as programs use them: descriptors with state, hooks that call super, dataclasses of all kinds."""

import contextlib
import dataclasses
import enum
import functools
import operator
import typing
import weakref

import torch

from integration_tests.harness.differential import Case
from integration_tests.programs.side_effects.operations import attempt


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


def descriptor_with_a_table_of_its_own() -> Case:
    class Typed:
        def __init__(self, kind):
            self.kind, self.values, self.sets = kind, {}, 0

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, obj, owner=None):
            return self if obj is None else self.values.get(obj.key, self.kind())

        def __set__(self, obj, value):
            if not isinstance(value, self.kind):
                raise TypeError(f"{self.name} is a {self.kind.__name__}")
            self.sets += 1
            self.values[obj.key] = value

        def __delete__(self, obj):
            del self.values[obj.key]

    class Thing:
        size = Typed(int)
        name = Typed(str)

        def __init__(self, key):
            self.key = key

    a, b = Thing("a"), Thing("b")

    def f(x):
        a.size += 1
        b.size = a.size * 2
        seen = attempt(setattr, a, "size", "big"), attempt(delattr, a, "name"), b.name
        a.name = "n"
        del a.name
        y = x * b.size
        return y, seen, Thing.size.sets, dict(Thing.size.values)

    return Case(f, _xs(), watch=[a, b])


def descriptor_with_weak_keys() -> Case:
    class Weak:
        def __init__(self):
            self.table = weakref.WeakKeyDictionary()

        def __get__(self, obj, owner=None):
            return self.table.get(obj, 0)

        def __set__(self, obj, value):
            self.table[obj] = value

    class Thing:
        count = Weak()

    thing = Thing()

    def f(x):
        thing.count += 1
        return x * thing.count

    return Case(f, _xs(), watch=[thing])


def descriptor_that_raises_into_getattr() -> Case:
    log: list = []

    class Thing:
        def __init__(self):
            self.log = log

        @property
        def lazy(self):
            self.log.append("property")
            raise AttributeError("not yet")

        def __getattr__(self, name):
            log.append(name)
            if name == "lazy":
                self.found = len(log)
                return 3
            raise AttributeError(name)

    thing = Thing()

    def f(x):
        y = x * thing.lazy
        return y, hasattr(thing, "other"), getattr(thing, "nothing", 5), thing.found

    return Case(f, _xs(), watch=[thing, log])


def hooks_that_call_super() -> Case:
    class Base:
        def __setattr__(self, name, value):
            self.__dict__.setdefault("order", []).append(("set", name))
            super().__setattr__(name, value)

        def __delattr__(self, name):
            self.order.append(("delete", name))
            super().__delattr__(name)

    class Derived(Base):
        def __setattr__(self, name, value):
            super().__setattr__(f"_{name}", value)

        def __getattr__(self, name):
            if name[:1] == "_":
                raise AttributeError(name)
            return getattr(self, f"_{name}")

    d = Derived()

    def f(x):
        d.a = x
        d.b = 2
        y = d.a * d.b
        del d._a
        with contextlib.suppress(AttributeError):
            del d._a
        return y, hasattr(d, "a")

    return Case(f, _xs(), watch=[d])


def slots_in_two_classes() -> Case:
    class Base:
        __slots__ = ("a", "log")

        def __init__(self):
            self.log = []

        @property
        def b(self):
            self.log.append("b")
            return self.a

        @b.setter
        def b(self, value):
            self.a = value

        @b.deleter
        def b(self):
            del self.a

    class Derived(Base):
        __slots__ = ("a", "c")

    d = Derived()

    def f(x):
        d.b = x
        Base.a.__set__(d, 7)
        y = d.a * Base.a.__get__(d)
        with contextlib.suppress(AttributeError):
            del d.b
            del d.b
        d.c = len(d.log)
        return y + d.c, attempt(lambda: d.b), hasattr(d, "c")

    return Case(f, _xs(), watch=[d])


def slots_with_names_of_the_class() -> Case:
    class Private:
        __slots__ = ("__hidden", "shown")

        def put(self, value):
            self.__hidden = value
            self.shown = self.__hidden

        def drop(self):
            del self.__hidden

    p = Private()

    def f(x):
        p.put(x + 1)
        y = p.shown * 2
        p.drop()
        return y, attempt(p.drop), hasattr(p, "_Private__hidden")

    return Case(f, _xs(), watch=[p])


@dataclasses.dataclass(order=True)
class Ordered:
    rank: int
    name: str = dataclasses.field(default="n", compare=False)
    start: dataclasses.InitVar[int] = 1
    total: int = dataclasses.field(init=False, repr=False)
    kept: typing.ClassVar[int] = 10

    def __post_init__(self, start):
        self.total = start + self.rank


@dataclasses.dataclass(kw_only=True, eq=False)
class Options:
    scale: float = 2.0
    parent: typing.Any = None


@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    tags: tuple = ()

    @functools.cached_property
    def double(self):
        return self.width * 2

    def wider(self):
        return dataclasses.replace(self, width=self.width + 1)


class Point(typing.NamedTuple):
    x: int
    y: int = 2

    def moved(self, by):
        return self._replace(x=self.x + by)


class Tagged(Point):
    def reach(self):
        return self.x + 1


class Mode(enum.IntFlag):
    A = 1
    B = 2
    AB = 3


class Kind(enum.StrEnum):
    LOW = "low"
    HIGH = "high"

    @property
    def other(self):
        return Kind.HIGH if self is Kind.LOW else Kind.LOW


def dataclass_of_all_fields() -> Case:
    o = Ordered(2)

    def f(x):
        o.rank += 1
        o.total += o.rank
        twin = dataclasses.replace(o, start=5)
        made = Ordered(rank=1, name="made")
        return x * o.total, twin > made, sorted([twin, made]), o == twin, repr(made), o.kept

    return Case(f, _xs(), watch=[o])


def dataclass_of_keywords() -> Case:
    def f(x, o):
        o.scale *= 2
        child = Options(parent=o)
        child.parent.scale += 1
        return x * o.scale, child, child == Options(parent=o)

    return Case(f, _xs(Options()))


def frozen_with_a_cached_property() -> Case:
    def f(x, c):
        wide = c.wider()
        seen = attempt(setattr, wide, "double", 1), attempt(delattr, wide, "width")
        return x * c.double + wide.double, wide, hash(c) == hash(Config(c.width, c.tags)), seen

    return Case(f, _xs(Config(3, ("a",))))


def named_tuples() -> Case:
    def f(x, p):
        q = p.moved(3)
        return x * q.x, q, attempt(setattr, q, "x", 1), attempt(delattr, p, "x"), q._asdict()

    return Case(f, _xs(Point(1)))


def named_tuples_with_attributes() -> Case:
    def f(x, p):
        seen = hasattr(p, "tag"), attempt(getattr, p, "tag"), attempt(delattr, p, "tag"), p.reach()
        if not seen[0]:
            p.tag = x
            p.reach = lambda: 9
        return x * p.reach(), seen

    first, second = Tagged(1), Tagged(2)
    return Case(f, [(torch.ones(3), p) for p in (first, first, second, first)])


def flags_and_strings() -> Case:
    class Holder:
        mode = Mode.A
        kind = Kind.LOW

    holder = Holder()

    def f(x):
        holder.mode |= Mode.B
        holder.kind = holder.kind.other
        return x * int(holder.mode), holder.mode is Mode.AB, holder.kind is Kind.HIGH, Mode.A in holder.mode

    return Case(f, _xs(), watch=[holder])


def single_dispatch() -> Case:
    class Show:
        def __init__(self):
            self.seen = []

        @functools.singledispatchmethod
        def show(self, value):
            self.seen.append("any")

        @show.register
        def _(self, value: int):
            self.seen.append(value)

    show = Show()

    def f(x):
        show.show(3)
        show.show("text")
        return x * len(show.seen)

    return Case(f, _xs(), watch=[show])


def attributes_by_computed_names() -> Case:
    class Thing:
        pass

    thing = Thing()

    def f(x, names):
        for n, name in enumerate(names):
            setattr(thing, name, x * n)
        for name in names[::2]:
            delattr(thing, name)
        total = sum(getattr(thing, name, 0) for name in names)
        return total + x, sorted(thing.__dict__), operator.attrgetter("b")(thing)

    return Case(f, _xs(["a", "b", "c"]), watch=[thing])


def methods_put_on_an_object() -> Case:
    class Thing:
        def act(self, x):
            return x * 2

    thing = Thing()

    def f(x):
        y = thing.act(x)
        thing.act = lambda x: x * 5
        z = thing.act(x)
        del thing.act
        return y, z, thing.act(x), attempt(delattr, thing, "act")

    return Case(f, _xs(), watch=[thing])


def an_object_that_counts_its_calls() -> Case:
    class Counted:
        def __init__(self):
            self.calls = 0
            self.last = None

        def __call__(self, x):
            self.calls += 1
            self.last = x
            if self.calls % 2 == 0:
                raise ValueError(self.calls)
            return x * self.calls

        def __enter__(self):
            self.calls += 10
            return self

        def __exit__(self, *error):
            self.error = error[0] and error[0].__name__
            return True

    c = Counted()

    def f(x):
        y = c(x)
        with c as inner:
            y = y + inner(x + 1)
            y = y + inner(x + 2)
        return y, c.calls

    return Case(f, _xs(), watch=[c])
