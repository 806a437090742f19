"""Guards over many objects, whose order a program remembers from call to call."""

import itertools
import random

import torch
from native_programs import X, f, native

from framesmith_guards import Guard, ItemSource

COUNT = 12


def related(kind):
    first, *others = (ItemSource(X, at) for at in range(COUNT))
    tensors = [Guard(ItemSource(X, at), "TENSOR_MATCH", torch.ones(2)) for at in range(COUNT)]
    return native([*tensors, Guard(first, kind, others)])


def test_one_object_twice_is_seen_in_whatever_order_they_come():
    rng, program = random.Random(0), related("NOT_ALIASED")
    objects = [torch.ones(2) for _ in range(COUNT)]
    for _ in range(200):
        rng.shuffle(objects)
        assert program((objects,), f)
        twice = [*objects]
        a, b = rng.sample(range(COUNT), 2)
        twice[a] = twice[b]
        assert not program((twice,), f)


def test_shared_memory_is_seen_in_whatever_order_tensors_come():
    rng, program = random.Random(1), related("ALL_DISJOINT")
    memory = torch.ones(2 * COUNT)
    tensors = [memory[at : at + 2] for at in range(0, 2 * COUNT, 2)]
    for _ in range(200):
        rng.shuffle(tensors)
        assert program((tensors,), f)
        start = rng.randrange(2 * COUNT - 1)
        clashing = [*tensors]
        clashing[rng.randrange(COUNT)] = memory[start : start + 2]
        ends = sorted(one.storage_offset() for one in clashing)
        assert program((clashing,), f) == all(b - a >= 2 for a, b in itertools.pairwise(ends))
