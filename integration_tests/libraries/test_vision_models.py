"""torchvision's classification models as they are served, under `inference_mode` and `no_grad`, compiled and eager.

A third of the models, each in one of the modes, in turn; in long runs, `FRAMESMITH_LONG=1`, all in both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

import framesmith
from integration_tests.harness.sweeps import a_part, in_turn
from integration_tests.libraries.vision import MODELS, build

MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
}
CASES = in_turn(a_part(sorted(MODELS), 3), [*MODES])


@pytest.fixture(autouse=True)
def fresh() -> None:
    framesmith.reset()


def test_there_are_enough_models() -> None:
    assert len(MODELS) >= 20


def assert_as_good(actual: torch.Tensor, expected: torch.Tensor, model: torch.nn.Module, images: torch.Tensor) -> None:
    """Close to eager's result, or, where eager's own error is as large, at most 1.5 times as far from float64's."""
    if torch.allclose(actual, expected, rtol=1e-4, atol=1e-4):
        return
    exact = copy.deepcopy(model).double()(images.double())
    error, own = (actual - exact).abs().max(), (expected - exact).abs().max()
    assert error <= 1.5 * own, f"{error:.2e} from a float64 run, eager {own:.2e}"


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_equals_eager(name: str, mode: str) -> None:
    model, images = build(name)
    given = images.clone()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    compiled = framesmith.compile(model)
    with MODES[mode]():
        expected = model(images)
        assert expected.abs().max() > 1e-2, "outputs too small to compare"
        for _ in range(2):
            actual = compiled(images)
            assert actual.is_inference() == expected.is_inference() and not actual.requires_grad
            assert_as_good(actual, expected, model, images)
    assert torch.equal(images, given)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    counters = framesmith.stats()
    assert counters["frames_failed"] == 0 and counters["graphs"] > 0, counters


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_equals_eager_from_mode_to_mode(name: str) -> None:
    model, images = build(name)
    compiled = framesmith.compile(model)
    for mode in ("no_grad", "inference_mode", "no_grad", "inference_mode"):
        with MODES[mode]():
            torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-4)
