"""Values that only kernels see are contiguous where their last dimensions are reduced, for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from stand_ins.gpu_schedule import plan_for_gpus, scheduled_for_gpus

from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.fusion.definitions import needed, use_row_layouts
from framesmith_backends.schedule.steps import Allocate
from framesmith_backends.target import CPU

Tensor = torch.Tensor
X, ROWS, W = torch.randn(2, 24, 10), torch.randn(2, 10, 24), torch.randn(24, 24)


def layouts(function: Callable[..., Any], *inputs: Tensor) -> list[tuple[object, ...]]:
    """The strides of what is allocated; what the launch list computes is compared with eager."""
    gm = trace(function, inputs)
    found, wanted = scheduled_for_gpus(gm)([*inputs]), function(*inputs)
    for mine, theirs in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    return [step.layout.strides for step in plan_for_gpus(gm).steps if isinstance(step, Allocate)]


def permuted(x: Tensor, rows: Tensor) -> Tensor:
    return (x * 2).permute(0, 2, 1) + rows


def normed_twice(x: Tensor, rows: Tensor, w: Tensor) -> Tensor:
    first = permuted(x, rows)
    second = F.layer_norm(first, (24,)).view(20, 24) @ w
    return F.layer_norm(first + second.view(2, 10, 24), (24,)).view(20, 24) @ w


def test_residuals_lie_in_rows() -> None:
    assert all(steps == tuple(sorted(steps, reverse=True)) for steps in layouts(normed_twice, X, ROWS, W))


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        (lambda x, rows, w: permuted(x, rows).softmax(-1), False),
        (lambda x, rows, w: permuted(x, rows).sum((1, 2)), False),
        (lambda x, rows, w: (first := permuted(x, rows), F.layer_norm(first, (24,))), True),
        (lambda x, rows, w: (first := permuted(x, rows)).softmax(-1) + (first @ w), True),
        (lambda x, rows, w: (first := permuted(x, rows)).sum(1) + first.amax(2).sum(), True),
        (lambda x, rows, w: permuted(x, rows).sum((0, 2)), True),
        (lambda x, rows, w: permuted(x, rows).sum(), True),
        (lambda x, rows, w: permuted(x, rows).exp(), True),
    ],
)
def test_tensors_that_others_read_in_columns_stay(function: Callable[..., Any], stays: bool) -> None:
    def wrapped(x: Tensor, rows: Tensor, w: Tensor) -> Any:
        return function(x, rows, w)

    layouts(wrapped, X, ROWS, W)
    program = needed(lower_graph(trace(wrapped, [X, ROWS, W]), CPU).program)
    changed = {n for n, d in use_row_layouts(program).defs.items() if d.layout != program.defs[n].layout}
    permutations = {n for n, d in program.defs.items() if d.layout.strides == (240, 1, 10)}
    assert permutations and permutations.isdisjoint(changed) == stays
