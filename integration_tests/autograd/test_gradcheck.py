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


class Scaled(torch.autograd.Function):
    """A Function whose backward pass is a formula of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w.exp()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return grad * w.exp(), grad * x * w.exp()


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


def embedded(x: Any, w: Any, b: Any) -> Any:
    return F.embedding(torch.tensor([1, 0, 1]), x) * b


def put(x: Any, w: Any, b: Any) -> Any:
    y = x.sin()
    y[torch.tensor([0, 1]), torch.tensor([2, 0])] = b[:2]
    y[:, 1].add_(w[:, 0].exp())
    return y.masked_fill(w > 1, 0.5) * w


def complex_pairs(x: Any, w: Any, b: Any) -> Any:
    z = torch.complex(x, w)
    return torch.view_as_real(z * z.conj().exp()).sum(-1), z.abs()


def images(x: Any, w: Any, b: Any) -> Any:
    y = F.conv2d(x.reshape(1, 1, 2, 3), w.reshape(1, 1, 2, 3)[..., :2], padding=1)
    return F.max_pool2d(F.instance_norm(y.tanh()), 2)


def transposed(x: Any, w: Any, b: Any) -> Any:
    return F.conv_transpose2d(x.reshape(1, 2, 1, 3), w.reshape(2, 1, 1, 3), b[:1], stride=2)


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
    lambda x, w, b: Scaled.apply(x, w) * b,  # type: ignore[no-untyped-call]
    lambda x, w, b: (x + 3).cumprod(1) + w.logcumsumexp(0),
    lambda x, w, b: x.amax(1) * w.min(0).values.sum() + b.norm(3),
    lambda x, w, b: x.sort(1).values * w.topk(2, 1).values.sum(),
    lambda x, w, b: torch.scatter(x, 1, torch.tensor([[1], [0]]), w[:, :1]).sinh() * b,
    lambda x, w, b: torch.linalg.inv(x @ w.t() + 4 * torch.eye(2, dtype=x.dtype)).logdet().exp(),
    lambda x, w, b: torch.linalg.cholesky(x @ x.t() + torch.eye(2, dtype=x.dtype)) @ w,
    lambda x, w, b: torch.fft.rfft(x * w).abs(),
    lambda x, w, b: torch.cdist(x, w + 2).prod() + torch.baddbmm(b, x[None], w.t()[None] @ w[None]),
    lambda x, w, b: F.prelu(x, b[:1].exp()) * F.hardtanh(w) + F.leaky_relu(x * w, 0.2),
    lambda x, w, b: F.rms_norm(x, (3,), b) * torch.atan2(x, w) + torch.special.erfinv(w.tanh() * 0.5),
    lambda x, w, b: F.huber_loss(x, w) + F.poisson_nll_loss(x, w.exp()) + F.cosine_embedding_loss(x, w, b[:2].sign()),
    lambda x, w, b: F.nll_loss(F.log_softmax(x * b, 1), torch.tensor([1, 2]), weight=torch.arange(1, 4).to(x)),
    lambda x, w, b: torch.bmm(x[None], w.t()[None]).unfold(1, 2, 1).roll(1, 0).flip(1) * b[:2],
    lambda x, w, b: F.pad(x, (1, 1), mode="circular").as_strided((2, 3), (4, 1)).masked_fill(w > 1, 2.0) * w,
    lstm_cell, attention, loop, broken, changed, viewed, embedded, put, complex_pairs, images, transposed,
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
