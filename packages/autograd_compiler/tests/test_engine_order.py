"""Hooks of generated graphs run in the engine's order; what a pass cannot know of it."""

from __future__ import annotations

import random

import pytest
import torch
from harness import identity

from framesmith_autograd_compiler import capture, disabled


def leaf_named(name, log):
    leaf = torch.randn(3, requires_grad=True)
    leaf.register_hook(lambda grad: log.append(("leaf", name)))
    leaf.register_post_accumulate_grad_hook(lambda leaf: log.append(("after", name)))
    return leaf


def hooked(value, name, log, chance):
    if chance.random() < 0.6:
        value.register_hook(lambda grad: log.append(("tensor", name)))
    if chance.random() < 0.2:
        value.grad_fn.register_prehook(lambda grads: log.append(("before", name)))
    if chance.random() < 0.2:
        value.grad_fn.register_hook(lambda outs, ins: log.append(("behind", name)))
    return value


OPERATIONS = (
    lambda one, two: one * two,
    lambda one, two: one + two,
    lambda one, two: torch.addcmul(one, one.sin(), two),
    lambda one, two: torch.stack([one, two]).sum(0),
    lambda one, two: one.exp(),
    lambda one, two: torch.where(one > 0, one, two),
)


def generated(seed, log):
    """Return (leaves, intermediates) of a graph of random operations with random hooks."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    leaves = [leaf_named(name, log) for name in range(chance.randint(1, 6))]
    values = list(leaves)
    for name in range(chance.randint(3, 20)):
        one, two = chance.choice(values), chance.choice(values)
        values.append(hooked(chance.choice(OPERATIONS)(one, two).tanh(), name, log, chance))
    return leaves, values[len(leaves) :]


def run(seed):
    log, chance = [], random.Random(seed + 1)
    leaves, values = generated(seed, log)
    kind = seed % 4
    results = []
    if kind == 0:
        values[-1].sum().backward()
    elif kind == 1:
        roots = chance.sample(values, min(3, len(values)))
        torch.autograd.backward(roots, [torch.ones(3) for _ in roots])
    elif kind == 2:
        values[-1].sum().backward(inputs=chance.sample(leaves, chance.randint(1, len(leaves))))
    else:
        wanted = chance.sample([*leaves, *values[:-1]], min(4, len(leaves) + len(values) - 1))
        results = list(torch.autograd.grad(values[-1].sum(), wanted, allow_unused=True))
    return log, [*results, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("seed", range(80))
def test_generated_graphs(seed):
    with disabled():
        log, expected = run(seed)
    with capture(identity) as seen:
        for _ in range(2):
            found_log, found = run(seed)
            assert found_log == log
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not seen.fallbacks and not any(program.reasons for program in seen.programs)


@pytest.mark.parametrize("captured", [False, True])
def test_a_hook_removed_before_its_tensor_is_reached(captured):
    """The pass takes the hooks that are there when it begins: a removed one runs once more, unlike in the engine."""
    log = []
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    k = h.sin()
    handle = h.register_hook(lambda grad: log.append("h"))
    k.register_hook(lambda grad: (log.append("k"), handle.remove())[1])
    with capture(identity) if captured else disabled():
        for _ in range(2):
            k.sum().backward(retain_graph=True)
    assert log == (["k", "h", "k"] if captured else ["k", "k"])
