"""Saved-tensor hooks around compiled code: they are called for what the graph saves, and compiled code is used."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import framesmith


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(torch.tanh(layer(x)), 0.2)
        return x


def trained(net: nn.Module, call: Any, context: Any, steps: int = 3) -> list[Any]:
    found: list[Any] = []
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(4, 8, requires_grad=True)
        net.zero_grad()
        with context():
            result = call(x)
        result.square().sum().backward()
        found += [
            result.detach(),
            x.grad,
            torch.rand(2),
            *(p.grad.clone() for p in net.parameters() if p.grad is not None),
        ]
    return found


@pytest.mark.parametrize("context", [save_on_cpu, lambda: saved_tensors_hooks(torch.clone, torch.clone)])
def test_compiled_code_is_used_and_gradients_are_eager_modes(context: Any) -> None:
    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    compiled = framesmith.compile(other, fullgraph=True)
    torch.testing.assert_close(trained(other, compiled, context), trained(net, net, context))
    counts = framesmith.stats()
    assert counts["graphs"] == 1 and counts["frames_run_once"] == 0, counts


def test_hooks_see_what_the_graph_saves() -> None:
    packed: list[tuple[int, ...]] = []
    unpacked: list[int] = []

    def pack(saved: torch.Tensor) -> torch.Tensor:
        assert not isinstance(saved, torch._subclasses.FakeTensor)
        packed.append(tuple(saved.shape))
        return saved * 1

    def unpack(kept: torch.Tensor) -> torch.Tensor:
        unpacked.append(1)
        return kept

    compiled = framesmith.compile(lambda x, w: torch.tanh(x @ w).exp().sum())
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    for _ in range(2):
        packed.clear()
        unpacked.clear()
        with saved_tensors_hooks(pack, unpack):
            loss = compiled(x, w)
        assert packed.count((4, 8)) == 2 and packed.count((8, 8)) == 1  # x, one value of the chain, w
        assert not unpacked
        loss.backward()
        assert len(unpacked) == len(packed)


def test_other_hooks_compile_nothing_again() -> None:
    compiled = framesmith.compile(lambda x: x.sin().exp())
    x = torch.randn(4, requires_grad=True)
    for _ in range(3):
        with saved_tensors_hooks(lambda saved: saved, lambda kept: kept):
            compiled(x).sum().backward()
        compiled(x).sum().backward()
    assert framesmith.stats()["frames_compiled"] == 2  # with hooks, and without


def test_hooks_within_the_function() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        with save_on_cpu():
            y = y.exp().cos()
        return y.tanh()

    x = torch.randn(4, requires_grad=True)
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    for _ in range(2):
        (found,) = torch.autograd.grad(framesmith.compile(function)(x).sum(), x)
        torch.testing.assert_close(found, expected)
    assert framesmith.stats()["graphs"] >= 3


def test_errors_of_hooks_are_the_programs() -> None:
    def refuse(saved: torch.Tensor) -> torch.Tensor:
        raise ValueError("not packed")

    compiled = framesmith.compile(lambda x: x.sin().exp())
    x = torch.randn(4, requires_grad=True)
    with saved_tensors_hooks(refuse, lambda kept: kept), pytest.raises(ValueError, match="not packed"):
        compiled(x)


def test_a_checkpoint_in_compiled_code_under_hooks() -> None:
    packed: list[tuple[int, ...]] = []
    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    compiled = framesmith.compile(lambda x: checkpoint(net, x, use_reentrant=False))
    x = torch.randn(4, 8, requires_grad=True)
    with saved_tensors_hooks(lambda saved: packed.append(tuple(saved.shape)) or saved, lambda kept: kept):
        result = compiled(x)
    assert (4, 32) not in packed and (4, 8) in packed
    (found,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(net(x).sum(), x)[0])


def test_in_an_eager_checkpoint_code_runs_eagerly() -> None:
    compiled = framesmith.compile(lambda x: x.sin().exp())
    x = torch.randn(4, requires_grad=True)
    checkpoint(compiled, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, (x.sin().exp() * x.cos()).detach())
    assert framesmith.stats()["graphs"] == 0
