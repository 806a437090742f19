"""Runs training steps with and without capture, and compares gradients."""

from __future__ import annotations

import contextlib

import torch

from framesmith_autograd_compiler import capture


def identity(gm):
    """A compiler that runs the ATen graph with torch."""
    for node in gm.graph.nodes:
        assert node.op == "output" or "val" in node.meta
    return gm


def gradients(make, steps, captured):
    """`make()` gives (parameters, step); the gradients after each of `steps` calls of `step()`."""
    torch.manual_seed(0)
    parameters, step = make()
    found = []
    with capture(identity) if captured else contextlib.nullcontext() as seen:
        for number in range(steps):
            torch.manual_seed(number)
            step()
            found.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return found, seen


def same_gradients(make, steps=3):
    """Asserts equal gradients with and without capture, and that nothing fell back; returns the capture."""
    expected, _ = gradients(make, steps, False)
    found, seen = gradients(make, steps, True)
    assert seen.fallbacks == []
    assert seen.runs >= steps
    for number, (one, two) in enumerate(zip(expected, found)):
        assert [g is None for g in one] == [g is None for g in two]
        for at, (a, b) in enumerate(zip(one, two)):
            if a is not None:
                torch.testing.assert_close(a, b, msg=lambda m: f"step {number}, parameter {at}: {m}")
                assert a.stride() == b.stride()
    return seen


class Scaled(torch.autograd.Function):
    """Saves its operand and a number, as a function of the user's."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad * ctx.factor, None


class Doubled(torch.autograd.Function):
    """Changes its operand in place, as a function of the user's."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2
