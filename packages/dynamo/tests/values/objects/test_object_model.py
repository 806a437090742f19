"""Random class hierarchies and random uses of their objects: compiled code and eager mode agree."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from driver import compiled

NAMES = ["a", "b", "c", "d"]
CLASSES = ["A", "B", "C"]

MEMBERS = {
    "constant": "    {name} = {number}",
    "property": "    @property\n    def {name}(self): return self.base + {number}",
    "settable": (
        "    @property\n    def {name}(self): return self.base * {number}\n"
        "    @{name}.setter\n    def {name}(self, value): self.base = value"
    ),
    "cached": "    @functools.cached_property\n    def {name}(self): return [self.base, {number}]",
    "method": "    def {name}(self, *args, **kw): return (type(self).__name__, self.base, args, sorted(kw), {number})",
    "up": (
        "    def {name}(self, *args, **kw):\n"
        "        above = getattr(super(), '{name}', None)\n"
        "        return above(*args, **kw) if callable(above) else (above, {number})"
    ),
    "class": "    @classmethod\n    def {name}(cls, *args): return (cls.__name__, args, {number})",
    "static": "    @staticmethod\n    def {name}(*args): return (args, {number})",
    "descriptor": "    {name} = Doubling({number})",
    "plain_descriptor": "    {name} = Reading({number})",
    "partial": "    {name} = functools.partialmethod(helper, {number})",
}

SPECIALS = [
    (
        "    def __getattr__(self, name):\n"
        "        if name in ('a', 'z'): return ('made', name)\n        raise AttributeError(name)"
    ),
    (
        "    def __getattribute__(self, name):\n"
        "        if name == 'b': name = 'base'\n        return super().__getattribute__(name)"
    ),
    (
        "    def __setattr__(self, name, value):\n"
        "        super().__setattr__('base' if name == 'c' else name, value)\n"
        "        self.__dict__['count'] = self.__dict__.get('count', 0) + 1"
    ),
    "    def __delattr__(self, name):\n        super().__delattr__(name)\n        self.deleted = name",
    (
        "    def __eq__(self, other): return isinstance(other, A) and self.base == other.base\n"
        "    __hash__ = object.__hash__"
    ),
    (
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i):\n        if i > 1: raise IndexError(i)\n        return (self.base, i)"
    ),
    "    def __call__(self, x=1): return ('called', self.base, x)",
    "    def __bool__(self): return self.base > 3",
    "    def __add__(self, other): return NotImplemented if other == 2 else (self.base, other)",
    "    def __radd__(self, other): return (other, self.base)",
    "    def __contains__(self, item): return item == self.base",
]

PRELUDE = """
import functools

class Doubling:
    def __init__(self, k): self.k = k
    def __set_name__(self, owner, name): self.name = name
    def __get__(self, obj, owner=None):
        return ('on class', self.k) if obj is None else obj.__dict__.get(self.name, 0) + self.k
    def __set__(self, obj, value): obj.__dict__[self.name] = value * 2 if isinstance(value, int) else -1

class Reading:
    def __init__(self, k): self.k = k
    def __get__(self, obj, owner=None): return (obj is None, owner.__name__, self.k)

def helper(self, k, *args): return (self.base, k, args)
"""

STATEMENTS = [
    "out.append({o}.{n})",
    "out.append({o}.{n}({i}))",
    "out.append({o}.{n}({i}, key={i}))",
    "out.append(hasattr({o}, {n!r}))",
    "out.append(getattr({o}, {n!r}, 'none'))",
    "{o}.{n} = {i}",
    "setattr({o}, {n!r}, out[-1])",
    "del {o}.{n}",
    "{o}.{n} += {i}",
    "out.append({c}.{n})",
    "out.append({c}.{n}({o}))",
    "out.append(isinstance({o}, {c}))",
    "out.append(sorted(vars({o})))",
    "out.append({o}.__dict__.get({n!r}))",
    "{o}.__dict__[{n!r}] = {i}",
    "new = {c}({i}); out.append(new.{n}); new.{n} = {i}; out.append(new.base)",
    "out.append(bool({o}))",
    "out.append(len({o}))",
    "out.append({o}[{i}])",
    "out.append({o}({i}))",
    "out.append({o} == {p})",
    "out.append({o} + {i})",
    "out.append({i} + {o})",
    "out.append({i} in {o})",
    "out.append(type({o}).__name__)",
    "{o}.other = {p}; out.append({o}.other.base)",
    "out.append({o}.{n} is {o}.{n})",
]


def make_module(rng: random.Random) -> str:
    lines = [PRELUDE]
    for position, name in enumerate(CLASSES):
        parent = f"({CLASSES[position - 1]})" if position else ""
        lines.append(f"class {name}{parent}:")
        if not position:
            lines.append("    def __init__(self, base=1):\n        self.base = base")
        for member in rng.sample(NAMES, rng.randint(1, 3)):
            kind = rng.choice(list(MEMBERS))
            lines.append(MEMBERS[kind].format(name=member, number=rng.randint(2, 9)))
        if rng.random() < 0.6:
            lines.append(rng.choice(SPECIALS))
    lines.append("def program(x, p, q):\n    out = [x + 1]")
    for _ in range(rng.randint(6, 12)):
        choices = {"o": rng.choice("pq"), "p": rng.choice("pq"), "n": rng.choice(NAMES), "c": rng.choice(CLASSES)}
        statement = rng.choice(STATEMENTS).format(i=rng.randint(0, 5), **choices)
        lines.append(
            f"    try:\n        {statement}\n    except (AttributeError, TypeError, KeyError, IndexError) as error:"
        )
        lines.append("        out.append(type(error).__name__)")
    lines.append("    return x * 2, out, p, q")
    return "\n".join(lines)


def simplify(value: Any) -> Any:
    """Bound methods and other callables are compared by kind only."""
    if isinstance(value, tuple | list):
        return [simplify(item) for item in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, bool | int | str | type(None)):
        return value
    if hasattr(value, "__dict__") and type(value).__name__ in CLASSES:
        state = object.__getattribute__(value, "__dict__")
        return type(value).__name__, {k: simplify(v) for k, v in state.items() if k != "other"}, list(state)
    return type(value).__name__


#: Changes of the classes and objects between two calls.
CHANGES = [
    "setattr({c}, {n!r}, {i})",
    "setattr({c}, {n!r}, lambda self, *a, **k: ('new', {i}, a))",
    "setattr({c}, {n!r}, property(lambda self: ('prop', {i})))",
    "setattr({c}, {n!r}, Doubling({i}))",
    "setattr({c}, {n!r}, classmethod(lambda cls, *a: ('class', {i})))",
    "setattr({c}, {n!r}, staticmethod(lambda *a: ('static', {i})))",
    "delattr({c}, {n!r})",
    "setattr({o}, {n!r}, {i})",
    "{o}.__dict__.__setitem__({n!r}, {i})",
    "{o}.__dict__.pop({n!r}, None)",
    "setattr({o}, 'base', {i})",
    "setattr({o}, '__class__', {c})",
    "setattr({c}, '__getattr__', lambda self, name: ('made', name))",
    "setattr({c}, '__len__', lambda self: {i})",
    "setattr({c}, '__bool__', lambda self: False)",
    "setattr({c}, '__eq__', lambda self, other: True)",
]


@contextlib.contextmanager
def loaded(seed: int, text: str) -> Iterator[Any]:
    """Import a module made of a text, for the time of its use."""
    module: Any = types.ModuleType(f"random_hierarchy_{seed}")
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, f"<random hierarchy {seed}>", "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules[module.__name__]


def outcome(program: Any, *args: Any) -> Any:
    """Return the result of a call, and the state of its arguments."""
    try:
        return simplify(program(*args))
    except Exception as error:
        return type(error).__name__


def agree(program: Any, subject: Any, objects: tuple[Any, ...]) -> bool:
    """Whether compiled code and eager mode agree on copies of the objects."""
    x = torch.ones(2)
    return outcome(program, x, *copy.deepcopy(objects)) == outcome(subject, x, *copy.deepcopy(objects))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(60))
def test_random_hierarchy(seed: int) -> None:
    rng = random.Random(seed)
    text = make_module(rng)
    with loaded(seed, text) as module:
        objects = (rng.choice([module.A, module.B, module.C])(2), module.C(4))
        subject = compiled(module.program)
        assert all(agree(module.program, subject, objects) for _ in range(2)), text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_changes_between_calls(seed: int) -> None:
    rng = random.Random(seed)
    text = make_module(rng)
    with loaded(seed, text) as module:
        objects = (rng.choice([module.A, module.B, module.C])(2), module.C(4))
        subject = compiled(module.program, recompile_limit=64)
        for _ in range(4):
            assert agree(module.program, subject, objects), text
            choices = {"c": rng.choice(CLASSES), "n": rng.choice(NAMES), "o": rng.choice("pq")}
            change = rng.choice(CHANGES).format(i=rng.randint(10, 19), **choices)
            with contextlib.suppress(AttributeError, TypeError):
                exec(change, module.__dict__ | {"p": objects[0], "q": objects[1]})
            text += f"\n# then: {change}"
