"""Whatever holds a thing that a program uses, and however it is changed between calls: the change is seen."""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from driver import compiled

X = torch.arange(3.0)

#: A world: the program, and changes to what it uses, in any order.
World = tuple[Callable[..., Any], list[Callable[[], object]]]
WORLDS: dict[str, Callable[[], World]] = {}


def world(make: Callable[[], World]) -> Callable[[], World]:
    """Add a world to the table."""
    WORLDS[make.__name__] = make
    return make


def run(make: Callable[[], World], wrap: Callable[..., Any], order: tuple[int, ...]) -> list[Any]:
    """The results of a call in a fresh world, and of one after each change."""
    program, changes = make()
    call = wrap(program)
    found = [call(X)]
    for index in order:
        changes[index]()
        found += [call(X), call(X)]
    return found


def orders() -> list[Any]:
    """Every world with its changes in every order."""
    return [
        pytest.param(make, order, id=f"{name}-{''.join(map(str, order))}")
        for name, make in WORLDS.items()
        for order in itertools.permutations(range(len(make()[1])))
    ]


def module(text: str) -> types.ModuleType:
    """A module of its own, imported under its name."""
    made = types.ModuleType("holders_config")
    sys.modules[made.__name__] = made
    exec(text, vars(made))
    return made


def setter(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


# Classes and metaclasses


@world
def class_dictionary() -> World:
    class C:
        scale = 2.0

    return lambda x: x * vars(C)["scale"] + C.__dict__["scale"], [setter(C, "scale", 3.0), setter(C, "scale", 5.0)]


@world
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


@world
def class_dictionary_of_a_base() -> World:
    class A:
        scale = 2.0

    class B(A):
        pass

    def program(x: Any) -> Any:
        return x * B.__mro__[1].__dict__["scale"] if "scale" not in vars(B) else x * vars(B)["scale"]

    return program, [setter(A, "scale", 3.0), setter(B, "scale", 4.0)]


@world
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


@world
def metaclass_gains_what_the_class_lacked() -> World:
    class Meta(type):
        def __getattr__(cls, name: str) -> float:
            return 1.0

    class C(metaclass=Meta):
        pass

    return lambda x: x + C.size, [setter(Meta, "size", 2.0), setter(C, "size", 3.0)]


@world
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


@world
def class_name_and_text() -> World:
    class C:
        """One."""

    def program(x: Any) -> Any:
        return x + len(C.__name__) + len(C.__doc__ or "")

    return program, [setter(C, "__name__", "Longer"), setter(C, "__doc__", "Another.")]


@world
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


@world
def kinds_of_entries_swapped() -> World:
    def function(*args: Any) -> float:
        return float(len(args))

    class C:
        entry = classmethod(function)

    c = C()
    changes = [setter(C, "entry", staticmethod(function)), setter(C, "entry", function), setter(C, "entry", len)]
    return lambda x: x + c.entry(*([()] if C.__dict__["entry"] is len else [])), changes[:2]


# Functions found in odd places


@world
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


@world
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


@world
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


@world
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


@world
def function_parts() -> World:
    def helper(x: Any, a: float = 1.0, b: float = 1.0, *, c: float = 3.0) -> Any:
        return x * a + b + c

    changes = [
        setter(helper, "__defaults__", (1.0, 9.0)),
        setter(helper, "__kwdefaults__", {"c": 50.0}),
        setter(helper, "__defaults__", (1.0, 1.0, 2.0)),
    ]
    return lambda x: helper(x, 5.0), changes


@world
def defaults_gained_and_lost() -> World:
    def helper(a: float, b: float) -> float:
        return a + b

    def program(x: Any) -> Any:
        try:
            return x + helper(1.0)  # type: ignore[call-arg]
        except TypeError:
            return x

    return program, [setter(helper, "__defaults__", (2.0,)), setter(helper, "__defaults__", None)]


@world
def function_attributes() -> World:
    def helper() -> float:
        return 0.0

    helper.rate = 2.0  # type: ignore[attr-defined]

    def program(x: Any) -> Any:
        return x * helper.rate + len(helper.__name__) + getattr(helper, "bias", 0.5)  # type: ignore[attr-defined]

    return program, [setter(helper, "rate", 3.0), setter(helper, "bias", 4.0), setter(helper, "__name__", "renamed")]


@world
def code_replaced() -> World:
    def helper(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x + 2

    return lambda x: helper(x), [setter(helper, "__code__", other.__code__)]


@world
def mutable_default() -> World:
    def helper(x: Any, seen: list[float] = [1.0]) -> Any:
        return x + sum(seen)

    return lambda x: helper(x), [lambda: helper.__defaults__[0].append(2.0)]  # type: ignore[index]


# Descriptors as objects


@world
def property_objects() -> World:
    class C:
        p = property(lambda self: 2.0)

    c = C()
    return lambda x: x + C.p.fget(None) + c.p, [setter(C, "p", property(lambda self: 10.0)), setter(C, "p", None)][:1]


@world
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


@world
def cached_property_replaced() -> World:
    class C:
        @functools.cached_property
        def p(self) -> float:
            return 2.0

    replacement = functools.cached_property(lambda self: 6.0)
    replacement.__set_name__(C, "p")
    return lambda x: x + C().p, [setter(C, "p", replacement)]


@world
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


# Data of libraries' kinds


@world
def enum_members() -> World:
    class E(enum.Enum):
        A = 1
        B = 2

    E.A.weight = 2.0  # type: ignore[attr-defined]
    return (
        lambda x: x * E.A.weight + E["A"].weight + E(1).weight,  # type: ignore[attr-defined]
        [setter(E.A, "weight", 9.0), setter(E.A, "weight", 4.0)],
    )


@world
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


@world
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


@world
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


@world
def partials() -> World:
    scaled = functools.partial(torch.mul, other=2.0)
    added = functools.partial(torch.add, X)

    def change() -> None:
        scaled.keywords["other"] = 7.0

    return lambda x: scaled(x) + added(x) + scaled.keywords["other"], [
        change,
        lambda: added.__setstate__((torch.sub, (X * 3,), {}, None)),  # type: ignore[attr-defined]
    ]


@world
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


@world
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


@world
def abstract_classes() -> World:
    class A(abc.ABC): ...

    class B: ...

    class C: ...

    b, c = B(), C()

    def program(x: Any) -> Any:
        return x + (1 if isinstance(b, A) else 2) + (10 if issubclass(C, A) else 20) + isinstance(c, A)

    return program, [lambda: A.register(B), lambda: A.register(C)]


@world
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


@world
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


@world
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


@world
def unions() -> World:
    kinds = [int | str]

    def program(x: Any) -> Any:
        return x + (1 if isinstance(2.0, kinds[0]) else 2)

    def change() -> None:
        kinds[0] = float | str  # type: ignore[assignment]

    return program, [change]


# Namespaces


CONFIG = """
SCALE = 1.0
def set_scale(value):
    global SCALE
    SCALE = value
def scale():
    return SCALE
"""


def spellings(config: Any) -> dict[str, Callable[[Any], Any]]:
    """Ways to read a module's entry."""
    return {
        "attribute": lambda x: x * config.SCALE,
        "getattr": lambda x: x * getattr(config, "SCALE"),
        "vars": lambda x: x * vars(config)["SCALE"],
        "dictionary": lambda x: x * config.__dict__.get("SCALE"),
        "sys.modules": lambda x: x * sys.modules["holders_config"].SCALE,
        "function": lambda x: x * config.scale(),
    }


@pytest.mark.parametrize("name", spellings(None))
def test_a_module_is_read_as_a_call_left_it(name: str) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        config = module(CONFIG)
        read = spellings(config)[name]

        def program(x: Any, value: float) -> Any:
            before = read(x)
            config.set_scale(value)
            return before, read(x), config.scale()

        call = wrap(program)
        return [*[call(X, value) for value in (2.0, 3.0, 3.0)], config.SCALE]

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


def stores(config: Any) -> dict[str, Callable[[float], Any]]:
    """Ways to write a module's entry."""
    return {
        "attribute": lambda value: setattr(config, "SCALE", value),
        "vars": lambda value: vars(config).update(SCALE=value),
        "item": lambda value: config.__dict__.__setitem__("SCALE", value),
        "sys.modules": lambda value: setattr(sys.modules["holders_config"], "SCALE", value),
        "function": lambda value: config.set_scale(value),
        "deleted": lambda value: (delattr(config, "SCALE"), config.set_scale(value)),
    }


@pytest.mark.parametrize("read", spellings(None))
@pytest.mark.parametrize("store", stores(None))
def test_a_module_is_written_in_every_way(read: str, store: str) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        config = module(CONFIG)
        reader, writer = spellings(config)[read], stores(config)[store]

        def program(x: Any, value: float) -> Any:
            writer(value)
            return reader(x)

        call = wrap(program)
        return [*[call(X, value) for value in (2.0, 3.0)], config.SCALE, list(vars(config))]

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


COUNT = 0


def bump(by: int = 1) -> int:
    global COUNT
    COUNT += by
    return COUNT


def stored_and_bumped(x: Any, n: int) -> Any:
    globals()["COUNT"] = n
    first = bump()
    return x + COUNT + first + globals()["COUNT"] + globals().get("ABSENT", 5)


def stored_before_a_break(x: Any, n: int) -> Any:
    globals()["COUNT"] = n
    print(end="")
    return x + bump()


def passed(x: Any, n: int) -> Any:
    return filled(x, globals(), n)


def filled(x: Any, names: dict[str, Any], n: int) -> Any:
    names["COUNT"] = n
    return x + COUNT + names.pop("COUNT") + ("COUNT" in names) + (names.setdefault("COUNT", 3))


def iterated(x: Any, n: int) -> Any:
    globals()["COUNT"] = n
    return x + sum(value for name, value in globals().items() if name == "COUNT")


@pytest.mark.parametrize("program", [stored_and_bumped, stored_before_a_break, passed, iterated])
def test_writes_through_globals(program: Callable[..., Any]) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        globals()["COUNT"] = 0
        call = wrap(program)
        return [value for n in (1, 2, 2) for value in (str(call(X, n)), COUNT)]

    assert outcomes(compiled) == outcomes(lambda fn: fn)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_builtins_are_replaced(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        call = wrap(lambda x: x + abs(-3) + round(2.4) + bump(0) * 0)
        found = [call(X)]
        with monkeypatch.context() as patch:
            value = 100
            names = ("abs", "round")
            for index in order:
                patch.setattr(builtins, names[index], lambda *_: value)
                found.append(call(X))
                value = 50
                found.append(call(X))
        found.append(call(X))
        return found

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


def test_a_builtin_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        try:
            return x + holders_absent  # type: ignore[name-defined]
        except NameError:
            return x

    call = compiled(program)
    assert torch.equal(call(X), X)
    monkeypatch.setattr(builtins, "holders_absent", 4.0, raising=False)
    assert torch.equal(call(X), X + 4)


# Cells


def counter() -> tuple[Callable[[], None], Callable[[], int]]:
    n = 0

    def inc() -> None:
        nonlocal n
        n += 1

    return inc, lambda: n


def counted(x: Any, inc: Any, get: Any) -> Any:
    before = get()
    inc()
    return x + get() * 10 + before


def read_only(x: Any, first: Any, second: Any) -> Any:
    return x + first() * 10 + second()


@pytest.mark.parametrize("order", list(itertools.permutations("sab")))
@pytest.mark.parametrize("program", [counted, read_only])
def test_cells_shared_and_apart(program: Callable[..., Any], order: tuple[str, ...]) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        (i1, g1), (i2, g2), (i3, g3) = counter(), counter(), counter()
        i3()
        calls: dict[str, Any] = {"s": (i1, g1), "a": (i2, g3), "b": (i3, g2)}
        if program is read_only:
            calls = {"s": (g1, g1), "a": (g1, g3), "b": (g3, g3)}
        call = wrap(program)
        return [call(X, *calls[kind]) for kind in (*order, *order)]

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


def test_a_free_variable_and_the_cell_of_another_function() -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        n = 0

        def program(x: Any, other: Any) -> Any:
            nonlocal n
            n += 1
            other()
            return x + n

        def inc() -> None:
            nonlocal n
            n += 10

        call = wrap(program)
        return [call(X, fn) for fn in (inc, counter()[0], inc)]

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


# Dictionaries of objects


class Plain:
    a = 0.0


def by_object_first(x: Any, o: Any, d: Any) -> Any:
    o.a = 10.0
    d["b"] = d["a"] + 1
    return x + d["a"] + o.a + d.get("b")


def by_dictionary_first(x: Any, o: Any, d: Any) -> Any:
    d["a"] = 10.0
    o.b = 3.0
    return x + d["a"] + o.a + len(d)


def only_read(x: Any, o: Any, d: Any) -> Any:
    return x + o.a + d["a"]


def same_dictionary(x: Any, o: Any, d: Any) -> Any:
    return x + (1 if o.__dict__ is d else 2) + (10 if vars(o) == d else 20)


@pytest.mark.parametrize("order", [(True, False), (False, True), (True, True), (False, False, True)])
@pytest.mark.parametrize("program", [by_object_first, by_dictionary_first, only_read])
def test_an_object_beside_its_dictionary(program: Callable[..., Any], order: tuple[bool, ...]) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        call, found = wrap(program), []
        for own in order:
            o = Plain()
            o.a = 1.0
            d = vars(o) if own else {"a": 5.0}
            found += [call(X, o, d), vars(o), d]
        return found

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


# Module registries


class Buffered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(3))
        self.w = torch.nn.Parameter(torch.ones(3))
        self.inner = torch.nn.Identity()


def deleted_and_set(module: Any, x: Any) -> Any:
    del module.b
    module.b = x + 1
    return module.b * 2


def deleted_set_and_deleted(module: Any, x: Any) -> Any:
    del module.b
    module.b = x + 1
    del module.b
    return x + hasattr(module, "b")


def parameter_deleted_and_set(module: Any, x: Any) -> Any:
    del module.w
    module.w = x + 1
    return module.w * 2


def set_and_set(module: Any, x: Any) -> Any:
    module.b = x + 1
    module.b = module.b * 2
    return module.b


def stored_in_the_registry(module: Any, x: Any) -> Any:
    module._buffers["c"] = x + 1
    module.c = x + 2
    return module.c


@pytest.mark.parametrize(
    "program",
    [deleted_and_set, deleted_set_and_deleted, parameter_deleted_and_set, set_and_set, stored_in_the_registry],
)
def test_registered_names_are_deleted_and_set_again(program: Callable[..., Any]) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        made = Buffered()
        result = wrap(program)(made, X)
        return [result, list(made._buffers), list(made._parameters), sorted(vars(made)), dict(made.state_dict())]

    with torch.no_grad():
        assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


def test_storage_offset() -> None:
    base = torch.arange(8.0)

    def program(x: Any) -> Any:
        return x * 0 + x.storage_offset() + x[1:].storage_offset()

    call = compiled(program)
    for at in (2, 1, 4, 2):
        assert torch.equal(call(base[at : at + 1]), program(base[at : at + 1]))
    plain = compiled(lambda x: x + 1)
    for at in (2, 1, 4):
        plain(base[at : at + 1])
    assert len(plain.of_kind("entry")) == 1


@pytest.mark.parametrize(("make", "order"), orders())
def test_every_change_is_seen(make: Callable[[], World], order: tuple[int, ...]) -> None:
    assert str(run(make, compiled, order)) == str(run(make, lambda fn: fn, order))


@pytest.mark.parametrize("name", WORLDS)
def test_nothing_changed_nothing_is_compiled_again(name: str) -> None:
    program, _ = WORLDS[name]()
    subject = compiled(program)
    for _ in range(3):
        subject(X)
    assert not subject.of_kind("recompile")


def test_a_dictionary_of_attributes_is_one_object() -> None:
    class Thing:
        pass

    def program(x: torch.Tensor, o: Thing, table: dict[str, float]) -> Any:
        made = Thing()
        made.a = o.a = 2.0  # type: ignore[attr-defined]
        return x + 1, vars(o) is vars(o), vars(o) is table, vars(made) is made.__dict__, globals() is globals()

    subject = compiled(program)
    thing, other = Thing(), Thing()
    for table in (vars(thing), vars(other), {}, vars(thing)):
        assert subject(X, thing, table)[1:] == program(X, thing, table)[1:]
