"""Gradients of public architectures in training, compiled: no further from a float64 run than three times eager's.

The norm of each parameter's error counts, over all seeds. Steps in which rounding could carry a ReLU's input over zero,
or make another number a window's largest, are left out: eager's own runs then differ by a thousand times their usual
error. What is left out is judged before the compiled module runs. All architectures are measured in long runs,
`FRAMESMITH_LONG=1`.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import framesmith
from integration_tests.harness.sweeps import LONG
from integration_tests.libraries import gradient_errors
from integration_tests.libraries.architectures import ARCHITECTURES
from integration_tests.libraries.decisions import Decisions, all_clear
from integration_tests.libraries.gradient_errors import Errors, measure

#: The others take a minute each, and more.
QUICK = ["vit", "unet", "dcgan", "lstm"]
TIMES = 3.0

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # said by turning oneDNN off and on


@pytest.fixture(autouse=True)
def fresh() -> None:
    framesmith.reset()


def shown() -> list[str]:
    return [name for name in ARCHITECTURES if LONG or name in QUICK]


def too_far(table: list[Errors]) -> list[str]:
    """The parameters whose compiled gradients are too far from float64's, and how far."""
    worst = {errors.parameter: errors.ratio(errors.compiled) for errors in table}
    return [f"{name}: {ratio:.1f} times eager's error" for name, ratio in worst.items() if ratio > TIMES]


def test_there_are_enough_architectures() -> None:
    assert len(ARCHITECTURES) >= 12 and set(QUICK) < set(ARCHITECTURES)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", shown())
def test_gradients_are_as_exact_as_eager(name: str) -> None:
    table = measure(name)
    counters = framesmith.stats()
    assert counters["graphs"] > 0 and counters["frames_failed"] == 0, counters
    assert all(len(errors.compiled) >= gradient_errors.SEEDS for errors in table)
    assert not too_far(table)


@pytest.mark.nightly
def test_a_small_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(module: nn.Module, *, strict: bool) -> nn.Module:
        for weight in module.parameters():
            weight.register_hook(lambda gradient: gradient * (1 + 1e-5))
        return module

    monkeypatch.setattr(gradient_errors.framesmith, "compile", lossy)
    table = measure("dcgan")
    assert len(too_far(table)) == len(table)


@pytest.mark.parametrize(
    "module", [nn.ReLU(True), nn.ReLU6(), nn.Hardswish(), nn.LeakyReLU(), nn.PReLU(), nn.MaxPool2d(2, ceil_mode=True)]
)
def test_decisions_that_rounding_could_change_are_seen(module: nn.Module) -> None:
    x = torch.tensor([[[[1e-9, -1.0, 3 + 1e-9], [3.0, 5.0, 6 + 1e-9]]]], dtype=torch.float64)
    close = torch.tensor([[[[1.0, 1.0 + 1e-9, 1.0]]]], dtype=torch.float64)
    x = close if isinstance(module, nn.MaxPool2d) else x
    with Decisions() as exact:
        module.double()(x.clone())
    with Decisions() as rounded:
        module.float()(x.float() * (1 + 1e-6))
    assert exact.margins and not all_clear(exact, rounded) and all_clear(exact, exact)
