"""Objects of the kinds that libraries use, that change between calls."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from worlds import World, Worlds, X, check_changes, check_unchanged, setter

WORLDS = Worlds()


@WORLDS.add
def enum_members() -> World:
    class E(enum.Enum):
        A = 1
        B = 2

    E.A.weight = 2.0  # type: ignore[attr-defined]
    return (
        lambda x: x * E.A.weight + E["A"].weight + E(1).weight,  # type: ignore[attr-defined]
        [setter(E.A, "weight", 9.0), setter(E.A, "weight", 4.0)],
    )


@WORLDS.add
def enum_values() -> World:
    class E(enum.Enum):
        A = 1.0

    class F(enum.Enum):
        A = 5.0

        @property
        def value(self) -> float:
            return 70.0

    return lambda x: x + E.A.value + len(E.A.name) + F.A.value, [
        setter(E.A, "_value_", 3.0),
        setter(E.A, "_name_", "ABC"),
    ]


@WORLDS.add
def dataclass_fields() -> World:
    @dataclasses.dataclass
    class D:
        a: float = 1.0
        b: float = 2.0

    fields = D.__dataclass_fields__

    def program(x: Any) -> Any:
        return x + sum(field.default for field in dataclasses.fields(D)) + len(dataclasses.fields(D(5.0)))

    return program, [
        setter(fields["a"], "default", 100.0),
        setter(fields["b"], "default", 50.0),
        lambda: fields.pop("b"),
    ]


@WORLDS.add
def signatures() -> World:
    def helper(a: float = 1.0, *, b: float = 2.0) -> None: ...

    def program(x: Any) -> Any:
        parameters = inspect.signature(helper).parameters
        return x + sum(p.default for p in parameters.values() if p.default is not p.empty) + len(parameters)

    changes = [
        setter(helper, "__defaults__", (10.0,)),
        setter(helper, "__kwdefaults__", {"b": 70.0}),
        setter(helper, "__defaults__", None),
    ]
    return program, changes


@WORLDS.add
def partials() -> World:
    scaled = functools.partial(torch.mul, other=2.0)
    added = functools.partial(torch.add, X)

    def change() -> None:
        scaled.keywords["other"] = 7.0

    return lambda x: scaled(x) + added(x) + scaled.keywords["other"], [
        change,
        lambda: added.__setstate__((torch.sub, (X * 3,), {}, None)),  # type: ignore[attr-defined]
    ]


@WORLDS.add
def mapping_proxies() -> World:
    settings = {"scale": 2.0}
    view = types.MappingProxyType(settings)

    def program(x: Any) -> Any:
        return x * view["scale"] + view.get("bias", 0.5) + len(view) + sum(view.values())

    changes: list[Callable[[], object]] = [
        lambda: settings.update(scale=5.0),
        lambda: settings.update(bias=1.0),
        lambda: settings.pop("bias", None),
    ]
    return program, changes


@WORLDS.add
def dictionaries_with_their_own_items() -> World:
    class Made(collections.OrderedDict):
        def __getitem__(self, key: str) -> Any:
            return super().__getitem__(key)() * 2

        def __missing__(self, key: str) -> Any:
            return lambda: 100.0

    made = Made(one=lambda: 1.0)

    def replace() -> None:
        made["one"] = lambda: 5.0

    def add() -> None:
        made["two"] = lambda: 7.0

    return lambda x: x + made["one"] + made["two"], [replace, add]


@WORLDS.add
def abstract_classes() -> World:
    class A(abc.ABC): ...

    class B: ...

    class C: ...

    b, c = B(), C()

    def program(x: Any) -> Any:
        return x + (1 if isinstance(b, A) else 2) + (10 if issubclass(C, A) else 20) + isinstance(c, A)

    return program, [lambda: A.register(B), lambda: A.register(C)]


@WORLDS.add
def dictionaries_made_of_others() -> World:
    class Doubled(dict[str, float]):
        def __getitem__(self, key: str) -> float:
            return super().__getitem__(key) * 2

    class Chosen(Doubled):
        def keys(self) -> Any:
            return ["a"]

    class Walked(Chosen):
        def __iter__(self) -> Any:
            return iter(["b"])

    class Mapping:
        def keys(self) -> Any:
            return ["a"]

        def __getitem__(self, key: str) -> float:
            return 4.0

    tables = [cls(a=1.0, b=2.0) for cls in (Doubled, Chosen, Walked)]

    def program(x: Any) -> Any:
        made = [
            (dict(t), {**t}, dict(**t), collections.defaultdict(float, t), collections.OrderedDict(t))
            for t in (*tables, Mapping())
        ]
        return x, made

    return program, [lambda: [table.update(a=5.0) for table in tables], lambda: tables[0].pop("b", None)]


@WORLDS.add
def classes_become_abstract() -> World:
    class A(abc.ABC):
        def one(self) -> float:
            return 2.0

    class B: ...

    class C(A): ...

    def program(x: Any) -> Any:
        for cls in (A, B, C):
            try:
                x = x * 3 + (cls() is not None)
            except TypeError as error:
                x = x * 2, str(error)
                break
        return x

    def put(cls: Any, *names: str) -> Callable[[], None]:
        return setter(cls, "__abstractmethods__", frozenset(names))

    return program, [put(A, "one"), put(A), put(B, "one", "two"), put(C, "three")]


@WORLDS.add
def checks_of_classes() -> World:
    class Meta(type): ...

    class A(metaclass=Meta): ...

    class B(abc.ABC): ...

    class C: ...

    class D(C): ...

    class E(C): ...

    c, d = C(), D()

    def program(x: Any) -> Any:
        x = x + (1 if isinstance(c, A) else 2) + (10 if issubclass(C, A) else 20) + (100 if issubclass(E, D) else 200)
        return x + (1000 if isinstance(c, B) else 2000) + (5 if isinstance(d, C) else 6)

    return program, [
        setter(Meta, "__instancecheck__", lambda cls, obj: True),
        setter(Meta, "__subclasscheck__", lambda cls, other: other is C),
        setter(E, "__bases__", (D,)),
        lambda: (setattr(B, "__subclasshook__", classmethod(lambda cls, other: True)), B._abc_caches_clear()),  # type: ignore[attr-defined]
    ]


@WORLDS.add
def unions() -> World:
    kinds = [int | str]

    def program(x: Any) -> Any:
        return x + (1 if isinstance(2.0, kinds[0]) else 2)

    def change() -> None:
        kinds[0] = float | str  # type: ignore[assignment]

    return program, [change]


@pytest.mark.parametrize(("make", "order"), WORLDS.orders())
def test_every_change_is_seen(make: Callable[[], World], order: tuple[int, ...]) -> None:
    check_changes(make, order)


@pytest.mark.parametrize("make", WORLDS.values())
def test_nothing_changed_nothing_is_compiled_again(make: Callable[[], World]) -> None:
    check_unchanged(make)
