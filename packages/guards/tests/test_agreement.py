"""Native programs, their text and the reference predicates agree on generated guards, values and mutations.

`python tests/test_agreement.py 1000000` checks that many pairs of a value and a guard set.
"""

import random
import sys
from collections import OrderedDict, namedtuple

import pytest
import torch

from framesmith_guards import (
    KINDS,
    AttrSource,
    DictKeySource,
    DictValueSource,
    Guard,
    GuardError,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    TensorPropertySource,
    TypeSource,
    compile_guards,
    state_guards,
)
from framesmith_guards.probing import extension
from framesmith_guards.state import BY_KIND

X, Y = LocalSource("x"), LocalSource("y")
Point = namedtuple("Point", "a b")
SKIPPED = {"SHAPE", "SUBCLASS_METADATA", *BY_KIND}


class Thing:
    """An object whose attributes are compared, replaced and deleted."""

    def __init__(self, **members):
        self.__dict__.update(members)

    def method(self):
        return self


class OtherThing(Thing):
    """The same with another type."""


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
    shape = rng.choice([(2, 2), (2, 3), (3,), (), (1, 2, 1, 1, 1, 2)])
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
            lambda: Point(value(rng, depth - 1), value(rng, depth - 1)),
            lambda: {atoms(rng) for _ in inner},
            lambda: range(rng.randrange(3)),
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
            lambda: TensorPropertySource(base, "size", 0),
        ]
    )()


def source(rng):
    found = rng.choice([X, X, X, Y])
    while rng.random() < 0.6:
        found = step(rng, found)
    return found


def guard(rng, universe):
    """A random guard whose expectation comes from one of the values, if that is possible."""
    kind = rng.choice(sorted(KINDS.keys() - SKIPPED))
    on = source(rng)
    try:
        found = on.evaluate({"x": rng.choice(universe), "y": rng.choice(universe)}, guard)
    except Exception:
        return None
    expected = {
        "TYPE_MATCH": lambda: type(found),
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
    }.get(kind, lambda: found)
    try:
        return Guard(on, kind, expected())
    except (GuardError, TypeError, ValueError, AttributeError):
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
    elif isinstance(target, Thing):
        target.__class__ = rng.choice([Thing, OtherThing])
        setattr(target, rng.choice(["a", "b", "weight"]), value(rng, 1))
    elif isinstance(target, dict):
        target[rng.choice(["a", "b", "weight", 0])] = value(rng, 1)
        if rng.random() < 0.3:
            target.pop(rng.choice(list(target)))
    elif isinstance(target, list) and target:
        target[0] = value(rng, 1)


def disagreements(seed, pairs, per_program=60):
    """Check `pairs` pairs of a guard set and values; the disagreements found, and how often guards held."""
    rng = random.Random(seed)
    modes = state_guards(["TORCH_FUNCTION_MODES"])
    universe, wrong, held, done = [], [], 0, 0
    while done < pairs:
        if len(universe) < 40 or rng.random() < 0.02:
            universe = [value(rng, 3) for _ in range(60)]
        guards = [g for g in (guard(rng, universe) for _ in range(rng.choice([1, 1, 2, 4]))) if g is not None]
        if not guards:
            continue
        try:
            program = compile_guards([*guards, *modes], ("x", "y"), native=True)
        except GuardError:  # something that was made only to be guarded is gone
            continue
        for _ in range(per_program):
            args = (rng.choice(universe), rng.choice(universe))
            for _ in range(rng.choice([1, 1, 3])):
                answers = (program(args, guard), program.check(args, guard), not program.misses(args, guard))
                held += answers[0]
                done += 1
                if len(set(answers)) != 1:
                    wrong.append(([str(g) for g in guards], answers, repr(type(args[0])), program.misses(args, guard)))
            if rng.random() < 0.3:
                mutate(rng, universe)
    return wrong, held / done


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.skipif(extension()[0] is None, reason=str(extension()[1]))
@pytest.mark.parametrize("seed", range(4))
def test_all_ways_agree(seed):
    wrong, share = disagreements(seed, 5000)
    assert wrong == []
    assert share > 0.02, "the generated guards hold too seldom to mean anything"


if __name__ == "__main__":
    count, found = int(sys.argv[1]), []
    for chunk in range(max(count // 20000, 1)):
        faults, rate = disagreements(1000 + chunk, min(count, 20000))
        found += faults
        print(f"{(chunk + 1) * min(count, 20000)} pairs, {len(found)} disagreements, {rate:.0%} held", flush=True)
    sys.exit(bool(found))
