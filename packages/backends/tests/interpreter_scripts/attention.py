"""Attention in one kernel beside eager's, on CPU tensors."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from case_selection.sweeps import a_part
from graphs.tracing import trace
from interpreter_scripts.attempts import failures_of

from framesmith_backends.cuda import launcher, stages_of
from framesmith_backends.ir.fused.attention import AttentionTile, FusedAttention
from framesmith_backends.ir.verify import verify_item
from framesmith_backends.schedule.matmuls import attention

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Scores = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Sizes, how scores are changed, of tensors captured besides, and how many kernels of attention there are."""

    change: Scores
    captured: tuple[tuple[int, ...], ...] = ()
    heads: int = 2
    shared: int = 2
    queries: int = 40
    keys: int = 40
    depth: int = 16
    length: int = 16
    safe: bool = True
    transposed: bool = False
    count: int = 1
    types: tuple[torch.dtype, ...] = (BF16, F16, F32)
    #: Whether queries, keys and values are computed in the same graph.
    computed: bool = False
    #: Another result, computed of the probabilities.
    also: Callable[[torch.Tensor], torch.Tensor] | None = None
    #: Whether the logarithm of each row's sum and its largest score are results too.
    sums: bool = False


def hidden(scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, scores, torch.full((), -math.inf, device=scores.device))


def in_blocks(i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return (i // 16 == j // 16) | (j < 3)


#: Name -> the score modification, of scores and of the indices of heads, queries and keys, and the captured shapes.
CASES: dict[str, Case] = {
    "plain": Case(lambda s, h, i, j: s),
    "softmax that is not safe": Case(lambda s, h, i, j: s, safe=False),
    "causal": Case(lambda s, h, i, j: hidden(s, i >= j)),
    "a window": Case(lambda s, h, i, j: hidden(s, (i - j).abs() < 9), queries=60, keys=60),
    "fully_masked rows": Case(lambda s, h, i, j: hidden(s, (i % 3 != 0) & (i >= j))),
    "fully_masked rows of a softmax that is not safe": Case(lambda s, h, i, j: hidden(s, i % 3 != 0), safe=False),
    "nothing is seen": Case(lambda s, h, i, j: hidden(s, i < 0)),
    "seen at a distance": Case(lambda s, h, i, j: hidden(s, in_blocks(i, j)), queries=40, keys=100),
    "slopes": Case(lambda s, h, i, j, x: s - x[h] * (i - j), ((2,),)),
    "slopes, causal": Case(lambda s, h, i, j, x: hidden(s - x[h] * (i - j), i >= j), ((2,),)),
    "a table": Case(lambda s, h, i, j, x: s + x, ((2, 2, 40, 40),)),
    "a table read backwards": Case(lambda s, h, i, j, x: s + x.transpose(2, 3), ((1, 2, 40, 40),)),
    "a mask that is a table": Case(lambda s, h, i, j, x: hidden(s, x > 0.5), ((40, 40),)),
    "documents": Case(lambda s, h, i, j, x: hidden(s, (x[i] > 0) == (x[j] > 0)), ((40,),)),
    "capped": Case(lambda s, h, i, j: 5 * torch.tanh(s / 5)),
    "hidden by the scores": Case(lambda s, h, i, j: hidden(s, s > 0)),
    "heads share keys": Case(lambda s, h, i, j, x: hidden(s - x[h], i >= j), ((2,),), shared=1),
    "one query": Case(lambda s, h, i, j: s, queries=1, keys=90),
    "one key": Case(lambda s, h, i, j: s + i, keys=1, count=0),
    "other lengths": Case(lambda s, h, i, j: hidden(s, i + 20 >= j), queries=37, keys=57, depth=24, length=40),
    "80": Case(lambda s, h, i, j: hidden(s, i >= j), depth=80, length=80),
    "96 and 8": Case(lambda s, h, i, j: s, depth=96, length=8),
    "256": Case(lambda s, h, i, j: s, depth=256, length=256, heads=1, shared=1, types=(BF16,)),
    "whole tiles": Case(lambda s, h, i, j: s, queries=64, keys=64, depth=32, length=32),
    "transposed": Case(lambda s, h, i, j: hidden(s, i >= j), transposed=True),
    "computed before": Case(lambda s, h, i, j, x: s - x.exp()[h] * (i - j), ((2,),), computed=True),
    "computed before, transposed": Case(lambda s, h, i, j: s, computed=True, transposed=True, shared=1),
    "sums of rows": Case(lambda s, h, i, j: hidden(s, (i % 3 != 0) & (i >= j)), sums=True),
    "sums of rows, infinite ones too": Case(lambda s, h, i, j: torch.where(i == j, math.inf, s), sums=True),
    # Probabilities that others read as well, or that are something else, stay in memory.
    "weights are read": Case(lambda s, h, i, j: s, count=0, also=lambda w: w.float().mean(1)),
    "heads of 300": Case(lambda s, h, i, j: s, depth=300, length=8, heads=1, shared=1, count=0),
}


def function_of(case: Case) -> Callable[..., Any]:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *captured: torch.Tensor) -> Any:
        if case.computed:
            q, k, v = q * 1.5, torch.cat([k[..., 8:], -k[..., :8]], -1), v.sin()
        batch, heads, queries, depth = q.shape
        shared, keys = k.shape[1:3]
        kind = torch.float64 if q.dtype == torch.float64 else torch.float32
        rows = q.reshape(batch, shared, heads // shared * queries, depth).to(kind)
        scores = (rows @ k.to(kind).transpose(-2, -1)).view(batch, heads, queries, keys) * depth**-0.5
        h = torch.arange(heads).view(1, heads, 1, 1)
        i, j = torch.arange(queries).view(1, 1, queries, 1), torch.arange(keys).view(1, 1, 1, keys)
        scores = case.change(scores, h, i, j, *captured)
        weights = (torch._safe_softmax if case.safe else torch.softmax)(scores, -1).to(q.dtype)
        means = weights.view(batch, shared, heads // shared * queries, keys) @ v
        means = means.view(batch, heads, queries, v.shape[3])
        if case.sums:
            return means, scores.logsumexp(-1), scores.amax(-1)
        return means if case.also is None else (means, case.also(weights))

    return run


def inputs_of(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    case, generator = CASES[name], torch.Generator().manual_seed(len(name))
    sizes = (
        (case.heads, case.queries, case.depth),
        (case.shared, case.keys, case.depth),
        (case.shared, case.keys, case.length),
    )
    given = [torch.randn(2, *size, generator=generator).to(dtype) for size in sizes]
    if case.transposed:
        given = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    return [*given, *(torch.randn(size, generator=generator) for size in case.captured)]


def check(name: str, dtype: torch.dtype, tile: AttentionTile | None = None) -> None:
    """Results as near to those in float64 as eager's."""
    case, inputs, function = CASES[name], inputs_of(name, dtype), function_of(CASES[name])
    made = attention.tile_for
    try:
        if tile is not None:
            attention.tile_for = lambda *sizes: tile
        stages = stages_of(trace(function, inputs))
    finally:
        attention.tile_for = made
    assert len(stages.plan.items_of(FusedAttention)) == case.count, stages.plan.text()
    for one in stages.plan.items_of(FusedAttention):
        verify_item(one)
    found = launcher(stages)(list(inputs))
    exact_inputs = [x.double() for x in inputs]
    wanted, exact = (tuple_of(function(*given)) for given in (inputs, exact_inputs))
    for one, other, true in zip(found, wanted, exact, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one.isnan(), other.isnan()), "NaN elsewhere"
        assert torch.equal(one.isinf(), other.isinf()), "infinite elsewhere"
        one, other, true = (torch.where(other.isinf(), 0, x) for x in (one, other, true))
        step = torch.finfo(dtype).eps * max(1.0, float(true.nan_to_num().abs().max()))
        mine, its = ((result.double() - true).nan_to_num().abs().max() for result in (one, other))
        assert mine <= 1.5 * its + 4 * step, (mine, its, step)


def tuple_of(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


SMALL = AttentionTile(32, 16, 4, 2)
#: In the tiles that are chosen for these sizes.
CHOSEN = ("slopes, causal", "heads share keys", "80")


def attempts() -> Iterator[tuple[str, Callable[[], None]]]:
    floats, halves = a_part(range(2, len(CASES), 3), 3), a_part(range(4, len(CASES), 5), 3)
    for number, name in a_part(enumerate(CASES), 2):
        some = (BF16, *((F32,) if number in floats else ()), *((F16,) if number in halves else ()))
        for dtype in (one for one in some if one in CASES[name].types):
            yield f"{name}, {dtype}", lambda name=name, dtype=dtype: check(name, dtype, SMALL)  # type: ignore[misc]
    for name in CHOSEN:
        yield f"{name}, as chosen", lambda name=name: check(name, BF16)  # type: ignore[misc]


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = True  # float32 is attention in one kernel then; the interpreter is exact
    return failures_of(attempts())


if __name__ == "__main__":
    sys.exit(main())
