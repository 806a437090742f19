"""Whole models: gradients of captured backward passes equal the engine's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import same_gradients
from torch import nn


class Block(nn.Module):
    """A transformer block."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        q, k, v = (t.view(2, 5, 4, 4).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16))
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), 0.2)


class Residual(nn.Module):
    """Convolutions with batch norm and a skip connection."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3 * 16, 4)

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)), inplace=True)
        y = F.max_pool2d(x + self.second(y), 2)
        return self.head(y.flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.embed = nn.GRU(4, 6, batch_first=True), nn.Embedding(7, 4)

    def forward(self, ids):
        return self.cell(self.embed(ids))[0].mean(1)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.LogSoftmax(-1)), (5, 4)),
    "block": (Block, (2, 5, 16)),
    "residual": (Residual, (2, 3, 8, 8)),
    "recurrent": (Recurrent, None),
    "norms": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Conv1d(4, 4, 3), nn.InstanceNorm1d(4, affine=True)),
        (2, 4, 6),
    ),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (5, 4)),
}


def training(name, optimise=True):
    def make():
        model_of, shape = MODELS[name]
        model = model_of()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            optimiser.zero_grad()
            x = torch.randint(0, 7, (3, 5)) if shape is None else torch.randn(shape)
            model(x).pow(2).mean().backward()
            if optimise:
                optimiser.step()

        return list(model.parameters()), step

    return make


@pytest.mark.parametrize("name", MODELS)
def test_training(name):
    seen = same_gradients(training(name))
    assert len(seen.programs) <= 2, "the second step must find the first one's program"
    assert all(not program.reasons for program in seen.programs)


def test_gradients_accumulate():
    def make():
        model = nn.Linear(4, 4)
        return list(model.parameters()), lambda: model(torch.randn(3, 4)).sum().backward()

    same_gradients(make)


def test_losses_over_classes():
    def make():
        model = nn.Linear(4, 5)

        def step():
            F.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 5, (6,))).backward()

        return list(model.parameters()), step

    same_gradients(make)


def test_dynamic_sizes():
    def make():
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        sizes = iter([3, 5, 3, 7, 5, 3])

        def step():
            model(torch.randn(next(sizes), 4)).mean().backward()

        return list(model.parameters()), step

    same_gradients(make, steps=6)


def test_other_strides():
    def make():
        w = torch.randn(4, 4, requires_grad=True)
        flip = iter([False, True, False, True])

        def step():
            x = torch.randn(4, 4)
            x = x.t() if next(flip) else x
            (x * w).exp().sum().backward()

        return [w], step

    same_gradients(make, steps=4)


def test_dynamic_scalars():
    def make():
        w = torch.randn(4, requires_grad=True)
        factors = iter([2.0, 3.0, 5.0, 2.0])
        powers = iter([2, 3, 2, 3])

        def step():
            (w.abs() * next(factors)).pow(next(powers)).sum().backward()

        return [w], step

    same_gradients(make, steps=4)


def test_compiler_gets_aten_graphs_and_its_results_are_used():
    calls = []

    def compiler(gm):
        def run(*tensors):
            calls.append([node.target for node in gm.graph.nodes if node.op == "call_function"])
            return [value * 2 for value in gm(*tensors)]

        return run

    from framesmith_autograd_compiler import capture

    w = torch.ones(3, requires_grad=True)
    with capture(compiler):
        (w * w).sum().backward()
        (w * w).sum().backward()
    assert w.grad.tolist() == [8.0, 8.0, 8.0]
    assert len(calls) == 2 and torch.ops.aten.mul.Tensor in calls[0]


def test_gradient_is_taken_without_a_copy_only_when_nobody_else_holds_it():
    addresses = []

    def compiler(gm):
        def run(*tensors):
            results = gm(*tensors)
            addresses.append(results[0].data_ptr())
            return results

        return run

    from framesmith_autograd_compiler import capture

    w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    x = torch.randn(3, 3)
    with capture(compiler):
        (x @ w).sum().backward()
        assert w.grad.data_ptr() == addresses[-1]
        seed = torch.ones(3)
        (w + v).backward(seed)
    assert v.grad.data_ptr() != seed.data_ptr()
    w.grad.zero_()
    assert v.grad.tolist() == seed.tolist() == [1.0] * 3


def test_one_gradient_for_two_leaves():
    from framesmith_autograd_compiler import capture

    w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    with capture(lambda gm: gm):
        ((w + v) * 2).sum().backward()
    w.grad.zero_()
    assert v.grad.tolist() == [2.0] * 3


def test_gradient_whose_view_is_asked_for_too():
    from framesmith_autograd_compiler import capture

    w, v = torch.ones(4, requires_grad=True), torch.ones(2, 2, requires_grad=True)

    def parts(g):
        return g, g.view(2, 2)

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a + b.view(4)

        @staticmethod
        def backward(ctx, grad):
            return parts(grad * 2)

        @staticmethod
        def evaluate_backward(saved, grads):
            return parts(grads[0] * 2)

    with capture(lambda gm: gm) as seen:
        Both.apply(w, v).sum().backward()
    assert not seen.fallbacks and not seen.programs[0].reasons
    w.grad.zero_()
    assert v.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_constant_gradient_is_copied():
    from framesmith_autograd_compiler import capture

    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return torch.tensor([1.0, 2.0])

        @staticmethod
        def evaluate_backward(saved, grads):
            return (torch.tensor([1.0, 2.0]),)

    w = torch.ones(2, requires_grad=True)
    with capture(lambda gm: gm):
        for _ in range(2):
            Constant.apply(w).sum().backward()
            assert w.grad.tolist() == [1.0, 2.0]
            w.grad.zero_()
            w.grad = None
