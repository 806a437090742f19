"""Functions that reduce rows and columns of the same points: backward passes of norms and their like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Tensor = torch.Tensor
aten = torch.ops.aten


def layer_norm(dy: Tensor, x: Tensor, w: Tensor, b: Tensor | None = None, needs: str = "xwb") -> list[Tensor]:
    shape = [x.shape[-1]]
    _, mean, rstd = aten.native_layer_norm(x, shape, w, b, 1e-5)
    mask = ["x" in needs, "w" in needs, "b" in needs and b is not None]
    return [t for t in aten.native_layer_norm_backward(dy, x, shape, mean, rstd, w, b, mask) if t is not None]


def given_statistics(dy: Tensor, x: Tensor, w: Tensor, b: Tensor, mean: Tensor, rstd: Tensor) -> list[Tensor]:
    return list(aten.native_layer_norm_backward(dy, x, [x.shape[-1]], mean, rstd, w, b, [True, True, True]))


def rms_norm(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    r = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    inner = dy * w
    along = (inner * x).mean(-1, keepdim=True)
    return inner * r - x * (r * r * r * along), (dy * (x * r)).sum(0)


def bias_gelu(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    dx = aten.gelu_backward(dy, x)
    return dx, dx.sum(0)


def softmax_and_bias(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    dx = aten._softmax_backward_data(dy, x.softmax(-1), -1, x.dtype)
    return dx, dx.sum(0)


def residual(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    dx, dw, db = layer_norm(dy, x, w, b)
    dx = dx + dy
    return dx, dw, db, dx.sum(0)


def two_norms(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    first, dw, db = layer_norm(dy, x.sin(), w, b)
    return (*layer_norm(first + dy, x, w + 1, b), dw, db)


def given_on(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    """An intermediate before the rows are reduced is a result as well, and read after."""
    dy = dy + x.sigmoid() * dy.tanh()
    return [dy, *layer_norm(dy, x, w, b)]


def middle(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of each matrix of many are summed: no parts, results."""
    x = x.view(256, -1, x.shape[-1])
    return x.softmax(-1), x.exp().sum(1)


def middle_needed(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The rows go on with these."""
    x = x.view(256, -1, x.shape[-1])
    sums = x.exp().sum(1)
    return (x - sums[:, None]).softmax(-1), sums


def sums_of_sums(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Columns whose sums are of what other columns come to."""
    x = x.view(256, -1, x.shape[-1])
    sums = x.exp().sum(1)
    return x.softmax(-1), sums, (x * sums[:, None]).sum(1)


def dropped(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return layer_norm(dy * (x > 0) * 2.0, x, w, b)


def batches(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return layer_norm(dy.view(16, -1, x.shape[-1]), x.view(16, -1, x.shape[-1]), w, b)


def weight_alone(dy: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
    return layer_norm(dy, x, w)


def rows_alone(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return layer_norm(dy, x, w, b, "x")


def no_rows(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return layer_norm(dy, x, w, b, "wb")


def two_inputs(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.softmax(-1), dy.exp().sum(0)


def summed_later(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Columns whose sums the rows need."""
    return (x - x.sum(0)).softmax(-1), x.exp().sum(0)


@dataclass(frozen=True)
class Case:
    """A function, and how many column sums of how many share a kernel with rows."""

    function: Callable[..., object]
    sums: int
    bias: bool = True

    def inputs(self, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        torch.manual_seed(rows + columns)
        large = [torch.randn(rows, columns) for _ in range(2)]
        return [t.to(dtype) for t in (*large, *(torch.randn(columns) for _ in range(1 + self.bias)))]


CASES = [
    Case(layer_norm, 2), Case(rms_norm, 1, False), Case(softmax_and_bias, 1, False), Case(residual, 3),
    Case(two_norms, 4), Case(dropped, 2), Case(given_on, 2), Case(batches, 2), Case(weight_alone, 1, False),
    Case(no_rows, 2),
]  # fmt: skip
OTHERS = [Case(bias_gelu, 0, False), Case(rows_alone, 0), Case(two_inputs, 0, False)]
