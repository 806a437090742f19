"""Programs that a tracer easily gets wrong: state that changes between calls, aliases, cycles, late overrides."""

from __future__ import annotations

import collections
import copy
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import check, compiled

X = torch.arange(4.0)


class Base:
    factor = 2.0

    def __init__(self) -> None:
        self.value = 1.0
        self.log: list[Any] = []

    def scale(self, x: Any) -> Any:
        return x * self.factor

    @property
    def offset(self) -> float:
        return self.value + 1

    @classmethod
    def name(cls) -> str:
        return cls.__name__


class Child(Base):
    pass


class Counting:
    """Counts its stores."""

    def __init__(self) -> None:
        object.__setattr__(self, "stores", 0)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "stores", self.stores + 1)
        object.__setattr__(self, name, value)


class Tagged:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.id = type(self).made


class Defaulting(dict):
    def __missing__(self, key: Any) -> Any:
        self[key] = value = len(self)
        return value


class Recent(collections.OrderedDict):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.last = key


class Stack(list):
    def push(self, item: Any) -> Stack:
        self.append(item)
        self.top = item
        return self


class Plain(collections.UserDict):
    pass


class Lazy:
    def __init__(self) -> None:
        self.computed = 0

    @functools.cached_property
    def value(self) -> float:
        self.computed += 1
        return 3.0


def aliases(x: Any, a: Any) -> Any:
    b = a
    a.twin = b
    b.value = 5.0
    return x * a.value, a.twin is a, a


def cycle(x: Any) -> Any:
    a, b = Base(), Base()
    a.other, b.other = b, a  # type: ignore[attr-defined]
    a.value = x + 1  # type: ignore[assignment]
    return b.other.value * 2, a.other.other is a  # type: ignore[attr-defined]


def stores_in_containers(x: Any, holder: Any) -> Any:
    made = Base()
    made.value = x * 2
    holder.log.append(made)
    holder.log.append(holder.log[0].value + 1)
    holder.value = made
    return len(holder.log), holder


def counted_stores(x: Any, obj: Any) -> Any:
    obj.a = x + 1
    obj.b = 2
    obj.a = obj.a * obj.b
    fresh = Counting()
    fresh.z = 1
    return obj.a, obj.stores, obj, fresh, fresh.stores


def containers(x: Any, d: Any, r: Any, s: Any, p: Any) -> Any:
    d["a"]
    d["new"] = x + 1
    r["k"] = 1
    r.move_to_end(next(iter(r)))
    s.push(x).push(2)
    s[0] = 9
    p["u"] = x * 2
    facts = (len(d), d["b"], list(r), r.last, s.top, len(s), list(p), sorted(p.data))
    return facts, d, r, s


def new_containers(x: Any) -> Any:
    d, r, s = Defaulting(z=1), Recent(), Stack([1])
    r["a"] = x
    s.push(3)
    return d["q"], d, r, r.last, s, s + [4], isinstance(s, list), {**d}, [*s], dict(r)["a"] + 1


def deletes(x: Any, obj: Any) -> Any:
    del obj.value
    missing = hasattr(obj, "value")
    obj.value = x + 1
    obj.temporary = 1
    del obj.temporary
    return obj.value, missing, obj


def cached(x: Any, lazy: Any) -> Any:
    return x * lazy.value + lazy.value, lazy.computed, lazy


def loop_state(x: Any, obj: Any) -> Any:
    for i in range(3):
        obj.value = obj.value * 2 + i
        obj.log.append(obj.offset)
    return x * obj.value, obj


def raise_after_mutation(x: Any, obj: Any) -> Any:
    obj.value = 7.0
    obj.log.append("seen")
    raise KeyError(obj.name())


def mutation_in_try(x: Any, obj: Any) -> Any:
    try:
        obj.value = 3.0
        obj.nothing
    except AttributeError as error:
        obj.log.append(str(error))
    finally:
        obj.log.append("done")
    return x * obj.value, obj


def class_state(x: Any) -> Any:
    made = Tagged()
    return x + 1, made.id > 0


PROGRAMS: list[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (aliases, lambda: (Base(),)),
    (cycle, lambda: ()),
    (stores_in_containers, lambda: (Base(),)),
    (counted_stores, lambda: (Counting(),)),
    (containers, lambda: (Defaulting(b=1), Recent(first=0), Stack(), Plain(z=1))),
    (new_containers, lambda: ()),
    (deletes, lambda: (Base(),)),
    (cached, lambda: (Lazy(),)),
    (loop_state, lambda: (Base(),)),
    (raise_after_mutation, lambda: (Base(),)),
    (mutation_in_try, lambda: (Base(),)),
    (class_state, lambda: ()),
]


@pytest.mark.parametrize(("program", "make"), PROGRAMS, ids=lambda row: getattr(row, "__name__", ""))
def test_program(program: Any, make: Any) -> None:
    check(program, X, *make())


def test_attributes_of_containers_survive() -> None:
    subject = compiled(new_containers)
    _, made, recent, *_ = subject(X)
    assert type(made) is Defaulting
    assert recent.last == "a"
    assert list(recent) == ["a"]


def follow(program: Callable[..., Any], args: tuple[Any, ...], changes: list[Callable[[], Any]]) -> None:
    """Check that the compiled function agrees with eager mode after each change."""
    subject = compiled(program)
    for change in [lambda: None, *changes]:
        change()
        for _ in range(2):
            expected, found = program(*args), subject(*args)
            assert torch.equal(expected, found), change


def test_overrides_added_later_are_noticed() -> None:
    class Parent(Base):
        pass

    class Leaf(Parent):
        pass

    obj = Leaf()
    follow(
        lambda x: obj.scale(x) + obj.offset,
        (X,),
        [
            lambda: setattr(Parent, "scale", lambda self, x: x * 10),
            lambda: setattr(Leaf, "scale", lambda self, x: x * 20),
            lambda: setattr(Leaf, "factor", 3.0),
            lambda: setattr(Leaf, "offset", property(lambda self: 40.0)),
            lambda: setattr(obj, "scale", lambda x: x * 30),
            lambda: obj.__dict__.pop("scale"),
            lambda: setattr(obj, "value", 9.0),
            lambda: setattr(obj, "__class__", Child),
        ],
    )


def test_missing_attributes_that_appear() -> None:
    class Bare:
        pass

    obj = Bare()
    follow(
        lambda x: x * getattr(obj, "extra", 1) if not hasattr(obj, "flag") else x * 100,
        (X,),
        [lambda: setattr(obj, "extra", 5), lambda: setattr(Bare, "flag", True)],
    )


def test_python_module_attributes_are_guarded() -> None:
    module = types.ModuleType("settings_of_this_test")
    module.rate = 2.0  # type: ignore[attr-defined]
    module.act = torch.relu  # type: ignore[attr-defined]
    follow(
        lambda x: module.act(x - 1) * module.rate,
        (X,),
        [lambda: setattr(module, "rate", 3.0), lambda: setattr(module, "act", torch.sigmoid)],
    )


def test_library_settings_are_guarded() -> None:
    before = torch.backends.cudnn.benchmark
    try:
        follow(
            lambda x: x * (2 if torch.backends.cudnn.benchmark else 3),
            (X,),
            [lambda: setattr(torch.backends.cudnn, "benchmark", not before)],
        )
    finally:
        torch.backends.cudnn.benchmark = before


def test_grad_mode_left_changed() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        torch.set_grad_enabled(False)
        return y

    try:
        assert compiled(program)(X.clone().requires_grad_()).requires_grad
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_weights_swapped_between_calls() -> None:
    linear = torch.nn.Linear(4, 4)
    follow(
        lambda x: linear(x),
        (X,),
        [
            lambda: linear.weight.data.zero_(),
            lambda: setattr(linear, "weight", torch.nn.Parameter(torch.eye(4))),
            lambda: setattr(linear, "bias", None),
            lambda: linear.requires_grad_(False),
        ],
    )


def test_objects_of_one_class_share_an_entry_and_no_state() -> None:
    objects = [Base() for _ in range(4)]
    subject = compiled(lambda x, obj: loop_state(x, obj)[0])
    for obj in objects:
        subject(X, obj)
    assert {obj.value for obj in objects} == {objects[0].value}
    assert len(subject.graphs) == 1


class Cached:
    def __init__(self) -> None:
        self.inner = 2.0

    @property
    def broken(self) -> Any:
        return self.not_there

    def __getattr__(self, name: str) -> Any:
        if name == "broken":
            return self.inner * 10
        raise AttributeError(name)


class Quiet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    @torch.no_grad()
    def forward(self, x: Any) -> Any:
        return x * self.weight

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def low(self, x: Any) -> Any:
        return x.unsqueeze(0) @ self.weight.unsqueeze(1)


REUSED = torch.no_grad()


def property_falls_back(x: Any, obj: Any) -> Any:
    return x * obj.broken


def decorated_methods(x: Any, module: Any) -> Any:
    with torch.profiler.record_function("part"):
        y = module(x)
    with REUSED:
        z = x * module.weight
    w = x * module.weight
    return y, z, module.low(x), [t.requires_grad for t in (y, z, w)], module.low(x).dtype


def copies(x: Any, obj: Any) -> Any:
    obj.log.append(1)
    near, far = copy.copy(obj), copy.deepcopy(obj)
    near.value, far.value = 2.0, 3.0
    near.log.append(2)
    far.log.append(3)
    cast = typing.cast(Any, far)
    return x * near.value * cast.value, obj, near, far, near.log is obj.log


MORE: list[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (property_falls_back, lambda: (Cached(),)),
    (decorated_methods, lambda: (Quiet(),)),
    (copies, lambda: (Base(),)),
]


@pytest.mark.parametrize(("program", "make"), MORE, ids=lambda row: getattr(row, "__name__", ""))
def test_more_programs(program: Any, make: Any) -> None:
    subject = check(program, X, *make())
    assert not subject.of_kind("break"), [str(event.broken) for event in subject.of_kind("break")]
