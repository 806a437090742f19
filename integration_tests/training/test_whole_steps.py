"""Training steps with `backward()` inside: they compile no more frames than their parts alone, and compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import framesmith
from integration_tests.training.step_cases import BATCH, CASES, new_step

STEPS = 4


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


def batch(name: str) -> torch.Tensor:
    rows, columns = BATCH
    x = torch.linspace(-1, 1, rows * columns).reshape(BATCH)
    return x.requires_grad_(name == "gradient penalty")


def run(name: str, how: str, compile: Callable[..., Any]) -> tuple[list[Any], list[torch.Tensor], dict[str, int]]:
    framesmith.reset()
    step, case = new_step(name, how, compile)
    x = batch(name)
    results = [step(x) for _ in range(STEPS)]
    return results, [value.detach().clone() for value in case.state()], framesmith.stats()


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", CASES)
def test_no_more_frames_than_its_parts(name: str) -> None:
    expected = run(name, "whole", lambda function: function)
    separate = run(name, "separate", framesmith.compile)
    whole = run(name, "whole", framesmith.compile)
    near = {"rtol": 2e-2, "atol": 2e-3} if name == "autocast" else {"rtol": 1e-4, "atol": 1e-5}
    for found in (separate, whole):
        torch.testing.assert_close(found[:2], expected[:2], **near)
    counts, of_parts = whole[2], separate[2]
    assert counts["frames_failed"] == 0
    assert counts["frames_compiled"] <= of_parts["frames_compiled"], (counts, of_parts)
    assert counts["recompilations"] <= of_parts["recompilations"], (counts, of_parts)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["AdamW", "hooks", "checkpoint", "GAN"])
def test_the_steady_state_compiles_nothing(name: str) -> None:
    step, _ = new_step(name, "whole", framesmith.compile)
    x = batch(name)
    for _ in range(STEPS):
        step(x)
    before = framesmith.stats()
    for _ in range(STEPS):
        step(x)
    after = framesmith.stats()
    assert {key: after[key] for key in after if key != "frames_run_once"} == {
        key: before[key] for key in before if key != "frames_run_once"
    }


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["AdamW", "SGD with momentum", "scheduler", "GAN"])
def test_an_optimizers_step_is_one_graph_also_when_torchs_compiler_was_used(name: str) -> None:
    """It wraps and marks torch's optimizers when it is first used, and they ask it for breaks."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert run(name, "separate", framesmith.compile)[2]["breaks"] == 0
