"""Warnings and errors of a failing compiler."""

import warnings

import pytest
import torch

import framesmith
from framesmith.reports.failures import Failures, FramesmithError, FramesmithWarning
from framesmith.reports.stats import clear, stats


def test_the_same_failure_warns_once() -> None:
    clear()
    failures = Failures(strict=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failures.report("f", KeyError("x"))
        failures.report("g", KeyError("x"))
        failures.report("g", KeyError("y"))
    assert [w.category for w in caught] == [FramesmithWarning] * 2
    assert "failed to compile f: KeyError: 'x'; it runs eagerly" in str(caught[0].message)
    assert stats()["frames_failed"] == 3


def test_strict_raises_with_the_cause() -> None:
    cause = ValueError("why")
    with pytest.raises(FramesmithError, match="failed to compile f: ValueError: why") as caught:
        Failures(strict=True).report("f", cause)
    assert caught.value.__cause__ is cause
    with pytest.raises(FramesmithError) as again:
        Failures(strict=True).report("g", caught.value)
    assert again.value is caught.value


def raises_in_traces_alone(x: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():
        raise RuntimeError("not where it is compiled")
    framesmith.reset()
    return x + 1


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"strict": True}], ids=str)
def test_an_exception_that_was_expected_is_missed_after_a_reset(options: dict[str, bool]) -> None:
    compiled = framesmith.compile(raises_in_traces_alone, **options)
    with pytest.raises(FramesmithError, match="NotRaised: tracing found an exception"):
        compiled(torch.ones(2))
