"""Running statistics of batch norms: updated as in eager mode, also around calls that fail, without a call for each."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith

pytestmark = pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")


class Classifier(nn.Module):
    """Three norms, and a loss that fails for targets that are no class."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.Tanh()
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.images(x).mean((2, 3))), target)


Batch = tuple[torch.Tensor, torch.Tensor]


def batch(size: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, 9, 9, generator=generator), torch.arange(size) % 5


def trained(module: nn.Module, run: Callable[..., torch.Tensor], batches: list[Batch]) -> list[torch.Tensor]:
    """Gradients of all batches, and the buffers after each of them."""
    found = []
    for x, target in batches:
        x = x.clone().requires_grad_()
        try:
            run(x, target).backward()
        except IndexError:
            pass
        else:
            found += [x.grad, *(p.grad for p in module.parameters())]
        module.zero_grad()
        found += [buffer.clone() for buffer in module.buffers()]
    return found


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dynamic", [False, True])
def test_steps_with_failures_between(dynamic: bool) -> None:
    torch.manual_seed(0)
    module = Classifier().double()
    reference = copy.deepcopy(module)
    batches = [batch(size, size) for size in (4, 4, 7, 5)]
    batches = [(x.double(), target) for x, target in batches]
    batches.insert(2, (batches[1][0], batches[1][1] + 77))
    found = trained(module, framesmith.compile(module, dynamic=dynamic), batches)
    torch.testing.assert_close(found, trained(reference, reference, batches))


def test_penalties_on_gradients_after_other_calls() -> None:
    torch.manual_seed(0)
    module = Classifier().double()
    reference = copy.deepcopy(module)
    found: list[list[torch.Tensor]] = []
    for each, run in ((reference, reference), (module, framesmith.compile(module))):
        x, target = batch(4, 0)
        x = x.double().requires_grad_()
        loss = run(x, target)
        with torch.no_grad():
            run(x * 3 + 1, target)  # other statistics
        [grad] = torch.autograd.grad(loss, x, create_graph=True)
        with torch.no_grad():
            run(x * 5 - 1, target)
        grad.pow(2).sum().backward()
        found.append([grad, x.grad, *(p.grad for p in each.parameters()), *each.buffers()])
    torch.testing.assert_close(*found)


def test_no_operator_is_called_for_them() -> None:
    torch.manual_seed(0)
    module = Classifier()
    run = framesmith.compile(module)
    x, target = batch(4, 0)
    for _ in range(2):
        run(x, target)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(x, target)
    matmuls = "aten::addmm", "aten::mm"  # which are called where torch's library does not show its own
    called = {e.name for e in profile.events() if e.cpu_parent is None or e.cpu_parent.name not in matmuls}
    assert "aten::convolution" in called and not called & {"aten::copy_", "aten::detach"}
