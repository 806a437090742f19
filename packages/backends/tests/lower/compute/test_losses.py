"""Losses by each of their arguments, given or left out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace

from framesmith_backends import CpuBackend


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [False, True])
def test_cross_entropy_with_logits(reduction: str, weighted: bool, classes: bool) -> None:
    """Arguments at the end that are their defaults are not in the graph: what is before them keeps its position."""
    torch.manual_seed(0)
    inputs = [torch.randn(6, 5), torch.rand(6, 5), torch.rand(5), torch.rand(5) * 8]

    def function(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(
            x, y, weight if weighted else None, reduction=reduction, pos_weight=positive if classes else None
        )

    compiled = CpuBackend().compile(trace(function, inputs), inputs)
    (found,) = compiled([*inputs])
    torch.testing.assert_close(found, function(*inputs))


CLASSES = {"rows": (40, 7), "one row": (1, 7), "images": (3, 5, 4, 2)}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_losses_of_classes(name: str, dtype: torch.dtype, weighted: bool, reduction: str) -> None:
    torch.manual_seed(0)
    shape = CLASSES[name]
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    target.view(-1)[::3] = 2
    inputs = [torch.randn(shape).log_softmax(1).to(dtype), target, torch.rand(shape[1]).to(dtype)]

    def function(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(x, y, weight if weighted else None, ignore_index=2, reduction=reduction)

    graph = trace(function, inputs)
    assert (not CpuBackend().explain(graph).lowering.notes) == (reduction != "none")
    (found,) = CpuBackend().compile(graph, inputs)([*inputs])
    eager, exact = function(*inputs), function(inputs[0].double(), target, inputs[2].double())
    assert found.dtype == eager.dtype and bool(found.isnan().any()) == bool(eager.isnan().any())
    rounding = torch.finfo(dtype).eps * float(exact.abs().nan_to_num(0).max())
    distance, allowed = ((one.double() - exact).abs().nan_to_num(0).max() for one in (found, eager))
    assert distance <= allowed + 4 * rounding


@pytest.mark.parametrize("wrong", [7, -1])
def test_a_target_that_is_no_class_is_an_error(wrong: int) -> None:
    inputs = [torch.randn(4, 7), torch.tensor([0, wrong, 2, 3])]
    with pytest.raises(IndexError, match="out of bounds"):
        CpuBackend().compile(trace(F.nll_loss, inputs), inputs)([*inputs])
