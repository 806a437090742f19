"""`explain` of dynamic shapes: sources, bounds, and the lines that need them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import framesmith
from framesmith_dynamo import BreakNotAllowed


def shortened(x: torch.Tensor, factor: float) -> torch.Tensor:
    y = x[: x.shape[1] // 2]
    if x.shape[0] > 4:
        y = y * factor
    return y


LINE = shortened.__code__.co_firstlineno


def report_of(fn: Any, *args: Any) -> str:
    return str(framesmith.explain(fn, *args))


def test_symbols_their_bounds_and_who_relies_on_them() -> None:
    x = torch.ones(6, 8)
    framesmith.mark_dynamic(x, 0, max=100)
    framesmith.mark_dynamic(x, 1)
    text = report_of(shortened, x, 2.0)
    assert "= L['x'].size(0): now 6, at least 5, at most 100" in text
    assert "= L['x'].size(1): now 8, at least" in text
    assert "L['factor']" not in text.split("# guards on them")[0]
    assert f"(L['x'].size(0) >= 5), by File \"{__file__}\", line {LINE + 2}, in shortened: if x.shape[0] > 4:" in text
    assert "size(0) <= 100), by" not in text


def test_the_options_of_a_compiled_function_hold() -> None:
    text = report_of(framesmith.compile(shortened, dynamic=True), torch.ones(6, 8), 2.5)
    assert "= L['factor']: now 2.5" in text
    assert "dynamic shapes and symbolic scalars" not in report_of(framesmith.compile(shortened), torch.ones(6, 8), 2.5)
    with pytest.raises(BreakNotAllowed, match="print"):
        framesmith.explain(framesmith.compile(lambda x: print(x), fullgraph=True), torch.ones(2))


@pytest.mark.filterwarnings("error")
def test_what_the_backend_of_a_compiled_function_declined() -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    compiled = framesmith.compile(lambda q: attention(q, q, q), backend="cpu")
    explanation = framesmith.explain(compiled, torch.ones(1, 2, 64, 32, dtype=torch.float64))
    [refusal] = explanation.of_kind("refusal")
    assert refusal.detail.startswith("no native attention for ") and refusal.detail.endswith("float32 and on the CPU")
    assert refusal.detail in str(explanation)
