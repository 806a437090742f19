"""Biases on CUDA are added by the kernels that go on with a matmul; the rest stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_backends.rewrite.unfused_bias import why_not, without_bias

Tensor = torch.Tensor
addmm, mm = torch.ops.aten.addmm.default, torch.ops.aten.mm.default


def traced(function: Callable[..., object], dtype: torch.dtype = torch.float32, device: str = "cuda") -> fx.GraphModule:
    with new_fake_mode():
        shapes = ((6, 8), (12, 8), (12,))
        return make_fx(function)(*(torch.empty(shape, dtype=dtype, device=device) for shape in shapes))


def called(gm: fx.GraphModule, target: object) -> int:
    return len(gm.graph.find_nodes(op="call_function", target=target))


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, w.t())


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.gelu(linear(x, w, b)),
        lambda x, w, b: linear(x, w, b).view(2, 3, 12).softmax(-1),
        lambda x, w, b: (linear(x, w, b).view(2, 3, 12).transpose(1, 2) * 2).sum(0),
        lambda x, w, b: [y := linear(x, w, b), y.sin()],
    ],
)
def test_a_kernel_adds_it(function: Callable[..., object]) -> None:
    gm = traced(function)
    changed = without_bias(gm)
    assert called(gm, addmm) == 1 and called(changed, addmm) == 0 and called(changed, mm) == 1
    inputs = torch.randn(6, 8), torch.randn(12, 8), torch.randn(12)
    for found, wanted in zip(changed(*inputs), gm(*inputs), strict=True):
        torch.testing.assert_close(found, wanted)
    for node in changed.graph.nodes:
        assert node.op == "output" or "val" in node.meta


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (linear, "no kernel"),
        (lambda x, w, b: linear(x, w, b).t(), "no kernel"),
        (lambda x, w, b: linear(x, w, b) @ w, "no kernel"),
        (lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2).sin(), "scaled"),
        (lambda x, w, b: torch.addmm(b.unsqueeze(0), x, w.t()).sin(), "no bias of one row"),
    ],
)  # fmt: skip
def test_it_stays(function: Callable[..., object], reason: str) -> None:
    gm = traced(function)
    reasons = [why_not(node) for node in gm.graph.find_nodes(op="call_function", target=addmm)]
    assert any(why is not None and reason in why for why in reasons)
    assert called(without_bias(gm), addmm) == sum(why is not None for why in reasons)


def test_other_types_stay() -> None:
    gm = traced(lambda x, w, b: F.gelu(linear(x, w, b)), torch.bfloat16)
    assert without_bias(gm) is gm
