"""Functions with inputs that the tests compile, run through the interpreter, and render. Sizes are small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from case_selection.sweeps import a_part


@dataclass(frozen=True)
class Sample:
    """A function and its inputs; `interpreted` are shapes for interpreters, which take long for large ones."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32
    tolerance: float = 2e-5
    interpreted: tuple[tuple[int, ...], ...] = ()

    def inputs(self, interpreted: bool = False) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(len(self.name))
        found = []
        for shape in (self.interpreted if interpreted else ()) or self.shapes:
            value = torch.randn(shape, generator=generator)
            if self.dtype.is_floating_point:
                found.append(value.to(self.dtype))
            elif self.dtype == torch.bool:
                found.append(value > 0)
            else:
                found.append((value * 50).to(self.dtype))
        return found


def vjp(function: Callable[..., torch.Tensor], count: int) -> Callable[..., Any]:
    """The function's value and gradients, the last input being the gradient of its output."""

    def both(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, back = torch.func.vjp(function, *args[:count])
        return (out, *back(args[count]))

    return both


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1) * x


def attention_scores(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 3.0 + mask, -1)


def words(table: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows of a table, by what is computed, and sums of them."""
    indices = (x * 7).long().abs() % table.shape[0]
    rows = F.embedding(indices, table) * 2 + table[0]
    return rows, torch.softmax(rows, -1), table[indices].sum(1)


def gathers(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, columns = at % x.shape[0], at % x.shape[1]
    return (
        x.gather(0, rows) + 1, x.index_select(1, columns[0]), x[rows - x.shape[0], columns], x[1][columns],
        x.t().take(rows), (x * 3)[rows[rows % rows.shape[0]]].sum(2), torch.arange(x.shape[0])[rows],
    )  # fmt: skip


def searches(boundaries: torch.Tensor, rows: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.bucketize(x.exp(), boundaries), torch.searchsorted(rows, x, side="right") + 1,
        torch.searchsorted(rows, x, sorter=rows.argsort(-1), out_int32=True), torch.bucketize(0.5, boundaries) + x,
        boundaries[torch.bucketize(x, boundaries[1:])],
    )  # fmt: skip


def sums_at_indices(x: torch.Tensor, at: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, columns = (at * 7).long().abs() % x.shape[0], (y * 7).long().abs() % x.shape[1]
    return (
        (x + 1).index_add(0, rows, y * 2) + 1, x.index_put((rows, columns[:, 0]), at, accumulate=True),
        x.scatter_add(1, columns[: x.shape[0]], y.exp()), x.t().contiguous().index_add(1, rows, y.t()).sum(0),
        x[:, 0].index_add(0, torch.zeros_like(rows), at),
        x[:, 0].index_add(0, torch.zeros_like(rows), torch.ones_like(at)),
        x[:1].index_add(0, torch.zeros_like(rows), y), x[0, :1].index_add(0, torch.zeros_like(rows), at),
        x[:, :1].scatter_add(1, columns[: x.shape[0]] * 0, y),
    )  # fmt: skip


def replaced_at_indices(x: torch.Tensor, at: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, columns = (at * 7).long().abs() % x.shape[0], (y * 7).long().abs() % x.shape[1]
    return (
        (x + 1).index_copy(0, rows, y * 2) + 1, x.index_put((rows - x.shape[0], columns[:, 0]), at * 3),
        x.scatter(1, columns[: x.shape[0]], y.exp()), x.scatter(0, columns % x.shape[0], y.sin()),
        x.t().contiguous().index_fill(1, rows, 2.0).sum(0), torch.zeros_like(x).scatter(1, columns[:2, :1], 1.0),
        x.index_put((x > 0,), at[0]) + 1, x.scatter_add(0, columns % x.shape[0], y) * 2,
    )  # fmt: skip


def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)[0]


def double_functions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    powers = (x * y).exp().log1p() + (x.exp2() + 1).log2() - y.expm1()
    return (
        powers * x.sin()
        + y.cos() * (x.tanh() + torch.erf(y))
        + torch.sigmoid(x) * (y * y + 1).log10()
        - (x * x + 2).log()
    )


SAMPLES: tuple[Sample, ...] = (
    Sample("chain", lambda x, y: F.gelu(x * y + 1).sin() * torch.sigmoid(y), ((37,), (37,))),
    Sample(
        "special functions",
        lambda x, y: (x.lgamma(), x.tanh().erfinv(), x.i0(), torch.special.i1(x), x.logaddexp(y), x.logaddexp2(y)),
        ((37,), (37,)),
    ),
    Sample("scalar", lambda x: x * 2 + 1, ((),)),
    Sample("broadcast", lambda x, y: (x + y) * y.exp(), ((3, 1, 5), (4, 5))),
    Sample("row broadcast", lambda x, y: x * y - y, ((6, 40), (6, 1))),
    Sample("softmax", lambda x: torch.softmax(x, -1), ((9, 130),)),
    Sample("softmax columns", lambda x: torch.softmax(x, 0), ((13, 70),)),
    Sample("log softmax", lambda x: torch.log_softmax(x.tanh(), -1), ((5, 33),)),
    Sample("layer norm", lambda x, w, b: F.layer_norm(F.gelu(x), (48,), w, b), ((7, 48), (48,), (48,))),
    Sample("rms", lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, ((7, 50), (50,))),
    Sample("norm across", lambda x: F.layer_norm(F.gelu(x).flatten(2).transpose(1, 2), (24,)), ((3, 24, 5, 7),)),
    Sample("bf16 norm across", lambda x: F.layer_norm(x.transpose(1, 2), (24,)), ((3, 24, 35),), torch.bfloat16, 2e-2),
    Sample("counts", lambda x: (x[..., None] == torch.arange(8)).sum(1), ((70, 9),), torch.int64),
    Sample("rows of two loops", lambda x: (x.sum((0, 2)), x.amax((0, 2)), x.var((0, 2))), ((20, 5, 13),)),
    Sample("long rows of two loops", lambda x: (x.var((0, 2)), torch.logsumexp(x, (0, 2)), x.sin().sum((0, 2))),
           ((700, 2, 9),), tolerance=2e-4),
    Sample("group norm", lambda x: F.relu(F.group_norm(x, 2)), ((3, 4, 5, 5),)),
    Sample("group norm, channels last", lambda x: F.group_norm(x.to(memory_format=torch.channels_last).relu(), 1),
           ((2, 4, 5, 6),), tolerance=1e-4, interpreted=((2, 32, 20, 30),)),
    Sample("batch norm", batch_norm, ((4, 6, 5, 3), (6,), (6,))),
    Sample("full sum", lambda x: x.sum(), ((300, 200),), tolerance=1e-4),
    Sample("sums", lambda x: (x.sum(0), x.sum(1), x.mean(), x.var(1)), ((40, 70),)),
    Sample("long columns", lambda x: x.sum(0), ((3000, 17),), tolerance=1e-4),
    Sample("long rows", lambda x: (x * x).sum(1), ((3, 9001),), tolerance=1e-4),
    Sample("middle", lambda x: x.amax(1) + x.amin(1), ((5, 30, 7),)),
    Sample("logsumexp", lambda x: torch.logsumexp(x, -1), ((5, 30),)),
    Sample("views", lambda x: (x[:, ::2].t() + 1).reshape(-1)[3:], ((8, 50),)),
    Sample("permuted", lambda x: (x.view(4, 6, 5).permute(2, 0, 1) * 2).contiguous(), ((24, 5),)),
    Sample("cat", rotate_half, ((10, 32),)),
    Sample("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=2.0) * 3, ((9, 10),)),
    Sample("triangle", lambda x: torch.tril(x).flip(0).repeat(2, 3), ((10, 10),)),
    Sample("masked", lambda x: torch.where(x > 0, x.exp(), x.abs().log()), ((37,),)),
    Sample("attention", attention_scores, ((2, 3, 9, 8), (2, 3, 9, 8), (2, 1, 1, 9))),
    Sample("losses", lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y)), ((30, 20), (30, 20))),
    Sample("channels last", lambda x: F.relu(x.to(memory_format=torch.channels_last)) * 2, ((2, 6, 5, 7),)),
    Sample("bf16", lambda x, y: (x * 1.1 + y).sigmoid(), ((100,), (100,)), torch.bfloat16, 1e-2),
    Sample("bf16 norm", lambda x: F.layer_norm(x, (32,)), ((6, 32),), torch.bfloat16, 2e-2),
    Sample("half", lambda x, y: (x * 1.1 + y).tanh(), ((100,), (100,)), torch.float16, 2e-3),
    Sample("double", lambda x, y: (x * y).sqrt() + x / y, ((33,), (33,)), torch.float64, 1e-12),
    Sample("double functions", double_functions, ((33,), (33,)), torch.float64, 1e-12),
    Sample("integers", lambda x, y: x * y // 3 % 5 + (x > y) - x.abs(), ((33,), (33,)), torch.int64),
    Sample("gathers", gathers, ((9, 7), (5, 7)), torch.int64),
    Sample("searches", searches, ((37,), (3, 20), (3, 50))),
    Sample("words", words, ((9, 40), (5, 6))),
    Sample("sums at indices", sums_at_indices, ((9, 7), (20,), (20, 7))),
    Sample("replaced at indices", replaced_at_indices, ((9, 7), (20,), (20, 7))),
    Sample("bytes", lambda x, y: ~(x * y + 7), ((70,), (70,)), torch.uint8),
    Sample("bools", lambda x, y: (x & y).any(0) | x.all(1), ((9, 9), (9, 9)), torch.bool),
    Sample("layer norm grad", vjp(lambda x, w, b: F.layer_norm(F.gelu(x), (40,), w, b), 3),
           ((30, 40), (40,), (40,), (30, 40)), tolerance=1e-4),
    Sample("tiles", lambda x, y: (lambda v: (v, v.sum(0), (v > 0.1).all(0), F.gelu(x)))(F.gelu(x) * y.sin()),
           ((600, 530), (600, 530)), tolerance=2e-4, interpreted=((260, 130), (260, 130))),
    Sample("tile passes", lambda x: (x.sin() - x.sin().mean(0)) * x.var(0), ((530, 531),), tolerance=1e-4,
           interpreted=((260, 131),)),
    Sample("softmax grad", vjp(lambda x: torch.log_softmax(x.tanh(), -1) + torch.softmax(x, 0), 1),
           ((30, 40), (30, 40)), tolerance=1e-4),
    Sample("batch norm grad", vjp(lambda x, w, b: F.relu(batch_norm(x, w, b)), 3),
           ((3, 4, 5, 5), (4,), (4,), (3, 4, 5, 5)), tolerance=1e-4),
    Sample("silu grad", vjp(lambda x: F.silu(x) * F.softplus(x) + F.hardswish(x), 1), ((50,), (50,)), tolerance=1e-4),
    Sample("linear grad", vjp(lambda x, w, b: F.gelu(F.linear(x, w, b)), 3),
           ((20, 12), (9, 12), (9,), (20, 9)), tolerance=1e-4),
)  # fmt: skip

BY_NAME = {sample.name: sample for sample in SAMPLES}

#: Samples rendered as no others are: interpreted in short runs, too.
ALWAYS = ("norm across", "bf16 norm across", "rows of two loops", "long rows of two loops", "group norm, channels last")


def interpreted_samples() -> list[Sample]:
    """Those, and of the others a third."""
    return [*(BY_NAME[name] for name in ALWAYS), *a_part([one for one in SAMPLES if one.name not in ALWAYS], 3)]
