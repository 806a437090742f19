"""Operations on objects by their classes: descriptors, slots, properties, attribute hooks."""

import functools
from contextlib import suppress

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


DESCRIPTORS = {
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
}
family = family_of(DESCRIPTORS)
