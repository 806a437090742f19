"""Logarithms of probabilities of which gradients are computed, decomposed in the graphs of training steps."""

from __future__ import annotations

import pytest
import torch
from graphs.tracing import trace
from torch import Tensor, fx

from framesmith_backends.rewrite.log_probabilities import decompose_log_softmax

aten = torch.ops.aten


def step(dim: int, shown: bool = False) -> object:
    def function(scores: Tensor, tangent: Tensor) -> tuple[Tensor, ...]:
        found = torch.log_softmax(scores, dim)
        gradient = aten._log_softmax_backward_data(tangent, found, dim, scores.dtype)
        return (found, gradient) if shown else (found[1:].sum(), gradient)

    return function


def inputs(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    scores = torch.randn(5, 7, 6).to(dtype)
    scores[0, 0, 0] = -torch.inf
    return [scores, torch.randn(5, 7, 6).to(dtype)]


@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_results_are_those_of_the_whole(dtype: torch.dtype, dim: int) -> None:
    given, function = inputs(dtype), step(dim)
    graph = trace(function, given)
    made = decompose_log_softmax(graph.graph)
    assert made is not None and graph.graph.find_nodes(op="call_function", target=aten._log_softmax.default)
    assert not made.find_nodes(op="call_function", target=aten._log_softmax.default)
    for found, wanted in zip(fx.GraphModule(graph, made)(*given), function(*given), strict=True):
        assert found.dtype == wanted.dtype and found.stride() == wanted.stride()
        close = 1e-2 if dtype.itemsize == 2 else None  # ATen's kernel of the CPU rounds the logarithm of the sum, too
        torch.testing.assert_close(found, wanted, rtol=close, atol=close)


def test_results_that_are_shown_stay_whole() -> None:
    given = inputs(torch.float32)
    graph = trace(step(-1, shown=True), given)
    assert decompose_log_softmax(graph.graph) is None
    assert graph.graph.find_nodes(op="call_function", target=aten._log_softmax.default)


def test_without_a_gradient_they_stay_whole() -> None:
    given = inputs(torch.float32)[:1]
    assert decompose_log_softmax(trace(lambda x: torch.log_softmax(x, -1).sum(), given).graph) is None


def test_dimensions_without_elements_stay_whole() -> None:
    given = [torch.randn(3, 0), torch.randn(3, 0)]
    assert decompose_log_softmax(trace(step(-1), given).graph) is None
