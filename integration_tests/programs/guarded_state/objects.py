"""Objects changed between calls: instance dictionaries, slots, enums, dataclasses, named tuples, cached properties."""

import collections
import contextvars
import dataclasses
import enum
import functools
import inspect
import os
import random
import threading
import types
import weakref
from typing import NamedTuple

import torch

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, World, deleting, dropping, setting, storing

family = Family()


class Thing:
    shared = 1.0

    def __init__(self, a=2.0, b=1.0):
        self.a = a
        self.b = b


class Slotted:
    __slots__ = ("a", "b")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Record:
    a: float = 2.0
    seen: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: float = 2.0


Pair = collections.namedtuple("Pair", "a b", defaults=(1.0,))


def _with(thing):
    return lambda: (torch.arange(1.0, 4.0), thing)


@family.holder("two", "five", "tensor", "gone")
def instance_attribute() -> World:
    thing = Thing()

    def f(x, o):
        return x * o.a, o.b

    states = [setting(thing, a=2.0), setting(thing, a=5.0), setting(thing, a=torch.ones(3)), deleting(thing, "a")]
    return World(f, states, _with(thing))


@family.holder("two", "five", "gone")
def instance_dictionary() -> World:
    thing = Thing()

    def f(x, o):
        return x * vars(o)["a"], o.__dict__.get("a", 1.0), list(vars(o))

    return World(f, [setting(thing, a=2.0), setting(thing, a=5.0), deleting(thing, "a")], _with(thing))


@family.holder("own", "of_another", "plain", "copy")
def instance_dictionary_passed_beside() -> World:
    thing, other = Thing(), Thing()
    passed: list = [None]

    def f(x, o, tables):
        o.a = 10.0
        y = x * tables[0].get("a", 1.0)
        tables[0]["a"] = 3.0
        tables[0]["new"] = 4.0
        return y * o.a, getattr(o, "new", None), vars(o) is tables[0]

    def put(table):
        vars(thing).clear()
        vars(thing).update(a=1.0)
        passed[0] = table() if callable(table) else table

    tables = vars(thing), vars(other), {"a": 5.0}, lambda: dict(vars(thing))
    states = [lambda table=table: put(table) for table in tables]
    return World(f, states, lambda: (torch.ones(2), thing, passed), watch=[thing, other])


@family.holder("made", "replaced", "shared")
def instance_dictionary_assigned() -> World:
    thing, other = Thing(), Thing(7.0)

    def f(x, o):
        o.b = o.a + 1
        return x * vars(o)["b"], o.__dict__ is vars(other)

    def shared():
        thing.__dict__ = other.__dict__

    def made(value):
        thing.__dict__ = {"a": value}

    return World(f, [lambda: made(2.0), lambda: made(5.0), shared], _with(thing), watch=[thing, other])


@family.holder("two", "five")
def instance_dictionary_assigned_inside() -> World:
    thing = Thing()

    def f(x, o):
        held = o.__dict__
        o.__dict__ = {"a": held["a"] + 1, "c": 1}
        held["a"] = 100.0
        return x * o.a, list(vars(o)), held

    states = [lambda value=value: setattr(thing, "__dict__", {"a": value}) for value in (2.0, 5.0)]
    return World(f, states, _with(thing), watch=[thing])


@family.holder("a_first", "b_first", "longer")
def order_of_attributes() -> World:
    thing = Thing()

    def reset(**fields):
        vars(thing).clear()
        vars(thing).update(fields)

    def f(x, o):
        names = list(vars(o))
        held = o.a
        del o.a
        o.new = 1
        o.a = held
        del o.new
        return x * len(names), names, list(vars(o)), list(o.__dict__.items())

    states = [lambda: reset(a=1, b=2), lambda: reset(b=2, a=1), lambda: reset(c=0, a=1, b=2)]
    return World(f, states, _with(thing), watch=[thing])


@family.holder("two", "five", "unset")
def slot() -> World:
    thing = Slotted()

    def f(x, o):
        o.b = getattr(o, "a", 1.0) * 2
        return x * o.a, hasattr(o, "b")

    def unset():
        if hasattr(thing, "a"):
            del thing.a

    return World(f, [setting(thing, a=2.0), setting(thing, a=5.0), unset], _with(thing), watch=[thing])


@family.holder("two", "five", "gone")
def simple_namespace() -> World:
    config = types.SimpleNamespace(a=2.0)

    def f(x):
        config.seen = getattr(config, "a", 0.0)
        return x * config.a, vars(config)

    return World(f, [setting(config, a=2.0), setting(config, a=5.0), deleting(config, "a")], watch=[config])


class Settings:
    """Stands for a module: what it lacks it makes up."""

    def __init__(self, values):
        self.values = values

    def __getattr__(self, name):
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


@family.holder("two", "five", "gone", "own")
def object_with_getattr() -> World:
    settings = Settings({"scale": 2.0})

    def f(x):
        return x * settings.scale, getattr(settings, "other", None)

    def put(**values):
        deleting(settings, "scale")()
        settings.values = values

    states = [lambda: put(scale=2.0), lambda: put(scale=5.0, other=1), put, lambda: setattr(settings, "scale", 9.0)]
    return World(f, states)


@family.holder("two", "five", "gone")
def enum_member_attribute() -> World:
    def f(x, e):
        return x * e.weight, e, e.name

    states = [setting(Colour.RED, weight=2.0), setting(Colour.RED, weight=5.0), deleting(Colour.RED, "weight")]
    return World(f, states, _with(Colour.RED))


@family.holder("one", "ten", "text")
def enum_value_changed() -> World:
    def f(x):
        return x * len(str(Colour.RED.value)), Colour.RED.value, Colour.BLUE.value

    states = [setting(Colour.RED, _value_=value) for value in (1, 10, "text")]
    return World(f, states)


@family.holder("absent", "method", "another_method", "constant")
def enum_class_attribute() -> World:
    def f(x):
        return x * Colour.BLUE.weight() if callable(Colour.BLUE.weight) else x + Colour.BLUE.weight

    states = [
        deleting(Colour, "weight"),
        *(_class_member(Colour, "weight", m) for m in (lambda self: 2, lambda self: self.value + 3, 7.0)),
    ]
    return World(f, states)


def _class_member(kind, name, member):
    return lambda: type.__setattr__(kind, name, member)


@family.holder("low", "high", "integer")
def enum_member_held() -> World:
    holder = Thing()

    def f(x, o):
        return x * o.a, str(o.a), f"{o.a}", repr(o.a), o.a == 1, isinstance(o.a, Level)

    return World(f, [setting(holder, a=Level.LOW), setting(holder, a=Level.HIGH), setting(holder, a=1)], _with(holder))


@family.holder("two", "five", "gone")
def dataclass_class_default() -> World:
    def f(x):
        return x * Record.a, Record().a

    return World(f, [setting(Record, a=2.0), setting(Record, a=5.0), deleting(Record, "a")])


@family.holder("two", "five", "renamed")
def dataclass_fields() -> World:
    field = Record.__dataclass_fields__["a"]

    def f(x):
        first = dataclasses.fields(Record)[0]
        return x * first.default, first.name, Record.__dataclass_fields__["a"].default

    return World(f, [setting(field, default=2.0, name="a"), setting(field, default=5.0), setting(field, name="z")])


@family.holder("two", "five")
def dataclass_default_of_init() -> World:
    def f(x):
        record = Record()
        record.seen.append(1)
        return x * record.a, record, dataclasses.replace(record, seen=[]), dataclasses.asdict(record)

    def put(value):
        Record.__init__.__defaults__ = (value, *Record.__init__.__defaults__[1:])

    return World(f, [lambda: put(2.0), lambda: put(5.0)])


@family.holder("list_", "filled", "tuple_")
def dataclass_default_factory() -> World:
    field = Record.__dataclass_fields__["seen"]

    def f(x):
        made = field.default_factory()
        return x + len(made), made

    return World(f, [setting(field, default_factory=kind) for kind in (list, lambda: [1, 2], tuple)])


@family.holder("two", "five")
def frozen_dataclass() -> World:
    thing = Frozen()

    def f(x, o):
        try:
            o.a = 1.0
        except dataclasses.FrozenInstanceError as error:
            said = str(error)
        return x * o.a, said, o == Frozen(2.0), hash(o) == hash(Frozen(2.0))

    states = [lambda value=value: object.__setattr__(thing, "a", value) for value in (2.0, 5.0)]
    return World(f, states, _with(thing))


@family.holder("empty", "one", "two")
def named_tuple_with_a_mutable_default() -> World:
    class P(NamedTuple):
        a: int
        seen: list = []

    def f(x):
        p = P(1)
        p.seen.append(len(p.seen))
        return x + len(p.seen), p

    default = P._field_defaults["seen"]
    states = [lambda items=items: default.__setitem__(slice(None), items) for items in ([], [1], [1, 2])]
    return World(f, states, watch=[default])


@family.holder("one", "seven", "none")
def named_tuple_defaults() -> World:
    def f(x):
        p = Pair(2.0)
        return x * p.b, p, Pair._field_defaults, Pair._fields

    def put(*defaults):
        Pair.__new__.__defaults__ = defaults

    return World(f, [lambda: put(1.0), lambda: put(7.0), lambda: put()])


@family.holder("two", "five")
def named_tuple_method_with_a_cell() -> World:
    value = 2.0

    class P(Pair):
        def method(self):
            return self.a * value

        @property
        def prop(self):
            return value

    def put(new):
        nonlocal value
        value = new

    def f(x, p):
        return x * p.method() + p.prop, p

    return World(f, [lambda: put(2.0), lambda: put(5.0)], _with(P(3.0)))


class Lazy:
    def __init__(self):
        self.computed = 0
        self.base = 2.0

    @functools.cached_property
    def value(self):
        self.computed += 1
        return self.base * 2


@family.holder("fresh", "computed", "overwritten")
def cached_property() -> World:
    thing = Lazy()

    def fresh():
        dropping(vars(thing), "value")()
        thing.computed = 0

    def f(x, o):
        first = o.value
        o.base = 3.0
        return x * first, o.value, o.computed, "value" in vars(o)

    def state(value):
        fresh()
        thing.base, thing.value = 2.0, value

    return World(f, [fresh, lambda: state(4.0), lambda: state(9.0)], _with(thing), watch=[thing])


@family.holder("own", "replaced", "another_object")
def cached_property_replaced() -> World:
    own = vars(Lazy)["value"]
    thing = Lazy()

    def put(member):
        dropping(vars(thing), "value")()
        _class_member(Lazy, "value", member)()

    def f(x, o):
        return x * o.value

    another = functools.cached_property(lambda self: 7.0)
    another.__set_name__(Lazy, "value")
    return World(f, [lambda: put(own), lambda: put(another), lambda: put(property(lambda self: 8.0))], _with(thing))


@family.holder("alive", "another", "dead")
def weak_reference() -> World:
    things = {"one": Thing(2.0), "two": Thing(5.0)}
    held = Thing()
    mortal = Thing()
    dead = weakref.ref(mortal)
    del mortal

    def f(x, o):
        target = o.ref()
        return x if target is None else x * target.a, target is None

    states = [setting(held, ref=weakref.ref(thing)) for thing in things.values()] + [setting(held, ref=dead)]
    return World(f, states, _with(held), watch=[things])


@family.program
def weak_reference_that_dies() -> Case:
    things = [Thing(2.0)]
    ref = weakref.ref(things[0])

    def f(x):
        target = ref()
        return x if target is None else x * target.a

    return Case(f, [(torch.ones(2),)] * 4, before=[lambda: None, lambda: None, things.clear, lambda: None])


@family.program
def weak_dictionary_that_loses_an_entry() -> Case:
    things = [Thing(2.0), Thing(5.0)]
    table = weakref.WeakValueDictionary(a=things[0], b=things[1])

    def f(x):
        found = table.get("b")
        return x * len(table), None if found is None else found.a, sorted(table)

    return Case(f, [(torch.ones(2),)] * 4, before=[lambda: None, lambda: None, things.pop, things.pop])


@family.program
def weak_proxy_that_dies() -> Case:
    things = [Thing(2.0)]
    proxy = weakref.proxy(things[0])

    def f(x):
        try:
            return x * proxy.a
        except ReferenceError as error:
            return str(error)

    change = setting(things[0], a=5.0)
    steps = [lambda: None, lambda: None, change, lambda: None]
    case = Case(f, [(torch.ones(2),)] * 5, before=[*steps, lambda: (steps.clear(), things.clear())])
    del change
    return case


@family.holder("default", "two", "five")
def context_variable() -> World:
    variable = contextvars.ContextVar("variable", default=1.0)
    tokens: list = []

    def put(value):
        while tokens:
            variable.reset(tokens.pop())
        if value:
            tokens.append(variable.set(value))

    def f(x):
        return x * variable.get()

    return World(f, [lambda: put(None), lambda: put(2.0), lambda: put(5.0)])


@family.holder("two", "five", "gone")
def thread_local() -> World:
    local = threading.local()

    def f(x):
        return x * local.a

    def drop():
        if hasattr(local, "a"):
            del local.a

    return World(f, [setting(local, a=2.0), setting(local, a=5.0), drop])


@family.holder("absent", "two", "five")
def environment_variable() -> World:
    name = "PROGRAMS_SCALE"

    def f(x):
        return x * float(os.environ.get(name, "1")), name in os.environ

    drop = dropping(os.environ, name)
    return World(f, [drop, storing(os.environ, PROGRAMS_SCALE="2"), storing(os.environ, PROGRAMS_SCALE="5")], undo=drop)


@family.holder("seed_one", "seed_two")
def random_module() -> World:
    def f(x):
        k = random.random()
        torch.bernoulli(x * 0)
        return x * k, random.randint(0, 9), random.choice("abc")

    return World(f, [lambda: random.seed(1), lambda: random.seed(2)])


@family.holder("two", "five", "gone")
def signature_of_a_function() -> World:
    def h(a=2.0, *, k=1.0):
        return a

    def f(x):
        parameters = inspect.signature(h).parameters
        return x * parameters["a"].default, list(parameters), parameters["a"].default is inspect.Parameter.empty

    return World(f, [setting(h, __defaults__=(2.0,)), setting(h, __defaults__=(5.0,)), setting(h, __defaults__=None)])


@family.holder("two", "five", "another_name")
def signature_assigned() -> World:
    def h(a=2.0):
        return a

    def given(name, default):
        parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        return setting(h, __signature__=inspect.Signature([parameter]))

    def f(x):
        parameters = inspect.signature(h).parameters
        return x * next(iter(parameters.values())).default, str(inspect.signature(h))

    return World(f, [given("a", 2.0), given("a", 5.0), given("b", 5.0)])


def _texts():
    return torch.ones(2), "".join(["he", "llo"]), 10**20, 2.5 * 3


@family.program
def identity_of_arguments_returned() -> Case:
    def f(x, s, n, r):
        return x + 1, s, n, r

    return Case(f, [_texts() for _ in range(3)])


@family.program
def identity_of_arguments_stored() -> Case:
    log: list = []
    table: dict = {}
    thing = Thing()

    def f(x, s, n, r):
        log.append(s)
        table[n] = r
        table["s"] = s
        thing.a, thing.b = n, (s, r)
        return x + 1

    return Case(f, [_texts() for _ in range(3)], watch=[log, table, thing])


@family.program
def identity_of_arguments_in_containers() -> Case:
    def f(x, items, table):
        return x + 1, items[0], [table["s"]], (items[1], *items), items

    def arguments():
        x, s, n, r = _texts()
        return x, (s, n, r), {"s": s}

    return Case(f, [arguments() for _ in range(3)])


@family.program
def identity_asked_inside() -> Case:
    def f(x, a, b, c):
        return x * (2 if a is b else 3), a is c, b == c, (a, b).index(c)

    s = _texts()[1]
    again = "".join(["hel", "lo"])
    return Case(f, [(torch.ones(2), *args) for args in ((s, s, s), (s, again, s), (again, again, s), (s, s, again))])
