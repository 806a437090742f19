"""`torch.compile(m, backend="framesmith")`, found through torch's entry-point group."""

from __future__ import annotations

import copy

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def test_a_module_in_inference() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
    x = torch.randn(3, 4)
    compiled = torch.compile(model, backend="framesmith")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_a_training_step() -> None:
    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    eager = copy.deepcopy(ours)
    x = torch.randn(6, 4)
    compiled = torch.compile(ours, backend="framesmith")
    for _ in range(2):
        for model, run in ((ours, compiled), (eager, eager)):
            model.zero_grad()
            run(x).square().mean().backward()
    for (name, p), (_, q) in zip(ours.named_parameters(), eager.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    torch.testing.assert_close(ours[1].running_mean, eager[1].running_mean)
