"""Functions found in modules, classes, containers and closures that change between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from worlds import World, Worlds, check_changes, check_unchanged, setter

WORLDS = Worlds()


@WORLDS.add
def descriptor_functions() -> World:
    value = 2.0

    class D:
        def __get__(self, obj: Any, cls: Any = None) -> float:
            return value

        def __set__(self, obj: Any, new: float) -> None:
            obj.kept = new + value

    class C:
        d = D()

    def change(new: float) -> None:
        nonlocal value
        value = new

    def program(x: Any) -> Any:
        c = C()
        c.d = 1.0
        return x + c.d + c.kept + C.d

    return program, [lambda: change(5.0), setter(D, "__get__", lambda self, obj, cls=None: 10.0)]


@WORLDS.add
def entries_become_descriptors() -> World:
    class D:
        def __get__(self, obj: Any, cls: Any = None) -> float:
            return 2.0

    class E: ...

    class Meta(type):
        e = E()

    class C(metaclass=Meta):
        d = D()
        own = E()

    c = C()
    vars(c).update(d=7.0, own=9.0)

    def program(x: Any) -> Any:
        return x + c.d + c.own + (1 if type(C.own) is E else C.own) + (1 if type(C.e) is E else C.e)

    def neither() -> None:
        for cls, name in ((D, "__set__"), (E, "__get__"), (E, "__delete__")):
            if name in vars(cls):
                delattr(cls, name)

    def both() -> None:
        E.__get__ = lambda self, obj, cls=None: 20.0  # type: ignore[attr-defined]
        E.__delete__ = lambda self, obj: None  # type: ignore[attr-defined]

    return program, [setter(D, "__set__", lambda self, obj, new: None), both, neither]


@WORLDS.add
def stores_through_what_becomes_a_descriptor() -> World:
    class D:
        def __get__(self, obj: Any, cls: Any = None) -> float:
            return float(obj.kept)

    class C:
        d = D()
        kept = 2.0

    def program(x: Any) -> Any:
        c = C()
        c.d = 5.0
        return x + c.d, dict(vars(c))

    def gain() -> None:
        D.__set__ = lambda self, obj, new: setattr(obj, "kept", new * 2)  # type: ignore[attr-defined]

    return program, [gain, lambda: "__set__" in vars(D) and delattr(D, "__set__")]


@WORLDS.add
def named_tuple_methods() -> World:
    value = 2.0

    class P(NamedTuple("P", [("a", float)])):
        def total(self) -> float:
            return self.a * value

        @property
        def twice(self) -> float:
            return self.a * value * 2

    def change(new: float) -> None:
        nonlocal value
        value = new

    p = P(1.0)
    return lambda x: x + p.total() + P(2.0).twice, [lambda: change(8.0), setter(P, "total", lambda self: 70.0)]


@WORLDS.add
def function_parts() -> World:
    def helper(x: Any, a: float = 1.0, b: float = 1.0, *, c: float = 3.0) -> Any:
        return x * a + b + c

    changes = [
        setter(helper, "__defaults__", (1.0, 9.0)),
        setter(helper, "__kwdefaults__", {"c": 50.0}),
        setter(helper, "__defaults__", (1.0, 1.0, 2.0)),
    ]
    return lambda x: helper(x, 5.0), changes


@WORLDS.add
def defaults_gained_and_lost() -> World:
    def helper(a: float, b: float) -> float:
        return a + b

    def program(x: Any) -> Any:
        try:
            return x + helper(1.0)  # type: ignore[call-arg]
        except TypeError:
            return x

    return program, [setter(helper, "__defaults__", (2.0,)), setter(helper, "__defaults__", None)]


@WORLDS.add
def function_attributes() -> World:
    def helper() -> float:
        return 0.0

    helper.rate = 2.0  # type: ignore[attr-defined]

    def program(x: Any) -> Any:
        return x * helper.rate + len(helper.__name__) + getattr(helper, "bias", 0.5)  # type: ignore[attr-defined]

    return program, [setter(helper, "rate", 3.0), setter(helper, "bias", 4.0), setter(helper, "__name__", "renamed")]


@WORLDS.add
def code_replaced() -> World:
    def helper(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x + 2

    return lambda x: helper(x), [setter(helper, "__code__", other.__code__)]


@WORLDS.add
def mutable_default() -> World:
    def helper(x: Any, seen: list[float] = [1.0]) -> Any:
        return x + sum(seen)

    return lambda x: helper(x), [lambda: helper.__defaults__[0].append(2.0)]  # type: ignore[index]


@pytest.mark.parametrize(("make", "order"), WORLDS.orders())
def test_every_change_is_seen(make: Callable[[], World], order: tuple[int, ...]) -> None:
    check_changes(make, order)


@pytest.mark.parametrize("make", WORLDS.values())
def test_nothing_changed_nothing_is_compiled_again(make: Callable[[], World]) -> None:
    check_unchanged(make)
