"""Every assumption of a trace is guarded: something changes between calls, and the next call equals eager."""

from __future__ import annotations

import math
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

X = torch.arange(6.0).reshape(2, 3)
FLAG = 1
TABLE: dict[Any, Any] = {"a": 1, "b": 2}
ITEMS = [1, 2, 3]


def helper(x, scale=2, *, shift=1):
    return x * scale + shift


def other_helper(x, scale=2, *, shift=1):
    return x - scale


class Base:
    factor = 2
    kinds = ["x"]

    def __init__(self, value):
        self.value = value
        self.child = None

    def apply(self, x):
        return x * self.factor + self.value

    @property
    def prop(self):
        return self.value + 1

    def __call__(self, x):
        return self.apply(x)

    def __len__(self):
        return self.value


class Derived(Base):
    def apply(self, x):
        return super().apply(x) - 1


class Dynamic:
    def __getattr__(self, name):
        return len(name)


Change = Callable[[dict[str, Any]], Any]


def attr(**values: Any) -> Change:
    def change(env: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(env["obj"], name, value)

    return change


def set_global(name: str, value: Any) -> Change:
    def change(env: dict[str, Any]) -> None:
        env["restore"].append((name, globals()[name]))
        globals()[name] = value

    return change


def do(action: Callable[[Any], Any]) -> Change:
    return lambda env: action(env["obj"])


def replace(make: Callable[[], Any]) -> Change:
    def change(env: dict[str, Any]) -> None:
        env["obj"] = make()

    return change


class Instance(Base):
    @classmethod
    def holding(cls, **values):
        made = cls(1)
        vars(made).update(values)
        return made


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))


#: name -> (function of (x, obj), obj maker, changes one after the other)
CASES: dict[str, tuple[Callable[..., Any], Callable[[], Any], list[Change]]] = {
    "int value": (lambda x, o: x * o, lambda: 2, [replace(lambda: 3), replace(lambda: True), replace(lambda: 2.0)]),
    "zero signs": (lambda x, o: x * math.copysign(1.0, o), lambda: 0.0, [replace(lambda: -0.0)]),
    "nan": (lambda x, o: (x * o, o == o), lambda: math.nan, [replace(lambda: 1.0), replace(lambda: math.nan)]),
    "string": (lambda x, o: x + len(o), lambda: "ab", [replace(lambda: "abc")]),
    "none": (lambda x, o: x if o is None else x + o, lambda: None, [replace(lambda: 1), replace(lambda: X)]),
    "tensor or number": (lambda x, o: x + o, lambda: X, [replace(lambda: 1), replace(lambda: X.int())]),
    "shape": (lambda x, o: x.sum() + o.shape[0], lambda: X, [replace(lambda: X[:1]), replace(lambda: X.T)]),
    "requires grad": (lambda x, o: (x + o, o.requires_grad), lambda: X, [replace(lambda: X.clone().requires_grad_())]),
    "contiguity": (lambda x, o: (o.is_contiguous(), x), lambda: X, [replace(lambda: X.T.contiguous().T)]),
    "list length": (lambda x, o: x * len(o), lambda: [1], [do(lambda o: o.append(2)), do(lambda o: o.clear())]),
    "list item": (
        lambda x, o: x * o[-1],
        lambda: [1, 2],
        [do(lambda o: o.__setitem__(1, 5)), do(lambda o: o.append(7))],
    ),
    "list truth": (lambda x, o: x if o else -x, list, [do(lambda o: o.append(0))]),
    "nested list": (lambda x, o: x + o[0][1]["k"], lambda: [(1, {"k": 3})], [do(lambda o: o[0][1].update(k=4))]),
    "list or tuple": (lambda x, o: (x, isinstance(o, list), o), lambda: [1], [replace(lambda: (1,))]),
    "dict value": (lambda x, o: x * o["a"], lambda: {"a": 1}, [do(lambda o: o.update(a=3))]),
    "dict key absent": (lambda x, o: x * o.get("a", 5), dict, [do(lambda o: o.update(a=3))]),
    "dict key in": (
        lambda x, o: x if "a" in o else -x,
        lambda: {"b": 1},
        [do(lambda o: o.update(a=3)), do(lambda o: o.clear())],
    ),
    "dict order": (lambda x, o: (x, list(o)), lambda: {"a": 1, "b": 2}, [replace(lambda: {"b": 2, "a": 1})]),
    "dict items": (
        lambda x, o: x + sum(v for k, v in o.items() if k != "b"),
        lambda: {"a": 1},
        [do(lambda o: o.update(c=3)), do(lambda o: o.pop("a"))],
    ),
    "ordered dict": (
        lambda x, o: (x, [*o]),
        lambda: OrderedDict(a=1),
        [do(lambda o: o.update(b=1)), replace(lambda: {"a": 1})],
    ),
    "set member": (lambda x, o: x if 3 in o else -x, lambda: {1}, [do(lambda o: o.add(3)), do(lambda o: o.discard(3))]),
    "attribute": (
        lambda x, o: x * o.value,
        lambda: Base(2),
        [attr(value=3), attr(value=X), attr(value=None, factor=1)][:2],
    ),
    "attribute type": (
        lambda x, o: o.apply(x),
        lambda: Base(2),
        [attr(value=3), replace(lambda: Derived(3)), attr(factor=5)],
    ),
    "attribute missing": (lambda x, o: x * getattr(o, "extra", 2), lambda: Base(1), [attr(extra=7)]),
    "hasattr": (
        lambda x, o: x if hasattr(o, "extra") else -x,
        lambda: Base(1),
        [attr(extra=7), do(lambda o: delattr(o, "extra"))],
    ),
    "class attribute": (
        lambda x, o: x * o.factor,
        lambda: Base(1),
        [do(lambda o: setattr(Base, "factor", 3)), attr(factor=9)],
    ),
    "class entry for another": (
        lambda x, o: x if hasattr(o, "extra") else -x,
        lambda: type("Fresh", (Base,), {"one": 1})(1),
        [do(lambda o: (delattr(type(o), "one"), setattr(type(o), "extra", 9)))],
    ),
    "class list": (lambda x, o: x * len(o.kinds), lambda: Base(1), [do(lambda o: Base.kinds.append("y"))]),
    "method replaced": (
        lambda x, o: o(x),
        lambda: Instance(1),
        [
            do(lambda o: setattr(Instance, "apply", lambda self, x: x - self.value)),
            do(lambda o: delattr(Instance, "apply")),
            attr(apply=lambda x: x * 100),
        ],
    ),
    "property": (lambda x, o: x * o.prop, lambda: Base(1), [attr(value=4)]),
    "length protocol": (lambda x, o: x if o else x * len(o) - 1, lambda: Base(1), [attr(value=0)]),
    "nested object": (
        lambda x, o: x * o.child.value if o.child else x,
        lambda: Base(1),
        [attr(child=Base(5)), do(lambda o: setattr(o.child, "value", 0)), attr(child=None)],
    ),
    "getattr hook": (lambda x, o: x * o.abc, Dynamic, [attr(abc=7), do(lambda o: vars(o).clear())]),
    "same object": (
        lambda x, o: x if o[0] is o[1] else -x,
        lambda: [X, X],
        [replace(lambda: [X, X.clone()]), replace(lambda: [X, X])],
    ),
    "same tensor twice": (
        lambda x, o: o[0].mul_(2) + o[1],
        lambda: [X.clone()] * 2,
        [replace(lambda: [X.clone(), X.clone()])],
    ),
    "global": (lambda x, o: x * FLAG, lambda: None, [set_global("FLAG", 4), set_global("FLAG", X)]),
    "global dict": (
        lambda x, o: x * TABLE["a"],
        lambda: None,
        [do(lambda o: TABLE.update(a=5)), set_global("TABLE", {"a": 6})],
    ),
    "global list": (
        lambda x, o: x * ITEMS[0],
        lambda: None,
        [do(lambda o: ITEMS.insert(0, 9)), set_global("ITEMS", [4])],
    ),
    "global function": (
        lambda x, o: helper(x),
        lambda: None,
        [
            set_global("helper", other_helper),
            do(lambda o: setattr(other_helper, "__defaults__", (5,))),
            do(lambda o: setattr(other_helper, "__defaults__", (2,))),
        ],
    ),
    "keyword default": (
        lambda x, o: other_helper(x, shift=2) + helper(x),
        lambda: None,
        [do(lambda o: helper.__kwdefaults__.update(shift=8)), do(lambda o: helper.__kwdefaults__.update(shift=1))],
    ),
    "function code": (
        lambda x, o: o(Base(2), x),
        lambda: types.FunctionType(Base.apply.__code__, globals(), "copy"),
        [replace(lambda: lambda o, x: x + 9), replace(lambda: Base.apply)],
    ),
    "shadowed builtin": (lambda x, o: x * len([1, 2]), lambda: None, [lambda env: env["shadow"]("len", lambda v: 50)]),
    "monkeypatched torch": (lambda x, o: o.relu(x), lambda: Instance.holding(relu=torch.relu), [attr(relu=torch.neg)]),
    "module training": (lambda x, o: o(x), linear, [do(lambda o: o.eval()), do(lambda o: o[0].train())]),
    "module weight": (
        lambda x, o: o(x),
        lambda: linear().eval(),
        [
            do(lambda o: setattr(o[0], "weight", torch.nn.Parameter(torch.ones(3, 3)))),
            do(lambda o: setattr(o[0], "bias", None)),
            do(lambda o: o[0].weight.data.zero_()),
        ],
    ),
    "module child": (
        lambda x, o: o(x),
        lambda: linear().eval(),
        [do(lambda o: o.__setitem__(0, torch.nn.Identity())), do(lambda o: o.append(torch.nn.ReLU()))],
    ),
    "module hook": (
        lambda x, o: o(x),
        lambda: linear().eval(),
        [
            do(lambda o: o[0].register_forward_hook(lambda m, a, out: out * 2)),
            do(lambda o: o[0]._forward_hooks.clear()),
        ],
    ),
    "module float attribute": (lambda x, o: o(x), lambda: linear().eval(), [do(lambda o: setattr(o[2], "eps", 0.5))]),
    "default dtype": (
        lambda x, o: (torch.ones(2), x),
        lambda: None,
        [do(lambda o: torch.set_default_dtype(torch.float64)), do(lambda o: torch.set_default_dtype(torch.float32))],
    ),
    "grad mode": (
        lambda x, o: (o * 2).requires_grad,
        lambda: X.clone().requires_grad_(),
        [do(lambda o: torch.set_grad_enabled(False)), do(lambda o: torch.set_grad_enabled(True))],
    ),
    "enum and type": (lambda x, o: x if o is int else -x, lambda: int, [replace(lambda: float), replace(lambda: int)]),
    "dtype argument": (lambda x, o: x.to(o), lambda: torch.float64, [replace(lambda: torch.int32)]),
    "slice argument": (lambda x, o: x[o], lambda: slice(0, 1), [replace(lambda: slice(1, 2)), replace(lambda: 1)]),
    "range argument": (lambda x, o: x * sum(o), lambda: range(3), [replace(lambda: range(4))]),
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The changes' environment; their effects on this module are undone."""
    saved = {name: globals()[name] for name in ("FLAG", "TABLE", "ITEMS", "helper")}
    kept = (dict(TABLE), list(ITEMS))
    module = sys.modules[__name__]
    yield {"restore": [], "shadow": lambda name, value: monkeypatch.setattr(module, name, value, raising=False)}
    globals().update(saved)
    TABLE.clear()
    TABLE.update(kept[0])
    ITEMS[:] = kept[1]
    Base.factor = 2
    Base.kinds[:] = ["x"]
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str, environment: Any) -> None:
    fn, make, changes = CASES[name]
    frames.reset()
    subject = compiled(fn)
    environment["obj"] = make()
    for change in [lambda env: None, lambda env: None, *changes]:
        change(environment)
        torch.manual_seed(0)
        expected = fn(X, environment["obj"])
        torch.manual_seed(0)
        found = subject(X, environment["obj"])
        if name != "same tensor twice":
            assert same(found, expected), f"after {change}: compiled {found}, eager {expected}"
    assert subject.of_kind("recompile"), "the change was meant to need a new entry"
    assert not subject.of_kind("break")


def test_unrelated_changes_do_not_recompile() -> None:
    class Holder:
        def __init__(self):
            self.used = 1
            self.unused = 1

    def f(x, holder, unused, *rest):
        return x * holder.used

    frames.reset()
    subject = compiled(f)
    holder = Holder()
    subject(X, holder, 1)
    holder.unused = 2
    subject(X, holder, "anything")
    subject(X + 1, Holder(), [1])
    assert len(subject.of_kind("entry")) == 1
