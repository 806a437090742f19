"""Row by row: softmax, normalisation, losses, attention; forward, and forward with backward."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.kernel_cases.case import SINGLE, Case, Inputs, Tensor, group, normal
from benchmarks.models.programs import gelu_layer_norm, softmax_rows

ROWS_OF = (2048, 1024)
NCHW = (16, 64, 32, 32)
HEADS = (4, 8, 128, 64)


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(mask, -torch.inf), dim=-1)


def half_masked(dtype: torch.dtype) -> Inputs:
    """Scores, and a mask of about half of them that leaves every row its first."""
    mask = torch.rand(4096, 512) < 0.5
    mask[:, 0] = False
    return torch.randn(4096, 512).to(dtype), mask


def flex_causal(q: Tensor, k: Tensor, v: Tensor) -> object:
    """Causal attention with a slope for each head, as torch's flex attention."""
    slopes = torch.exp2(-torch.arange(q.shape[1], device=q.device) / 2)

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    def sloping(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j)

    mask = create_block_mask(seen, None, None, q.shape[2], k.shape[2], device=str(q.device))
    return flex_attention(q, k, v, score_mod=sloping, block_mask=mask)


def log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, dim=-1)


def softmax_columns(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=0)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def added_layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + y, (x.shape[-1],), weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def normalize(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, 8, weight, bias)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True).relu()


def batch_norm_with_statistics(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return F.batch_norm(x, mean, variance, training=True)


def channels_and_statistics(dtype: torch.dtype) -> Inputs:
    return torch.randn(NCHW).to(dtype), torch.zeros(64, dtype=dtype), torch.ones(64, dtype=dtype)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target)


def smoothed_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, label_smoothing=0.1, ignore_index=7)


def scores_and_targets(dtype: torch.dtype) -> Inputs:
    return torch.randn(512, 4096).to(dtype), torch.randint(0, 4096, (512,))


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1) @ v


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits, scaled to the type's range, and the scales."""
    most = torch.finfo(torch.float8_e4m3fn).max
    scale = (x.abs().amax(-1, keepdim=True).float() / most).clamp(min=1e-12)
    return (x / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale


def dequantize_rows(x: Tensor, scale: Tensor) -> Tensor:
    return x.to(scale.dtype) * scale


def quantized_rows(dtype: torch.dtype) -> Inputs:
    x, scale = quantize_rows(torch.randn(1024, 4096))
    return x, scale.to(dtype)


ROWS = (
    *group(
        "rows",
        Case("softmax", softmax_rows, normal((4096, 512))),
        Case("softmax_long", softmax_rows, normal((64, 32768))),
        Case("softmax_short", softmax_rows, normal((65536, 16))),
        Case("softmax_columns", softmax_columns, normal(ROWS_OF)),
        Case("softmax_backward", softmax_rows, normal((4096, 512)), backward=True),
        Case("masked_softmax", masked_softmax, half_masked),
        Case("masked_softmax_backward", masked_softmax, half_masked, backward=True),
        Case("log_softmax", log_softmax, normal((4096, 512))),
        Case("log_softmax_backward", log_softmax, normal((4096, 512)), backward=True),
        Case("layer_norm", layer_norm, normal(ROWS_OF, (1024,), (1024,))),
        Case("layer_norm_backward", layer_norm, normal(ROWS_OF, (1024,), (1024,)), backward=True, scale=50),
        Case("gelu_layer_norm", gelu_layer_norm, normal(ROWS_OF)),
        Case("added_layer_norm", added_layer_norm, normal(ROWS_OF, ROWS_OF, (1024,), (1024,))),
        Case("rms_norm", rms_norm, normal(ROWS_OF, (1024,))),
        Case("rms_norm_backward", rms_norm, normal(ROWS_OF, (1024,)), backward=True, scale=50),
        Case("normalize", normalize, normal(ROWS_OF)),
        Case("normalize_backward", normalize, normal(ROWS_OF), backward=True),
    ),
    *group(
        "channel_norms",
        Case("group_norm", group_norm, normal(NCHW, (64,), (64,))),
        Case("group_norm_backward", group_norm, normal(NCHW, (64,), (64,)), backward=True, scale=100),
        Case("batch_norm", batch_norm, normal(NCHW, (64,), (64,))),
        Case("batch_norm_backward", batch_norm, normal(NCHW, (64,), (64,)), backward=True, scale=100),
        Case("batch_norm_with_statistics", batch_norm_with_statistics, channels_and_statistics, SINGLE),
    ),
    *group(
        "losses",
        Case("cross_entropy", cross_entropy, scores_and_targets),
        Case("cross_entropy_backward", cross_entropy, scores_and_targets, backward=True),
        Case("smoothed_cross_entropy", smoothed_cross_entropy, scores_and_targets),
        Case("smoothed_cross_entropy_backward", smoothed_cross_entropy, scores_and_targets, backward=True),
    ),
    *group(
        "8 bits",
        Case("quantize_rows", quantize_rows, normal((1024, 4096))),
        Case("dequantize_rows", dequantize_rows, quantized_rows),
    ),
    *group(
        "attention",
        Case("causal_attention", causal_attention, normal(HEADS, HEADS, HEADS)),
        Case("causal_attention_backward", causal_attention, normal(HEADS, HEADS, HEADS), backward=True),
    ),
)
