"""Anomaly detection around compiled functions: the error has the user's line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

import framesmith


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


def square_root(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = torch.sqrt(y)  # the culprit
    return (z * 0).sum()


def quotient(x: torch.Tensor) -> torch.Tensor:
    y = x / x.detach()  # the culprit
    return torch.where(x > 0, y, x).exp().sum()


def norm_of_many(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.gelu(x @ torch.ones(3, 3))
    return (y.pow(2).sum(0) * 0).pow(0.5).sum()  # the culprit


PROGRAMS = [square_root, quotient, norm_of_many]


@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
@pytest.mark.parametrize("around_forward", [True, False])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_the_error_has_the_line_of_the_operation(
    function: Callable[[torch.Tensor], torch.Tensor], around_forward: bool, backend: str
) -> None:
    compiled = framesmith.compile(function, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):  # also once the backward pass is compiled
            x = torch.zeros(2, 3, requires_grad=True)
            with torch.autograd.set_detect_anomaly(around_forward):
                loss = compiled(x)
            with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values") as caught:
                loss.backward()
            assert "# the culprit" in str(caught.value) and "CompiledGraphNode" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_gradients_without_nan_are_as_ever() -> None:
    compiled = framesmith.compile(lambda x: torch.sqrt(x).exp().sum())
    found = []
    for anomaly in (False, True):
        x = torch.ones(3, requires_grad=True)
        with torch.autograd.set_detect_anomaly(anomaly):
            compiled(x).backward()
        found.append(x.grad)
    assert torch.equal(*found)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_without_the_check_nan_passes() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=False):
        framesmith.compile(square_root)(x).backward()
    assert x.grad is not None and x.grad.isnan().all()


@pytest.mark.filterwarnings(
    "ignore:Anomaly Detection", "ignore:the backward pass is not captured", "ignore:Error detected"
)
def test_within_compile_backward_the_engine_names_its_node() -> None:
    for compiled in (False, True):
        x = torch.zeros(3, requires_grad=True)
        with torch.autograd.detect_anomaly(), framesmith.compile_backward() as captured:
            loss = (framesmith.compile(square_root) if compiled else square_root)(x)
            with pytest.raises(RuntimeError, match="culprit" if compiled else "SqrtBackward0"):
                loss.backward()
        assert captured.runs == 0
