"""Operators and their derivatives for an unbacked number of rows: eager mode's results, for few rows and none too.

Torch's formulas of derivatives ask how many there are, and divide by it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith

OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    # Laid out as the real kernels do it.
    "pixel_shuffle": lambda a: F.pixel_shuffle(a.t().repeat(4, 1)[None, :, :, None], 2),
    "pixel_shuffle, half": lambda a: F.pixel_shuffle(a[: a.shape[0] // 2].t().repeat(4, 1)[None, :, :, None], 2),
    "pixel_unshuffle": lambda a: F.pixel_unshuffle(a.repeat(2, 2)[None, None, :, :4], 2),
    "channel_shuffle": lambda a: F.channel_shuffle(a.repeat(1, 2)[None, :, :, None].transpose(1, 2), 2),
    "flattened": lambda a: a.t().reshape(-1),
    "permuted, reshaped": lambda a: a.t()[None].permute(2, 1, 0).reshape(-1, 3),
    "unfold": lambda a: F.unfold(a.t()[None, None], (3, 1)),
    "fold": lambda a: F.fold(a.t()[None].repeat(1, 2, 1), (1, a.shape[0] + 1), (1, 2)),
    "half of it": lambda a: a[: a.shape[0] // 2].t().cumsum(0),
    "outer": lambda a: torch.outer(a[:, 0], a[:, 1]),
    "repeated": lambda a: a.t().repeat(2, 2),
    "stacked": lambda a: torch.stack([a.t(), a.t()], 2),
    "selected": lambda a: a.t()[[1, 0]],
    # Of which torch asks how many there are.
    "prod": lambda a: a.prod(),
    "prod of columns": lambda a: a.prod(0),
    "var": lambda a: a.var(),
    "std": lambda a: a.std(),
    "cumprod": lambda a: a.cumprod(0),
    "cumprod of rows": lambda a: torch.cumprod(a, dim=1),
    "cumprod, zeros": lambda a: (a * torch.tensor([1.0, 0.0, 1.0])).cumprod(1),
    "cumprod in double": lambda a: a.cumprod(0, dtype=torch.float64),
    "logcumsumexp": lambda a: a.logcumsumexp(0),
    "logsumexp": lambda a: a.logsumexp(0),
    "logsumexp of rows": lambda a: a - a.logsumexp(1, keepdim=True),
    "logsumexp of all": lambda a: a.t().logsumexp((0, 1)),
    "softmax": lambda a: a.softmax(0),
    "log_softmax of rows": lambda a: a.t().log_softmax(0),
    "norm": lambda a: torch.linalg.vector_norm(a),
    "cummax": lambda a: a.t().cummax(1)[0],
    "cummin": lambda a: a.cummin(0)[0],
    "logsigmoid": lambda a: F.logsigmoid(a),
    "svdvals": lambda a: torch.linalg.svdvals(a),
    "qr": lambda a: torch.linalg.qr(a)[1].abs(),
    "det": lambda a: torch.linalg.det(a @ a.t()),
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.t() + torch.eye(a.shape[0])),
    "slogdet": lambda a: torch.linalg.slogdet(a @ a.t() + torch.eye(a.shape[0]))[1],
    "solve": lambda a: torch.linalg.solve(a @ a.t() + torch.eye(a.shape[0]), a),
    "matrix_power": lambda a: torch.linalg.matrix_power(a @ a.t(), 3),
    "adaptive_avg_pool1d": lambda a: F.adaptive_avg_pool1d(a.t()[None], 2),
    "cumulative_trapezoid": lambda a: torch.cumulative_trapezoid(a, dim=0),
    "squeeze": lambda a: a.squeeze(),
    "squeeze of rows": lambda a: a.squeeze(0) * 2,
    "squeeze of a list": lambda a: torch.squeeze(a[:, :1], (0, 1)) * 2,
    # Divided by what may be 0.
    "var of columns": lambda a: a.var(0),
    "std of columns": lambda a: a.std(0),
    "var, corrected": lambda a: a.var(0, correction=2),
    "var, uncorrected": lambda a: a.var(0, correction=0),
    "huber_loss": lambda a: F.huber_loss(a, a * 2),
}


def seen(run: Callable[..., torch.Tensor], count: int) -> list[torch.Tensor] | str:
    """The result and the gradient of the first `count` rows; for an error its type."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    try:
        result = run(torch.arange(4) < count, x)
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error).__name__
    weights = torch.arange(result.numel()).view(result.shape) % 7 + 1
    try:
        (result.square() * weights).sum().backward()
    except RuntimeError:
        return [result.detach()]
    if x.grad is None:  # of no rows, with torch 2.11
        return [result.detach()]
    return [result.detach(), x.grad]


def of_some_rows(operator: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The program that applies an operator to the rows that a mask has."""
    return lambda mask, x: operator(x[mask])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_unbacked_lengths(name: str) -> None:
    program = of_some_rows(OPERATORS[name])
    framesmith.reset()
    run = framesmith.compile(program, dynamic=True, strict=True)
    for count in (3, 4, 2, 1, 0, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of too few rows, and of assumptions
            expected, found = seen(program, count), seen(run, count)
        if isinstance(expected, str):
            assert found == expected
            continue
        found = found[: len(expected)]  # of some, eager mode has no gradient
        assert isinstance(found, list)
        assert found[0].stride() == expected[0].stride()
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["logsigmoid", "logsumexp", "log_softmax of rows", "softmax", "norm"])
def test_nothing_is_assumed_of_how_many_rows_there_are(name: str) -> None:
    program = of_some_rows(OPERATORS[name])
    framesmith.reset()
    run = framesmith.compile(program, dynamic=True, fullgraph=True)
    for count in (3, 1, 0):
        torch.testing.assert_close(seen(run, count), seen(program, count), equal_nan=True)


def test_a_size_that_a_derivative_divides_by_may_change() -> None:
    """As C++ does it: 2 rows less a correction of 2 are no error."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.var(0, correction=2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for first in (2, 5):
            framesmith.reset()
            run = framesmith.compile(program, dynamic=True, strict=True)
            for rows in (first, 3, 2, 7):
                found: list[Any] = []
                for each in (program, run):
                    x = torch.linspace(-1, 2, rows * 3).view(rows, 3).requires_grad_()
                    result = each(x)
                    result.sum().backward()
                    found.append((result.detach(), x.grad))
                torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("unbacked", [False, True], ids=["a size", "unbacked"])
def test_what_the_program_divides_by_zero_is_its_error(unbacked: bool) -> None:
    def program(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = x[mask].shape[0] if unbacked else x.shape[0]
        return x[mask].var(0) * (2.0 / (rows - 3))

    framesmith.reset()
    run = framesmith.compile(program, dynamic=True, strict=True)
    for rows in (5, 4, 3, 6):
        x = torch.randn(rows, 2, requires_grad=True)
        mask = torch.ones(rows, dtype=torch.bool)
        if rows == 3:
            for each in (program, run):
                with pytest.raises(ZeroDivisionError):
                    each(mask, x)
        else:
            torch.testing.assert_close(run(mask, x), program(mask, x))


def test_usual_programs_report_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Neither by a warning nor in torch's log, before a condition on data is assumed."""

    def program(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return OPERATORS["cholesky"](x[mask])

    framesmith.reset()
    run = framesmith.compile(program, dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(torch.ones(4, dtype=torch.bool), torch.randn(4, 3, requires_grad=True)).sum().backward()
    assert not caplog.records
    assert framesmith.stats()["frames_failed"] == 0
