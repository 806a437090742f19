"""Classes, metaclasses and descriptors that change between calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from worlds import World, Worlds, check_changes, check_unchanged, setter

WORLDS = Worlds()


# Classes and metaclasses


@WORLDS.add
def class_dictionary() -> World:
    class C:
        scale = 2.0

    return lambda x: x * vars(C)["scale"] + C.__dict__["scale"], [setter(C, "scale", 3.0), setter(C, "scale", 5.0)]


@WORLDS.add
def class_dictionary_read_in_every_way() -> World:
    class C:
        scale = 2.0

    def program(x: Any) -> Any:
        entries = vars(C)
        total = entries.get("scale", 0.0) + entries.get("bias", 7.0)
        if "bias" in entries:
            total += 100
        return x + total + sum(1 for name in entries if not name.startswith("__"))

    return program, [setter(C, "bias", 1.0), lambda: delattr(C, "scale")]


@WORLDS.add
def class_dictionary_of_a_base() -> World:
    class A:
        scale = 2.0

    class B(A):
        pass

    def program(x: Any) -> Any:
        return x * B.__mro__[1].__dict__["scale"] if "scale" not in vars(B) else x * vars(B)["scale"]

    return program, [setter(A, "scale", 3.0), setter(B, "scale", 4.0)]


@WORLDS.add
def metaclass_attributes() -> World:
    class Meta(type):
        rate = 2.0

        @property
        def doubled(cls) -> float:
            return cls.rate * 2

        def times(cls, x: Any) -> Any:
            return x * cls.rate

    class C(metaclass=Meta):
        pass

    changes = [setter(Meta, "rate", 3.0), setter(Meta, "times", lambda cls, x: x - 1), setter(C, "rate", 9.0)]
    return lambda x: C.times(x) + C.rate + C.doubled, changes


@WORLDS.add
def metaclass_gains_what_the_class_lacked() -> World:
    class Meta(type):
        def __getattr__(cls, name: str) -> float:
            return 1.0

    class C(metaclass=Meta):
        pass

    return lambda x: x + C.size, [setter(Meta, "size", 2.0), setter(C, "size", 3.0)]


@WORLDS.add
def metaclass_special_methods() -> World:
    class Meta(type):
        length = 3

        def __len__(cls) -> int:
            return cls.length

        def __getitem__(cls, key: Any) -> float:
            return key * 2.0

        def __call__(cls, value: float) -> float:
            return value + cls.length

    class C(metaclass=Meta):
        pass

    def program(x: Any) -> Any:
        return x + len(C) + C[2.0] + C(1.0)

    return program, [setter(Meta, "length", 5), setter(Meta, "__getitem__", lambda cls, key: 50.0)]


@WORLDS.add
def class_name_and_text() -> World:
    class C:
        """One."""

    def program(x: Any) -> Any:
        return x + len(C.__name__) + len(C.__doc__ or "")

    return program, [setter(C, "__name__", "Longer"), setter(C, "__doc__", "Another.")]


@WORLDS.add
def bases_replaced() -> World:
    class A:
        scale = 2.0

    class B(A):
        pass

    class Other(A):
        scale = 4.0

    class C(B):
        pass

    c = C()
    return lambda x: x * c.scale + len(C.__mro__), [setter(C, "__bases__", (Other,)), setter(A, "scale", 3.0)]


@WORLDS.add
def kinds_of_entries_swapped() -> World:
    def function(*args: Any) -> float:
        return float(len(args))

    class C:
        entry = classmethod(function)

    c = C()
    changes = [setter(C, "entry", staticmethod(function)), setter(C, "entry", function), setter(C, "entry", len)]
    return lambda x: x + c.entry(*([()] if C.__dict__["entry"] is len else [])), changes[:2]


# Descriptors as objects


@WORLDS.add
def property_objects() -> World:
    class C:
        p = property(lambda self: 2.0)

    c = C()
    return lambda x: x + C.p.fget(None) + c.p, [setter(C, "p", property(lambda self: 10.0)), setter(C, "p", None)][:1]


@WORLDS.add
def properties_gain_setters() -> World:
    class C:
        kept = 1.0

        @property
        def p(self) -> float:
            return self.kept

    def program(x: Any) -> Any:
        c = C()
        try:
            c.p = 5.0  # type: ignore[misc]
        except AttributeError:
            return x
        return x + c.kept

    def store(self: Any, value: float) -> None:
        self.kept = value * 2

    return program, [setter(C, "p", C.p.setter(store)), setter(C, "p", property(lambda self: 0.0))]  # type: ignore[attr-defined]


@WORLDS.add
def cached_property_replaced() -> World:
    class C:
        @functools.cached_property
        def p(self) -> float:
            return 2.0

    replacement = functools.cached_property(lambda self: 6.0)
    replacement.__set_name__(C, "p")
    return lambda x: x + C().p, [setter(C, "p", replacement)]


@WORLDS.add
def partial_methods() -> World:
    class C:
        def scale(self, x: Any, by: float, plus: float = 0.0) -> Any:
            return x * by + plus

        half = functools.partialmethod(scale, by=0.5)

    c = C()
    keywords = vars(C)["half"].keywords

    def change() -> None:
        keywords["plus"] = 7.0

    return lambda x: c.half(x), [change, setter(C, "half", functools.partialmethod(C.scale, by=3.0))]


@pytest.mark.parametrize(("make", "order"), WORLDS.orders())
def test_every_change_is_seen(make: Callable[[], World], order: tuple[int, ...]) -> None:
    check_changes(make, order)


@pytest.mark.parametrize("make", WORLDS.values())
def test_nothing_changed_nothing_is_compiled_again(make: Callable[[], World]) -> None:
    check_unchanged(make)
