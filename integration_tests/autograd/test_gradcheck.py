"""Numerical differentiation of compiled functions: first and second derivatives in float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import framesmith

pytestmark = pytest.mark.filterwarnings("error::framesmith_aot.errors.SecondDerivativeWarning")


def lstm_cell(x: Any, w: Any, b: Any) -> Any:
    i, f, g = (x @ w.t() + b[:2]).repeat(1, 3).chunk(3, -1)
    cell = f.sigmoid() * i.sigmoid() + g.tanh()
    return cell, cell.tanh()


def attention(x: Any, w: Any, b: Any) -> Any:
    return F.scaled_dot_product_attention(x[None], w[None], (x * w)[None])


def loop(x: Any, w: Any, b: Any) -> Any:
    for _ in range(3):
        x = (x * w).sin() + b
    return x


def broken(x: Any, w: Any, b: Any) -> Any:
    y = (x * w).exp()
    print(end="")
    return y * b, y.sum()


def changed(x: Any, w: Any, b: Any) -> Any:
    y = x * w
    y[0] = b
    y.mul_(2).add_(x)
    return y.sin()


def viewed(x: Any, w: Any, b: Any) -> Any:
    flat = x.reshape(-1)
    return flat, (flat * w.reshape(-1)).sum(), flat.view(2, 3).t().cos()


FUNCTIONS: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, w, b: x * w + b,
    lambda x, w, b: (x - w) / (b.abs() + 1),
    lambda x, w, b: (x * w).sin().exp() * b,
    lambda x, w, b: x @ w.t(),
    lambda x, w, b: F.linear(x, w, b[:2]),
    lambda x, w, b: (x @ w.t()).tanh() @ w,
    lambda x, w, b: F.gelu(x * w) + b,
    lambda x, w, b: F.silu(x) * F.softplus(w),
    lambda x, w, b: F.mish(x + w),
    lambda x, w, b: F.elu(x * 2) + F.celu(w),
    lambda x, w, b: (x + w).sigmoid().log(),
    lambda x, w, b: (x * w).softmax(-1),
    lambda x, w, b: F.log_softmax(x + b, 0) * w,
    lambda x, w, b: F.layer_norm(x, (3,), b, b),
    lambda x, w, b: F.batch_norm(x, None, None, b, b, training=True),
    lambda x, w, b: F.group_norm(x[None].repeat(2, 1, 1), 2, b[:2], b[:2]),
    lambda x, w, b: F.normalize(x + 3, dim=-1) * w,
    lambda x, w, b: (x * w).logsumexp(-1),
    lambda x, w, b: (x.abs() + 1).pow(w.sigmoid()),
    lambda x, w, b: x.var(0) + w.std(0) * b,
    lambda x, w, b: (x * w).sum(0).cumsum(0),
    lambda x, w, b: (x + 3).prod(-1) * w.sum(-1),
    lambda x, w, b: torch.where(w > 0, x.sin(), x.cos()) * b,
    lambda x, w, b: x.clamp(-0.9, 0.9) * w,
    lambda x, w, b: torch.cat([x, w]).reshape(3, 4).t() * 2,
    lambda x, w, b: torch.stack([x, w], 1).flatten(0, 1) * b,
    lambda x, w, b: x[:, [0, 2, 2]] * w,
    lambda x, w, b: x.gather(1, torch.tensor([[0, 1], [2, 2]])) * 3,
    lambda x, w, b: torch.zeros(3, 3, dtype=torch.float64).index_add(0, torch.tensor([0, 2]), x * w),
    lambda x, w, b: F.mse_loss(x, w) + F.smooth_l1_loss(x, b.expand(2, 3)),
    lambda x, w, b: F.cross_entropy(x * w, torch.tensor([0, 2])),
    lambda x, w, b: F.binary_cross_entropy_with_logits(x, w.sigmoid()),
    lambda x, w, b: F.kl_div(x.log_softmax(-1), w.softmax(-1), reduction="batchmean"),
    lambda x, w, b: F.conv1d(x[None], w[:, None].repeat(1, 2, 1), padding=1),
    lambda x, w, b: F.avg_pool1d(x[None], 2) * 2,
    lambda x, w, b: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    lambda x, w, b: F.cosine_similarity(x, w) * b[0],
    lambda x, w, b: torch.einsum("ij,kj->ik", x, w).diagonal(),
    lambda x, w, b: torch.linalg.solve(x @ x.t() + 3 * torch.eye(2, dtype=x.dtype), w),
    lambda x, w, b: torch.outer(b, b).triu() @ x.t(),
    lstm_cell, attention, loop, broken, changed, viewed,
]  # fmt: skip


@pytest.mark.sampled(13)
@pytest.mark.parametrize("at", range(len(FUNCTIONS)))
def test_derivatives_are_those_of_numbers(at: int) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((2, 3), (2, 3), (3,))]
    compiled = framesmith.compile(FUNCTIONS[at], strict=True)
    assert torch.autograd.gradcheck(compiled, inputs)
    try:
        assert torch.autograd.gradgradcheck(compiled, inputs)
    except RuntimeError as error:  # attention's second derivative, which torch 2.15 lacks
        with pytest.raises(type(error), match=re.escape(str(error))):
            torch.autograd.gradgradcheck(FUNCTIONS[at], inputs)


def test_a_module_in_float64() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    compiled = framesmith.compile(module, strict=True)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def of(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))
        return found

    names = [name for name, _ in module.named_parameters()]
    assert torch.autograd.gradcheck(compiled, (x,)) and torch.autograd.gradgradcheck(compiled, (x,))
    assert torch.autograd.gradcheck(framesmith.compile(of), (x, *module.parameters()))
