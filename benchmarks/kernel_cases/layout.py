"""Windows, padding, permutations and other movement of elements."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.kernel_cases.case import Case, Inputs, Tensor, group, normal

NCHW = (8, 32, 64, 64)
MATRIX = (1024, 1024)
HEADS = (4, 8, 256, 64)


def max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, padding=1)


def avg_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2)


def pooled_mean(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 1)


def bilinear(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def nearest(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="nearest")


def grid_sample(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, align_corners=False)


def pixels_and_grid(dtype: torch.dtype) -> Inputs:
    return torch.randn(NCHW).to(dtype), (torch.rand(8, 64, 64, 2) * 2 - 1).to(dtype)


def cat(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.relu(), y * 2], 1)


def stack(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x + y, x - y], -1)


def split(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return left * right.sigmoid()


def pad(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1))


def reflect(x: Tensor) -> Tensor:
    return F.pad(x, (2, 2, 2, 2), mode="reflect")


def roll(x: Tensor) -> Tensor:
    return torch.roll(x, (3, 5), (0, 1)) + x


def flip(x: Tensor) -> Tensor:
    return x.flip(-1) * 2


def evens(x: Tensor) -> Tensor:
    return x[..., ::2].exp()


def evens_and_odds(x: Tensor) -> Tensor:
    return x[..., ::2] * 2 + x[..., 1::2]


def transpose_and_add(x: Tensor, y: Tensor) -> Tensor:
    return x + y.t()


def heads_together(x: Tensor) -> Tensor:
    return (x * 2).transpose(1, 2).flatten(2)


def channels_last(x: Tensor) -> Tensor:
    return x.relu().permute(0, 2, 3, 1).contiguous()


def lower_triangle(x: Tensor) -> Tensor:
    return (x * 2).tril()


def repeat_and_add(x: Tensor, y: Tensor) -> Tensor:
    return x.repeat(4, 1) + y


def shift(x: Tensor) -> Tensor:
    """Writes to a part of its own copy."""
    y = x.clone()
    y[:, 1:] += x[:, :-1]
    return y


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def turned(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    return turned(q), turned(k)


LAYOUT = (
    *group(
        "windows",
        Case("max_pool", max_pool, normal(NCHW)),
        Case("max_pool_backward", max_pool, normal(NCHW), backward=True),
        Case("avg_pool", avg_pool, normal(NCHW)),
        Case("avg_pool_backward", avg_pool, normal(NCHW), backward=True),
        Case("pooled_mean", pooled_mean, normal(NCHW)),
        Case("bilinear", bilinear, normal((8, 16, 64, 64))),
        Case("bilinear_backward", bilinear, normal((8, 16, 64, 64)), backward=True),
        Case("nearest", nearest, normal((8, 16, 64, 64))),
        Case("grid_sample", grid_sample, pixels_and_grid),
    ),
    *group(
        "layout",
        Case("cat", cat, normal(MATRIX, MATRIX)),
        Case("stack", stack, normal(MATRIX, MATRIX)),
        Case("split", split, normal((1024, 2048))),
        Case("split_backward", split, normal((1024, 2048)), backward=True),
        Case("pad", pad, normal(NCHW)),
        Case("pad_reflect", reflect, normal(NCHW)),
        Case("roll", roll, normal(MATRIX)),
        Case("flip", flip, normal(MATRIX)),
        Case("evens", evens, normal((1024, 2048))),
        Case("evens_and_odds", evens_and_odds, normal((1024, 2048))),
        Case("transpose_and_add", transpose_and_add, normal(MATRIX, MATRIX)),
        Case("heads_together", heads_together, normal(HEADS)),
        Case("channels_last", channels_last, normal(NCHW)),
        Case("lower_triangle", lower_triangle, normal(MATRIX)),
        Case("repeat_and_add", repeat_and_add, normal((256, 1024), MATRIX)),
        Case("shift", shift, normal(MATRIX)),
        Case("rotary", rotary, normal(HEADS, HEADS, (256, 64), (256, 64))),
    ),
)
