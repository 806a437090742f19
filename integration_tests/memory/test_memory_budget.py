"""`options={"memory_budget": ...}`: less is saved for the backward pass, and nothing else changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import framesmith
from benchmarks.harness.tensors_made import peak_bytes

Tensor = torch.Tensor
BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def layers() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.2)) for _ in range(12)])


def encoder() -> nn.Module:
    made = [nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, norm_first=at % 2 == 1) for at in range(4)]
    return nn.Sequential(nn.Unflatten(0, (-1, 16)), *made, nn.Flatten(0, 1))


def convolutions() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=1))

    return nn.Sequential(nn.Unflatten(1, (8, 4)), *[Residual(block()) for _ in range(6)], nn.Flatten())


def with_checkpoints() -> nn.Module:
    return nn.Sequential(*[kind(layers()) for kind in (Residual, Checkpointed, Residual)])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": layers, "encoder": encoder, "convolutions": convolutions, "with checkpoints": with_checkpoints,
}  # fmt: skip


def trained(model: nn.Module, call: Callable[[Tensor], Tensor], rows: int = 256) -> list[Any]:
    """Return what a step gives: the loss, gradients, buffers, and a random number behind it."""
    model.zero_grad()
    torch.manual_seed(1)
    x = torch.randn(rows, 32, requires_grad=True)
    loss = call(x).square().mean()
    loss.backward()
    gradients = [x.grad, *(one.grad for one in model.parameters())]
    return [loss.detach(), *gradients, *(one.clone() for one in model.buffers()), torch.rand(1)]


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_steps_are_those_of_eager_mode(name: str, dynamic: bool) -> None:
    for budget in (0.5, 0.0):
        framesmith.reset()
        ours, eager = made(name), made(name)
        call = framesmith.compile(ours, fullgraph=True, dynamic=dynamic, options={"memory_budget": budget})
        for rows in (256, 128):
            torch.testing.assert_close(trained(ours, call, rows), trained(eager, eager, rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["layers", "encoder", "convolutions"])
def test_a_smaller_budget_takes_less_memory(name: str) -> None:
    peaks = []
    for budget in BUDGETS:
        framesmith.reset()
        model = made(name)
        call = framesmith.compile(model, options={"memory_budget": budget})
        trained(model, call)
        peaks.append(peak_bytes(lambda model=model, call=call: trained(model, call, 2048)))
    assert peaks[-1] < 0.7 * peaks[0]
    assert all(later < 1.04 * earlier for earlier, later in itertools.pairwise(peaks)), peaks


@pytest.mark.parametrize("change", ["result", "bias"])
def test_what_eager_mode_does_not_save_may_be_changed_before_the_backward_pass(change: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(32, 32) for _ in range(9)])

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            for part in self.parts:
                x = part(x).tanh()
                between = x + 1
                x = between * 2
            return x, between

    def step(net: Net, call: Callable[[Tensor], Any]) -> list[Any]:
        result, between = call(torch.ones(64, 32))
        with torch.no_grad():
            (between if change == "result" else net.parts[3].bias).add_(1)
        result.sum().backward()
        return [one.grad for one in net.parameters()]

    torch.manual_seed(0)
    eager = Net()
    ours = Net()
    ours.load_state_dict(eager.state_dict())
    call = framesmith.compile(ours, fullgraph=True, options={"memory_budget": 0.0})
    torch.testing.assert_close(step(ours, call), step(eager, eager), rtol=1e-4, atol=1e-4)


def test_a_segment_does_not_end_between_a_call_and_its_results() -> None:
    """A call of several results is not saved itself: the attention's results are, where a segment could end."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(16, 48) for _ in range(2)])

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            first = x
            for part in self.parts:
                first, x = x, self.attended(part, x)
            return first, x

        def attended(self, part: nn.Module, x: Tensor) -> Tensor:
            q, k, v = part(nn.functional.layer_norm(x, (16,))).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
            return x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16)

    torch.manual_seed(0)
    net, x = Attending(), torch.randn(2, 5, 16)
    call = framesmith.compile(net, fullgraph=True, strict=True, options={"memory_budget": 0.3})

    def gradients(run: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sum(one.square().sum() for one in run(x)), [*net.parameters()])

    torch.testing.assert_close(gradients(call), gradients(net))


def test_second_derivatives_are_those_of_eager_mode() -> None:
    def penalty(model: nn.Module, call: Callable[[Tensor], Tensor]) -> list[Any]:
        x = torch.linspace(-1, 1, 64).reshape(2, 32).requires_grad_()
        [slope] = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return list(torch.autograd.grad(slope.square().sum(), [*model.parameters()], allow_unused=True))

    ours, eager = made("layers").eval(), made("layers").eval()
    call = framesmith.compile(ours, options={"memory_budget": 0.0})
    torch.testing.assert_close(penalty(ours, call), penalty(eager, eager))


def test_bodies_of_nested_regions_keep_to_the_budget() -> None:
    body = torch.compiler.nested_compile_region(lambda block, x: block(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([layers() for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = body(block, x)
            return x

    peaks = []
    for budget in (1.0, 0.0):
        framesmith.reset()
        torch.manual_seed(0)
        ours = Net()
        call = framesmith.compile(ours, fullgraph=True, options={"memory_budget": budget})
        torch.manual_seed(0)
        eager = Net()
        torch.testing.assert_close(trained(ours, call), trained(eager, eager))
        peaks.append(peak_bytes(lambda ours=ours, call=call: trained(ours, call)))
    assert peaks[1] < 0.75 * peaks[0]


@pytest.mark.parametrize(
    ("budget", "error"), [("0.5", TypeError), (True, TypeError), (1.5, ValueError), (-0.1, ValueError)]
)
def test_other_values_are_errors_at_the_door(budget: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="memory_budget must be a number from 0"):
        framesmith.compile(layers(), options={"memory_budget": budget})


def test_a_backend_without_ahead_of_time_autograd_does_not_take_it() -> None:
    for backend in ("eager", lambda gm, inputs: gm.forward):
        with pytest.raises(ValueError, match="unknown option 'memory_budget'"):
            framesmith.compile(layers(), backend=backend, options={"memory_budget": 0.5})
