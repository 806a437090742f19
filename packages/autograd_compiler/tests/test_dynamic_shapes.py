"""Passes of other sizes: one program for all of them, right for each."""

from __future__ import annotations

import pytest
import torch
from harness import identity, same_gradients

from framesmith_autograd_compiler import capture, disabled

SIZES = (4, 7, 9, 1, 12, 4, 3, 1, 7)


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Dropout(0.0), torch.nn.Linear(32, 4)
    )


def batches(loss, sizes=SIZES):
    """`(parameters, step)` for the harness: the loss of a model and a batch, of one size after another."""

    def make():
        model = network()
        left = list(sizes)

        def step():
            model.zero_grad()  # a leaf with a gradient is another kind of pass
            loss(model, torch.randn(left.pop(0), 16)).backward()

        return list(model.parameters()), step

    return make


LOSSES = {
    "mean": lambda model, x: model(x).square().mean(),
    "of sizes": lambda model, x: model(x).sum() / x.shape[0] ** 2,
    "views": lambda model, x: model(x.expand(3, *x.shape)).reshape(-1, 2).transpose(0, 1).contiguous().sigmoid().sum(),
    "slices": lambda model, x: model(x)[: (x.shape[0] + 1) // 2].exp().sum(),
    "in place": lambda model, x: changed_in_place(model(x)).square().sum(),
    "cat": lambda model, x: torch.cat([model(x), model(2 * x)]).logsumexp(0).sum(),
    "conv": lambda model, x: torch.nn.functional.conv1d(model(x)[None], torch.ones(x.shape[0], x.shape[0], 2)).mean(),
    "reductions": lambda model, x: (model(x).softmax(0).amax(0) + model(x).std(0, unbiased=False)).sum(),
}


def changed_in_place(y):
    y = y.clone()
    y[:, 1:].mul_(2)
    y[0] = 3
    return y


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_at_many_sizes(name):
    seen = same_gradients(batches(LOSSES[name]), steps=len(SIZES))
    assert not any("not compiled" in reason for program in seen.programs for reason in program.reasons)


def test_one_program_for_changing_sizes():
    sizes = [*range(3, 23), 5, 9]
    seen = same_gradients(batches(LOSSES["mean"], sizes), steps=len(sizes))
    assert len(seen.programs) == 2  # the engine's sizes are inputs from the second pass on
    assert [len(program.modules) for program in seen.programs] == [1, 2]
    assert seen.programs[1].reasons == []


def test_a_hook_between_segments():
    def loss(model, x):
        y = model(x)
        y.register_hook(lambda grad: grad * grad.shape[0])
        return y.square().mean()

    seen = same_gradients(batches(loss), steps=len(SIZES))
    assert len(seen.programs) == 2


def test_a_custom_function_that_gets_sizes():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.rows = x.shape[0]
            return x / ctx.rows

        @staticmethod
        def backward(ctx, grad):
            return grad / ctx.rows

    same_gradients(batches(lambda model, x: Scaled.apply(model(x)).square().sum()), steps=len(SIZES))


def test_dynamic_scalars():
    def make():
        weight = torch.nn.Parameter(torch.randn(5))
        scalars = [0.5, 0.25, -2.0, 0.5, 3.0]

        def step():
            scalar = scalars.pop(0)
            (torch.nn.functional.leaky_relu(weight, scalar) ** 2 * scalar).sum().backward()

        return [weight], step

    same_gradients(make, steps=5)


def test_a_compiler_that_refuses_symbols_compiles_for_each_size():
    def static_only(gm):
        for node in gm.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) or (
                isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides
            ):
                raise NotImplementedError("a symbol")
        return gm

    with capture(static_only) as seen:
        model = network()
        for size in (3, 5, 3, 6, 5):
            x = torch.randn(size, 16)
            model.zero_grad()
            model(x).square().mean().backward()
            found = [parameter.grad for parameter in model.parameters()]
            with disabled():
                expected = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
            torch.testing.assert_close(found, list(expected))
    assert seen.fallbacks == []
    assert seen.programs[1].reasons == ["compiled for each size: NotImplementedError: a symbol"]
    assert len(seen.programs[1].modules) == 3  # sizes 5, 6 and, met again, 3


def test_what_is_compiled_says_so_of_its_sizes():
    with capture(identity) as seen:
        model = network()
        for size in (3, 5, 8):
            model.zero_grad()
            model(torch.randn(size, 16)).square().mean().backward()
    values = [node.meta["val"] for node in seen.programs[1].modules[1].graph.nodes if node.op == "placeholder"]
    assert any(isinstance(value, torch.SymInt) or value._has_symbolic_sizes_strides for value in values)
