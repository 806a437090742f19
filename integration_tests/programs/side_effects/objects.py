"""Operations on objects of classes: dataclasses, enums, class attributes, dictionaries, weakrefs."""

import copy
import dataclasses
import enum
import operator
import weakref
from typing import Any

from integration_tests.programs.side_effects.descriptors import slot_filled, slot_moves
from integration_tests.programs.side_effects.operations import Holder, attempt, family_of


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


OBJECTS = {
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
family = family_of(OBJECTS)
