"""Native programs, their text and the reference predicates agree on generated guards, values, mutations and states.

`python tests/programs/test_agreement.py 1000000` checks that many pairs of a value and a guard set and counts them by
kind; so does the test when FRAMESMITH_LONG is set.
"""

import contextlib
import dataclasses
import os
import random
import sys
import weakref
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Sized
from numbers import Integral
from types import MappingProxyType

import pytest
import sympy
import torch

from framesmith_guards import (
    AttrSource,
    DictKeySource,
    DictValueSource,
    Guard,
    GuardError,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ShapeEnvSource,
    ShapeExpr,
    TensorPropertySource,
    TensorSpec,
    TypeSource,
    compile_guards,
    state_guards,
)
from framesmith_guards.kinds.state import BY_KIND
from framesmith_guards.kinds.table import KINDS
from framesmith_guards.programs.native.probing import extension

X, Y = LocalSource("x"), LocalSource("y")
Point = namedtuple("Point", "a b")
LONG = bool(os.environ.get("FRAMESMITH_LONG"))
MEMORY = torch.zeros(64)


class Thing:
    """An object whose attributes are compared, replaced and deleted."""

    def __init__(self, **members):
        self.__dict__.update(members)

    def method(self):
        return self


class OtherThing(Thing):
    """The same with another type."""


class Boxed(torch.Tensor):
    """A traceable wrapper subclass whose torch-function code must not run."""

    @staticmethod
    def __new__(cls, inner, scale):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner, scale):
        self.inner, self.scale = inner, scale

    def __tensor_flatten__(self):
        return ["inner"], {"scale": self.scale}

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


class Liar(dict):
    """A dict that overrides what a check must not trust."""

    def __len__(self):
        return 1


def atoms(rng):
    return rng.choice(
        [None, True, False, 0, 1, 2, -1, 2**70, 0.0, -0.0, 1.0, 0.5, float("nan"), "", "a", "b", b"a", 1j]
        + [torch.float32, torch.device("cpu"), int, Thing, ..., "weight"]
    )


def tensors(rng):
    if rng.random() < 0.25:
        size, stride, offset = rng.choice([1, 2, 3]), rng.choice([1, 2, 7]), rng.randrange(8)
        return MEMORY.as_strided((size,), (stride,), offset)
    if rng.random() < 0.1:
        return Boxed(MEMORY[:2], rng.randrange(2))
    shape = rng.choice([(2, 2), (2, 3), (3,), (), (1, 2, 1, 1, 1, 2), (0, 2)])
    x = torch.ones(shape, dtype=rng.choice([torch.float32, torch.float64, torch.int64]))
    if x.is_floating_point() and rng.random() < 0.3:
        x.requires_grad_()
    if rng.random() < 0.2:
        x = x.transpose(0, -1) if x.dim() else x
    return torch.nn.Parameter(x.detach(), x.is_floating_point()) if rng.random() < 0.3 else x


def functions(rng):
    return rng.choice([atoms, tensors, rng.choice, Thing.method])


def containers(rng, depth):
    inner = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    keys = rng.sample(["a", "b", "weight", 0, 1, True, 0.5, None, (1, 2)], len(inner))
    named = dict(zip(rng.sample(["a", "b", "weight", "_parameters"], len(inner)), inner))
    return rng.choice(
        [
            lambda: inner,
            lambda: tuple(inner),
            lambda: dict(zip(keys, inner)),
            lambda: OrderedDict(zip(keys, inner)),
            lambda: named,
            lambda: Thing(**named),
            lambda: OtherThing(**named),
            lambda: Liar(named),
            lambda: MappingProxyType(named),
            lambda: type("Made", (rng.choice([Thing, OtherThing]),), dict.fromkeys(named, 1))(**named),
            lambda: Point(value(rng, depth - 1), value(rng, depth - 1)),
            lambda: {atoms(rng) for _ in inner},
            lambda: range(rng.randrange(3)),
            lambda: weakref.ref(OtherThing() if rng.random() < 0.3 else OtherThing),
            lambda: iter(tuple(inner)),
            lambda: iter(range(rng.randrange(3))),
        ]
    )()


def value(rng, depth):
    roll = rng.random()
    if depth and roll < 0.5:
        return containers(rng, depth)
    if roll < 0.65:
        return tensors(rng)
    if roll < 0.7:
        return functions(rng)
    return atoms(rng)


def step(rng, base):
    key = rng.choice(["a", "b", "weight", 0, 1, "_parameters"])
    return rng.choice(
        [
            lambda: AttrSource(base, rng.choice(["a", "b", "weight", "shape", "method"])),
            lambda: InstanceDictSource(base),
            lambda: ItemSource(InstanceDictSource(base), rng.choice(["a", "b", "weight", "_parameters"])),
            lambda: ItemSource(base, key),
            lambda: TypeSource(base),
            lambda: DictKeySource(base, rng.randrange(2)),
            lambda: DictValueSource(base, rng.randrange(2)),
            lambda: TensorPropertySource(base, rng.choice(["size", "stride"]), 0),
            lambda: TensorPropertySource(base, "storage_offset"),
        ]
    )()


def source(rng):
    found = rng.choice([X, X, X, Y])
    while rng.random() < 0.6:
        found = step(rng, found)
    return found


def condition(rng):
    """A random SHAPE guard."""
    a, b = sympy.symbols("a b", integer=True)
    expr = rng.choice(
        [
            sympy.Ge(a, 2),
            sympy.Eq(a, b),
            sympy.Ne(sympy.Mod(a, 2), 0),
            sympy.And(sympy.Lt(a, 4), sympy.Or(sympy.Gt(b, 1), sympy.Eq(a + b, 2))),
            sympy.Le(sympy.Max(a, 3) * b, 2 * a + 4),
        ]
    )
    sources = {symbol: TensorPropertySource(source(rng), rng.choice(["size", "stride"]), 0) for symbol in (a, b)}
    return Guard(ShapeEnvSource(), "SHAPE", ShapeExpr.of(expr, sources))


LIKELY = ("TENSOR_MATCH", "SUBCLASS_METADATA", "SAME_STORAGE", "NO_OVERLAP", "ALL_DISJOINT", "SHAPE")


def spec_of(found, rng):
    """A tensor's spec, perhaps with its first size or stride left open."""
    spec = TensorSpec.of(found)
    for name in ("sizes", "strides"):
        values = getattr(spec, name)
        if values and rng.random() < 0.5:
            spec = dataclasses.replace(spec, **{name: (None, *values[1:])})
    return spec


def guard(rng, witness):
    """A random guard whose expectation comes from the witness, a pair of values, if that is possible."""
    kind = rng.choice([*sorted(KINDS.keys() - BY_KIND.keys()), *LIKELY])
    if kind == "SHAPE":
        return condition(rng)
    on = rng.choice([X, Y]) if rng.random() < 0.4 else source(rng)
    try:
        found = on.evaluate(dict(zip("xy", witness)), guard)
    except Exception:
        return None
    expected = {
        "TYPE_MATCH": lambda: type(found),
        "BOOL_MATCH": lambda: rng.random() < 0.5,
        "NONE_MATCH": lambda: None,
        "NOT_NONE": lambda: None,
        "WEAKREF_ALIVE": lambda: None,
        "LENGTH": lambda: len(found),
        "HASATTR": lambda: rng.choice(["a", "b", "weight", "dtype"]),
        "NO_HASATTR": lambda: rng.choice(["a", "b", "weight", "dtype"]),
        "DICT_CONTAINS": lambda: rng.choice(["a", "b", 0, 1]),
        "DICT_NOT_CONTAINS": lambda: rng.choice(["a", "b", 0, 1]),
        "TUPLE_ITERATOR": lambda: rng.randrange(3),
        "RANGE_ITERATOR": lambda: range(rng.randrange(3)),
        "DUPLICATE_INPUT": lambda: source(rng),
        "NOT_ALIASED": lambda: [source(rng) for _ in range(rng.randrange(1, 3))],
        "SAME_STORAGE": lambda: rng.choice([X, Y, source(rng)]),
        "NO_OVERLAP": lambda: [rng.choice([X, Y, source(rng)]) for _ in range(rng.randrange(1, 3))],
        "ALL_DISJOINT": lambda: [rng.choice([X, Y, source(rng)]) for _ in range(rng.randrange(1, 3))],
        "CLASS_LAYOUT": lambda: found if isinstance(found, type) else type(found),
        "NOT_SUBCLASS": lambda: rng.choice([Sized, Integral, dict, type(found)]),
        "TENSOR_MATCH": lambda: spec_of(found, rng),
        "PLAIN_LEAF": lambda: found.dtype,
    }.get(kind, lambda: found)
    try:
        return Guard(on, kind, expected())
    except (GuardError, TypeError, ValueError, AttributeError, NotImplementedError):
        return None


def mutate(rng, universe):
    """Change something inside one of the values, as a program that runs between two calls would."""
    target = rng.choice(universe)
    for _ in range(rng.randrange(3)):
        inside = getattr(target, "__dict__", target)
        items = (
            list(inside.values()) if isinstance(inside, dict) else inside if isinstance(inside, (list, tuple)) else []
        )
        target = rng.choice(items) if items else target
    if isinstance(target, torch.Tensor):
        if target.is_leaf and target.is_floating_point():
            target.requires_grad_(rng.random() < 0.5)
    elif isinstance(target, Thing) and type(target).__name__ == "Made" and rng.random() < 0.5:
        name = rng.choice(["a", "b", "weight"])
        if name in vars(type(target)):
            delattr(type(target), name)
        else:
            setattr(type(target), name, 2)
    elif isinstance(target, Thing):
        target.__class__ = rng.choice([Thing, OtherThing])
        setattr(target, rng.choice(["a", "b", "weight"]), value(rng, 1))
    elif isinstance(target, dict):
        target[rng.choice(["a", "b", "weight", 0])] = value(rng, 1)
        if rng.random() < 0.3:
            target.pop(rng.choice(list(target)))
    elif isinstance(target, list) and target:
        target[0] = value(rng, 1)


class Passing(torch.overrides.TorchFunctionMode):
    """A torch-function mode that no check may run."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"a check ran {func}")


STATES = (
    *[contextlib.nullcontext] * 8,
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.device("cpu"),
    torch._C.DisableTorchFunctionSubclass,
    lambda: torch.device("meta"),
    Passing,
)


def disagreements(seed, pairs, per_program=60):
    """Check `pairs` pairs of a guard set and values: the disagreements, the share that held, both counts by kind."""
    rng = random.Random(seed)
    universe, wrong, held, done, kinds, holding = [], [], 0, 0, Counter(), Counter()
    while done < pairs:
        if len(universe) < 40 or rng.random() < 0.02:
            universe = [value(rng, 3) for _ in range(60)]
        witness = (rng.choice(universe), rng.choice(universe))
        guards = [g for g in (guard(rng, witness) for _ in range(rng.choice([1, 1, 2, 4]))) if g is not None]
        if not guards:
            continue
        with rng.choice(STATES)():
            guards += state_guards(rng.sample(sorted(BY_KIND), rng.choice([0, 0, 0, 1, 3, len(BY_KIND)])))
        try:
            program = compile_guards(guards, ("x", "y"), native=True)
        except GuardError:  # something that was made only to be guarded is gone
            continue
        state, names = rng.choice(STATES), {g.kind.name for g in guards}
        for _ in range(per_program):
            args = witness if rng.random() < 0.4 else (rng.choice(universe), rng.choice(universe))
            state = rng.choice([state, state, state, rng.choice(STATES)])
            with state():
                for _ in range(rng.choice([1, 1, 3])):
                    answers = (program(args, guard), program.check(args, guard), not program.misses(args, guard))
                    held += answers[0]
                    done += 1
                    kinds.update(names)
                    holding.update(names if answers[0] else ())
                    if len(set(answers)) != 1:
                        wrong.append(([str(g) for g in guards], answers, type(args[0]), program.misses(args, guard)))
            if rng.random() < 0.3:
                mutate(rng, universe)
    return wrong, held / done, kinds, holding


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.skipif(extension()[0] is None, reason=str(extension()[1]))
@pytest.mark.parametrize("seed", range(4))
def test_all_ways_agree(seed):
    wrong, share, kinds, holding = disagreements(seed, 250_000 if LONG else 4000)
    assert wrong == []
    assert share > 0.02, "the generated guards hold too seldom to mean anything"
    if LONG:
        assert kinds.keys() == KINDS.keys() and len(holding) >= len(KINDS) - 2
    assert len(kinds) > len(KINDS) / 2


if __name__ == "__main__":
    count, found, total, good = int(sys.argv[1]), [], Counter(), Counter()
    for chunk in range(max(count // 20000, 1)):
        faults, rate, kinds, holding = disagreements(1000 + chunk, min(count, 20000))
        found += faults
        total += kinds
        good += holding
        print(f"{(chunk + 1) * min(count, 20000)} pairs, {len(found)} disagreements, {rate:.0%} held", flush=True)
    for name in KINDS:
        print(f"{name:22}{total[name]:10} pairs,{good[name]:8} held")
    print(*found[:5], sep="\n")
    sys.exit(bool(found))
