"""Operations on objects of classes: descriptors, slots, properties, attribute hooks, dataclasses, weakrefs."""

import copy
import dataclasses
import enum
import functools
import operator
import weakref
from contextlib import suppress
from typing import Any

from integration_tests.programs.side_effects.operations import Holder, attempt, family_of


class Noted:
    """A data descriptor that notes what is done; it keeps its value in the object's dictionary under its own name."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        obj.log.append(("get", self.name))
        if self.name not in obj.__dict__:
            raise AttributeError(f"no {self.name} yet")
        return obj.__dict__[self.name]

    def __set__(self, obj, value):
        obj.log.append(("set", self.name))
        obj.__dict__[self.name] = value

    def __delete__(self, obj):
        obj.log.append(("delete", self.name))
        if self.name not in obj.__dict__:
            raise AttributeError(f"nothing in {self.name}")
        del obj.__dict__[self.name]


class Once:
    """A non-data descriptor: what it computes is put in front of it."""

    def __init__(self, function):
        self.function = function

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        value = obj.__dict__[self.name] = self.function(obj)
        return value


class WriteOnly:
    def __set__(self, obj, value):
        obj.written = value


class Refusing:
    def __get__(self, obj, owner=None):
        return 7

    def __set__(self, obj, value):
        raise AttributeError("not this one")


class Described:
    noted = Noted()
    write_only = WriteOnly()
    fixed = Refusing()

    def __init__(self):
        self.log = []

    @Once
    def once(self):
        self.log.append("computed")
        return len(self.log)


class Proper:
    total = 0

    def __init__(self):
        self._level = 1
        self.events = []

    @property
    def level(self):
        self.events.append("get")
        return self._level

    @level.setter
    def level(self, value):
        self.events.append("set")
        if isinstance(value, str):
            raise TypeError("a level is a number")
        self._level = value

    @level.deleter
    def level(self):
        self.events.append("delete")
        del self._level

    @property
    def read_only(self):
        return self._level * 2

    @functools.cached_property
    def cached(self):
        self.events.append("cached")
        return self._level + 1


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


class Wider(Slotted):
    __slots__ = ("__dict__", "c")


class Dynamic:
    def __init__(self):
        object.__setattr__(self, "fields", {})
        object.__setattr__(self, "calls", [])

    def __getattr__(self, name):
        self.calls.append(("get", name))
        if name not in self.fields:
            raise AttributeError(f"nothing called {name}")
        return self.fields[name]

    def __setattr__(self, name, value):
        self.calls.append(("set", name))
        self.fields[name] = value

    def __delattr__(self, name):
        self.calls.append(("delete", name))
        if name not in self.fields:
            raise AttributeError(f"cannot delete {name}")
        del self.fields[name]


class Doubling:
    """Its `__setattr__` changes what it is given, and lets `object` store it."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value if isinstance(value, list) else value * 2)

    def __getattribute__(self, name):
        if name == "virtual":
            return 42
        return super().__getattribute__(name)


@dataclasses.dataclass
class Record:
    a: int = 1
    b: Any = None
    rest: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.rest.append(self.a)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int = 1
    b: Any = None
    made: list = dataclasses.field(default_factory=list, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "sum", self.a + 1)


@dataclasses.dataclass(slots=True)
class SlottedRecord:
    a: int = 1
    b: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: int = 1


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    def __init__(self, number):
        self.uses = 0

    def use(self):
        self.uses += 1
        return self.uses


class Base:
    shared = 1
    listed: list = []


class Derived(Base):
    pass


class Plain:
    kind = "plain"

    def __init__(self):
        self.x = 1


class Linked:
    def __init__(self):
        self.target = Plain()
        self.link = weakref.ref(self.target)


class Slots:
    __slots__ = ("__weakref__", "a", "b")


def set_get(name, value):
    def op(c, x):
        setattr(c, name, value)
        return getattr(c, name)

    return op


def delete(name):
    return lambda c, x: attempt(delattr, c, name)


def noted_in_blocks(c, x):
    with suppress(AttributeError):
        del c.noted
    try:
        c.noted = x + 1
        raise KeyError("behind it")
    except KeyError:
        c.noted = x
    finally:
        c.log.append("finally")
    return c.noted


def noted_set_and_deleted(c, x):
    c.noted = x
    del c.noted
    return attempt(lambda: c.noted), "noted" in vars(c)


def noted_of_the_class(c, x):
    return type(c).noted is vars(type(c))["noted"], type(c).noted.name


def once_again(c, x):
    first = c.once
    del c.once
    return first, c.once


def once_in_front(c, x):
    c.once = x
    seen = c.once
    del c.__dict__["once"]
    return seen, c.once


def write_only(c, x):
    c.write_only = x
    return c.written, type(c.write_only).__name__, attempt(delattr, c, "write_only")


def fixed(c, x):
    return attempt(setattr, c, "fixed", 1), c.fixed, attempt(delattr, c, "fixed")


def level_up(c, x):
    c.level = c.level + 1
    c.level += 1
    return x * c.level


def level_of_tensor(c, x):
    c.level = x.sum()
    return c.level * 2


def level_refused(c, x):
    return attempt(setattr, c, "level", "high"), c.events[-1]


def level_gone(c, x):
    c.level = 3
    del c.level
    seen = attempt(lambda: c.level), attempt(delattr, c, "level")
    c.level = 1
    return seen


def cached(c, x):
    first = c.cached
    del c.cached
    c._level += 1
    return first, c.cached, c.cached


def cached_in_front(c, x):
    c.cached = x
    return c.cached


def slot_filled(c, x):
    c.b = x * 2
    return c.b, hasattr(c, "b")


def slot_moves(c, x):
    c.b = c.a
    del c.a
    seen = attempt(lambda: c.a), attempt(delattr, c, "a")
    c.a = c.b
    del c.b
    return seen, hasattr(c, "a"), hasattr(c, "b")


def slot_in_blocks(c, x):
    with suppress(AttributeError):
        del c.a
        del c.a
    with suppress(AttributeError):
        c.b = x
        del c.b
        del c.b
    c.a = 1
    return hasattr(c, "b")


def slot_unknown(c, x):
    return attempt(setattr, c, "z", 1), attempt(getattr, c, "z"), attempt(delattr, c, "z")


def slot_by_descriptor(c, x):
    slot = type(c).__dict__.get("a", Slotted.a)
    return slot.__get__(c), attempt(slot.__set__, c, 5), c.a


def slot_swap(c, x):
    c.b = x
    c.a, c.b = c.b, c.a
    c.a, c.b = c.b, c.a
    del c.b
    return c.a


def wide(c, x):
    c.free = x
    c.c = 1
    del c.c
    return vars(c), attempt(lambda: c.c)


def hooks_of_attributes(c, x):
    c.one = x
    c.two = 2
    del c.one
    return c.two, attempt(lambda: c.one), attempt(delattr, c, "one"), hasattr(c, "two")


def past_the_hooks(c, x):
    object.__setattr__(c, "raw", x)
    object.__delattr__(c, "raw")
    object.__setattr__(c, "raw", 2)
    return c.raw


def doubled(c, x):
    c.v = 3
    c.t = x
    c.v += 1
    return c.v, c.t, c.virtual, attempt(lambda: c.missing)


def doubled_gone(c, x):
    c.v = 3
    del c.v
    return attempt(lambda: c.v), sorted(vars(c))


def replace(c, x):
    new = dataclasses.replace(c, a=5)
    return new, new == c, dataclasses.asdict(new)["a"], [f.name for f in dataclasses.fields(c)]


def record_fields(c, x):
    c.a += 1
    c.b = x
    c.rest.append(c.a)
    c.extra = "beside"
    return repr(c.a), len(c.rest)


def record_deleted(c, x):
    del c.a
    seen = c.a, "a" in vars(c)
    c.a = 2
    return seen


def record_compared(c, x):
    other = Record(c.a)
    other.rest = c.rest
    return other == c, other != Record(9)


def frozen_refused(c, x):
    return attempt(setattr, c, "a", 2), attempt(delattr, c, "a"), attempt(setattr, c, "new", 2)


def frozen_forced(c, x):
    object.__setattr__(c, "a", c.a + 1)
    c.made.append(x.shape[0])
    return c.a, c.sum, hash(Frozen(1)) == hash(Frozen(1)), c == Frozen(c.a, c.b)


def use_color(c, x):
    return c.use(), Color.RED.use(), c is Color(2), Color["BLUE"].name


def color_attribute(c, x):
    c.note = x.shape[0]
    return Color.BLUE.note, attempt(setattr, c, "name", "x"), attempt(setattr, Color, "RED", 3)


def class_counter(c, x):
    Base.shared += 1
    c.shared = c.shared + 10
    return Base.shared, type(c).shared, c.shared


def class_through_type(c, x):
    type(c).shared = 5
    seen = c.shared, Base.shared
    del type(c).shared
    return seen, c.shared, attempt(delattr, type(c), "shared")


def class_list(c, x):
    c.listed.append(len(Base.listed))
    Derived.listed = [*c.listed]
    c.listed.append("own")
    seen = list(Base.listed), list(c.listed)
    del Derived.listed
    return seen


def class_method_added(c, x):
    Derived.extra = lambda self, k: k + 1
    seen = c.extra(1)
    del Derived.extra
    return seen, hasattr(c, "extra")


def class_property_added(c, x):
    Derived.prop = property(lambda self: self.shared + 100)
    seen = c.prop
    del Derived.prop
    return seen


def set_delete_set(c, x):
    c.t = 1
    del c.t
    c.t = x
    del c.t
    c.u = 1
    c.t = 2
    return list(vars(c)), attempt(lambda: c.nope), attempt(delattr, c, "nope")


def shadow_class(c, x):
    c.kind = "own"
    seen = c.kind
    del c.kind
    return seen, c.kind, attempt(delattr, c, "kind")


def by_dict(c, x):
    c.__dict__["d"] = 1
    c.__dict__.update(e=2, f=x)
    del c.__dict__["e"]
    vars(c).pop("f")
    return c.d, hasattr(c, "e"), sorted(vars(c)), c.__dict__.setdefault("g", 4)


def dict_replaced(c, x):
    c.__dict__ = {"x": 5}
    return c.x, vars(c)


def class_replaced(c, x):
    c.__class__ = Other
    seen = c.kind, type(c).__name__
    c.__class__ = Plain
    return seen


class Other(Plain):
    kind = "other"


def copies(c, x):
    c.k = [1]
    twin = copy.copy(c)
    twin.k.append(2)
    twin.own = 1
    return twin, c.k, hasattr(c, "own")


def bound_method(c, x):
    c.method = Plain.__init__.__get__(c)
    c.x = 5
    c.method()
    del c.method
    return c.x


def follow(c, x):
    c.link().x += 1
    return c.link().x, c.link() is c.target, attempt(operator.attrgetter("target.x"), c)


def link_to_new(c, x):
    new = Plain()
    ref = weakref.ref(new)
    new.x = 9
    return ref().x, ref() is new


def link_kept(c, x):
    c.other = Plain()
    c.other_link = weakref.ref(c.other)
    return c.other_link() is c.other


def link_proxy(c, x):
    proxy = weakref.proxy(c.target)
    proxy.x = 3
    return c.target.x


def link_callback(c, x):
    gone = []
    new = Plain()
    ref = weakref.ref(new, lambda ref: gone.append("gone"))
    return ref() is new, len(gone)


def link_set(c, x):
    known = weakref.WeakSet([c.target])
    known.add(c)
    return len(known), c in known


HOLDERS = {
    "described": Holder(
        Described,
        {
            "set": set_get("noted", 5),
            "in_blocks": noted_in_blocks,
            "set_and_deleted": noted_set_and_deleted,
            "of_the_class": noted_of_the_class,
            "read": lambda c, x: attempt(lambda: c.noted),
            "delete": delete("noted"),
            "once": lambda c, x: (c.once, c.once),
            "once_again": once_again,
            "once_in_front": once_in_front,
            "write_only": write_only,
            "fixed": fixed,
        },
    ),
    "proper": Holder(
        Proper,
        {
            "up": level_up,
            "tensor": level_of_tensor,
            "refused": level_refused,
            "gone": level_gone,
            "read_only": lambda c, x: (attempt(setattr, c, "read_only", 1), attempt(delattr, c, "read_only")),
            "cached": cached,
            "cached_in_front": cached_in_front,
        },
    ),
    "slotted": Holder(
        Slotted,
        {
            "filled": slot_filled,
            "moves": slot_moves,
            "in_blocks": slot_in_blocks,
            "unknown": slot_unknown,
            "by_descriptor": slot_by_descriptor,
            "swap": slot_swap,
            "delete": delete("b"),
        },
    ),
    "wider": Holder(Wider, {"moves": slot_moves, "in_blocks": slot_in_blocks, "wide": wide}),
    "dynamic": Holder(Dynamic, {"hooks": hooks_of_attributes, "past_them": past_the_hooks}),
    "doubling": Holder(Doubling, {"doubled": doubled, "gone": doubled_gone}),
    "record": Holder(
        Record, {"replace": replace, "fields": record_fields, "deleted": record_deleted, "compared": record_compared}
    ),
    "frozen": Holder(Frozen, {"refused": frozen_refused, "forced": frozen_forced, "replace": replace}),
    "slotted_record": Holder(SlottedRecord, {"filled": slot_filled, "moves": slot_moves, "replace": replace}),
    "frozen_slots": Holder(FrozenSlots, {"refused_with_slots": frozen_refused, "replace": replace}),
    "color": Holder(lambda: Color.BLUE, {"use": use_color, "attribute": color_attribute}),
    "derived": Holder(
        Derived,
        {
            "counter": class_counter,
            "through_type": class_through_type,
            "list": class_list,
            "method_added": class_method_added,
            "property_added": class_property_added,
        },
    ),
    "plain": Holder(
        Plain,
        {
            "set_delete_set": set_delete_set,
            "shadow_class": shadow_class,
            "by_dict": by_dict,
            "dict_replaced": dict_replaced,
            "class_replaced": class_replaced,
            "copies": copies,
            "bound_method": bound_method,
        },
    ),
    "linked": Holder(
        Linked,
        {
            "follow": follow,
            "new": link_to_new,
            "kept": link_kept,
            "proxy": link_proxy,
            "callback": link_callback,
            "set_of_links": link_set,
        },
    ),
}
family = family_of(HOLDERS)
