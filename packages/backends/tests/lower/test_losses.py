"""Losses by each of their arguments, given or left out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tracing import trace

from framesmith_backends import CpuBackend


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [False, True])
def test_cross_entropy_with_logits(reduction: str, weighted: bool, classes: bool) -> None:
    """Arguments at the end that are their defaults are not in the graph: what is before them keeps its place."""
    torch.manual_seed(0)
    inputs = [torch.randn(6, 5), torch.rand(6, 5), torch.rand(5), torch.rand(5) * 8]

    def function(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(
            x, y, weight if weighted else None, reduction=reduction, pos_weight=positive if classes else None
        )

    compiled = CpuBackend().compile(trace(function, inputs), inputs)
    (found,) = compiled([*inputs])
    torch.testing.assert_close(found, function(*inputs))
