"""Training: gradients to parameters and inputs, whole steps, losses, gradient modes."""

import torch
from torch import nn

from integration_tests.harness.differential import Case


def gradients_of_a_function() -> Case:
    def f(x: torch.Tensor, w: torch.Tensor):
        return torch.tanh(x @ w).pow(2).mean(), x.exp().sum()

    w = torch.randn(3, 2, requires_grad=True)
    return Case(f, [(torch.randn(4, 3, requires_grad=True), w) for _ in range(3)], backward=True)


def whole_step_with_optimizer() -> Case:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, [(torch.randn(5, 4), torch.randint(0, 3, (5,))) for _ in range(3)], watch=[model])


def some_inputs_need_no_grad() -> Case:
    def f(x: torch.Tensor, mask: torch.Tensor, unused: torch.Tensor):
        return (x * mask).sum(), x.detach() * 2, mask + 1

    def call() -> tuple:
        return torch.randn(3, requires_grad=True), torch.ones(3), torch.randn(2, requires_grad=True)

    return Case(f, [call() for _ in range(3)], backward=True)


def requires_grad_changes() -> Case:
    def f(x: torch.Tensor):
        return x.sin() * 2 + 0 * x.sum()

    a, b = torch.randn(3), torch.randn(3, requires_grad=True)
    return Case(f, [(a,), (b,), (a,), (b,)])


def dtype_changes() -> Case:
    def f(x: torch.Tensor):
        return (x * 2).relu() + 1

    return Case(
        f, [(torch.randn(3).to(dtype),) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32)]
    )


def no_grad_region() -> Case:
    def f(x: torch.Tensor, w: torch.Tensor):
        with torch.no_grad():
            scale = w.abs().max()
        with torch.enable_grad():
            y = x * w / scale
        return y.sum(), scale, torch.is_grad_enabled()

    w = torch.randn(3, requires_grad=True)
    return Case(f, [(torch.randn(3), w) for _ in range(3)], backward=True)


def losses() -> Case:
    def f(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor):
        a = nn.functional.cross_entropy(logits, target, label_smoothing=0.1)
        b = nn.functional.nll_loss(torch.log_softmax(logits, -1), target, weight=weight, ignore_index=1)
        c = nn.functional.mse_loss(logits, torch.zeros_like(logits), reduction="sum")
        d = nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
        e = nn.functional.smooth_l1_loss(logits, torch.ones_like(logits))
        return a + b + c + d + e

    def call() -> tuple:
        return torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0]), torch.rand(3)

    return Case(f, [call() for _ in range(3)], backward=True, atol=1e-4)


def dropout_training() -> Case:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Linear(6, 1))
    return Case(model, [(torch.randn(4, 6),) for _ in range(3)], watch=[model], backward=True)
