"""Matmuls that compute operands on the way in beside eager's.

Of cases half; in long runs, `FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from graphs.tracing import trace
from interpreter_scripts.attempts import failures_of, some

from framesmith_backends.autotune.matmuls import BASELINE, MatmulTrial, MatmulTuner
from framesmith_backends.cuda import TritonStages, launcher, stages_of
from framesmith_backends.ir.fused.matmul import FusedMatmul, TileShape
from framesmith_backends.schedule.matmuls.epilogues import Fusable

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TILE = TileShape(32, 32, 32, 4, 2)
BY_TWO = TileShape(16, 16, 16, 4, 2, programs=2)
IN_TWO = TileShape(16, 16, 16, 4, 2, 2)
Tiling = TileShape | Callable[[FusedMatmul], TileShape]
Ways = Sequence[tuple[bool, bool]]
NONE, FIRST, SECOND, BOTH = (False, False), (True, False), (False, True), (True, True)
ANY = [NONE, SECOND, FIRST, BOTH]


class Forced(MatmulTuner):
    """The same tile for every matmul, with as many operands on the way in as may be, or those alone of that number."""

    tile: Tiling = TILE
    number, ways = -1, ()

    def __call__(self, found: Sequence[Fusable], program: Any) -> Mapping[str, TileShape]:
        self.ways = tuple(one.ways for one in found)  # type: ignore[assignment]
        tiles = {one.call.name: self.tile(one.matmul) if callable(self.tile) else self.tile for one in found}
        return {one.call.name: replace(tiles[one.call.name], computed=one.ways[self.number]) for one in found}


def forced(tile: Tiling = TILE, number: int = -1) -> Forced:
    found = Forced()
    found.tile, found.number = tile, number  # type: ignore[misc]
    return found


def weights(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return w.to(x.dtype)


#: An input's shape, with its type where it is another than the matmuls'.
Given = tuple[int, ...] | tuple[torch.dtype, tuple[int, ...]]
I8, B1, I64 = torch.int8, torch.bool, torch.int64
#: Name -> function, shapes of its inputs, which operands of each matmul may be computed on the way in.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[Ways]]] = {
    "weights of 8 bits": (
        lambda x, w, s, b: F.gelu(F.linear(x, weights(w, x) * s[:, None], b)),
        ((70, 40), (I8, (50, 40)), (50,), (50,)), [[NONE, SECOND]],
    ),
    "weights of float32": (lambda x, w: F.linear(x, w.to(x.dtype)), ((70, 40), (F32, (50, 40))), [[NONE, SECOND]]),
    "activation of what was saved": (lambda x, w: F.gelu(x) @ w, ((33, 45), (45, 20)), [[NONE, FIRST]]),
    "not zero at zero": (lambda x, w: torch.relu(x.sigmoid() @ w.exp()), ((33, 45), (45, 20)), [ANY]),
    "infinite at zero": (lambda x, w: torch.relu((1 / x) @ w.relu()), ((33, 45), (45, 20)), [ANY]),
    "joined": (lambda x, y, w: torch.cat([x, y], 1).relu() @ w, ((33, 20), (33, 25), (45, 20)), [[NONE, FIRST]]),
    "padded": (lambda x, w: F.pad(x, (2, 3)).sigmoid() @ w, ((33, 40), (45, 20)), [[NONE, FIRST]]),
    "dropout": (
        lambda x, m, w: (x * m * 1.25) @ w, ((33, 45), (B1, (33, 45)), (45, 20)), [[NONE, FIRST]],
    ),
    "scaled along the depth": (lambda x, s, w: (x * s) @ w, ((33, 45), (45,), (45, 20)), [[NONE, FIRST]]),
    "scaled along rows and depth": (
        lambda x, s, t, w: ((x * s) + t[:, None]) @ w, ((33, 45), (45,), (33,), (45, 20)), [[NONE, FIRST]],
    ),
    "both operands of one kernel": (lambda x: (c := x.sin()) @ c.t(), ((33, 45),), [[NONE, BOTH]]),
    "batch": (
        lambda a, b: torch.tanh(torch.bmm(a.relu(), b.sin().transpose(1, 2))), ((3, 20, 36), (3, 17, 36)),
        [ANY],
    ),
    "expanded": (
        lambda a, b: torch.bmm(a.sin().expand(3, 20, 36), b).relu(), ((1, 20, 36), (3, 36, 17)), [[NONE, FIRST]],
    ),
    "rows of rows": (lambda x, w: F.linear(x.sin(), w), ((3, 11, 48), (33, 48)), [[NONE, FIRST]]),
    "heads": (
        lambda q, k: (q.sin().view(2, 10, 4, 8).transpose(1, 2) @ k.view(2, 10, 4, 8).permute(0, 2, 3, 1)).relu(),
        ((2, 10, 32), (2, 10, 32)), [ANY],
    ),
    "transposed": (lambda x, w: (x.sin().t() @ w.t()).relu(), ((45, 33), (20, 45)), [[NONE, FIRST]]),
    "slices": (lambda a, b: torch.mm(a.sin()[1:, ::2], b[:, 3:33]).relu(), ((41, 64), (32, 64)), [[NONE, FIRST]]),
    "gathered rows": (lambda t, i, w: (t[i] * 2) @ w, ((9, 45), (I64, (33,)), (45, 20)), [[NONE, FIRST]]),
    "upper part": (lambda x, w: torch.triu(x) @ w, ((33, 45), (45, 20)), [[NONE, FIRST]]),
    "of a buffer that the epilogue reads": (
        lambda x, w: (x.sin() @ w).relu() + x, ((33, 33), (33, 33)), [[NONE, FIRST]],
    ),
    "of another matmul": (
        lambda x, w, v: ((c := x @ w).relu() @ v, c @ v), ((33, 45), (45, 20), (20, 24)),
        [[NONE], [NONE, FIRST], [NONE]],
    ),
    "whole tiles": (lambda a, b: torch.mm(a.sin(), b).relu(), ((64, 64), (64, 96)), [[NONE, FIRST]]),
    "one number": (lambda a, b: torch.mm(a.sin(), b).relu(), ((1, 1), (1, 1)), [[NONE, FIRST]]),
    "depth of one": (lambda a, b: torch.mm(a.sin(), b.sin()), ((20, 1), (1, 20)), [ANY]),
    "one row": (lambda a, b, c: torch.addmm(c, a, b.sin()), ((1, 64), (64, 30), (30,)), [[NONE, SECOND]]),
    # Read by two, given as a result, reduced, the reader of another matmul: computed beforehand.
    "read by two": (lambda x, v, w: ((c := x.sin()) @ v, c @ w), ((33, 45), (45, 20), (45, 9)), [[NONE], [NONE]]),
    "a result": (lambda x, w: ((c := x.sin()), c @ w), ((33, 45), (45, 20)), [[NONE]]),
    "a view of it is a result": (lambda x, w: ((c := x.sin())[3:], c @ w), ((33, 45), (45, 20)), [[NONE]]),
    "stored beside another": (lambda x, w: (x.sin() @ w, x.cos()), ((33, 45), (45, 20)), [[NONE]]),
    "a norm": (lambda x, w: F.layer_norm(x, (45,)) @ w, ((33, 45), (45, 20)), [[NONE]]),
    "after another matmul": (
        lambda x, w, v: (x @ w).relu() @ v, ((33, 45), (45, 20), (20, 24)), [[NONE], [NONE]],
    ),
    "read by an addend": (lambda x, w: torch.addmm(c := x.sin(), c, w), ((33, 33), (33, 33)), [[NONE]]),
}  # fmt: skip


def inputs_of(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(name))

    def made(given: Any) -> torch.Tensor:
        kind, shape = given if isinstance(given[0], torch.dtype) else (dtype, given)
        if kind.is_floating_point:
            return torch.randn(shape, generator=generator).to(kind)
        least, most = {B1: (0, 2), I8: (-128, 128)}.get(kind, (0, 9))
        return torch.randint(least, most, shape, generator=generator).to(kind)

    return [made(given) for given in CASES[name][1]]


def compiled(name: str, inputs: Sequence[torch.Tensor], tile: Tiling = TILE, number: int = -1) -> TritonStages:
    """Stages of the case, of whose matmuls all operands that may be are computed on the way in."""
    function, _, ways = CASES[name]
    choose = forced(tile, number)
    stages = stages_of(trace(function, list(inputs)), choose=choose)
    assert [*choose.ways] == ways, choose.ways
    return stages


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.dtype.is_floating_point else x


def compare(name: str, found: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    """Results as near to those in float64 as eager's; infinite and NaN where eager's are, or those in float64.

    oneDNN's `gelu` of an infinity is NaN on processors with AVX-512, and infinite on others.
    """
    function = CASES[name][0]
    wanted, exact = (_tuple(function(*given)) for given in (inputs, [doubled(x) for x in inputs]))
    for one, other, true in zip(found, wanted, exact, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        fine = other.isfinite() & true.isfinite()
        assert one[fine].isfinite().all()
        assert (_same(one, other) | _same(one, true.to(dtype)))[~fine].all()
        if fine.any():
            step = torch.finfo(dtype).eps * true[fine].abs().max()
            mine, its = ((result[fine].double() - true[fine]).abs().max() for result in (one, other))
            assert mine <= 1.5 * its + 2 * step, (mine, its, step)


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | (one.isnan() & other.isnan())


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def check(name: str, dtype: torch.dtype, tile: Tiling = TILE, number: int = -1, spoilt: bool = False) -> None:
    inputs = inputs_of(name, dtype)
    if spoilt:
        for value, one in zip((torch.inf, torch.nan, -torch.inf), inputs, strict=False):
            if one.dtype.is_floating_point:
                one.view(-1)[one.numel() // 3] = value
    compare(name, launcher(compiled(name, inputs, tile, number))([*inputs]), inputs, dtype)


def attempts() -> Iterator[tuple[str, Callable[[], None]]]:
    for name in ("weights of 8 bits", "dropout", "batch", "both operands of one kernel"):
        yield f"candidates of {name}", lambda name=name: candidates(name)  # type: ignore[misc]
    for number, (name, (_, _, ways)) in enumerate(CASES.items()):
        dtype = (BF16, F16, F32)[number % 3]
        yield f"{name}, {dtype}", lambda name=name, dtype=dtype: check(name, dtype)  # type: ignore[misc]
        if not any(any(way) for some in ways for way in some):
            continue
        yield f"{name}, spoilt", lambda name=name: check(name, BF16, spoilt=True)  # type: ignore[misc]
        if number % 3 == 0 or "one" in name:
            yield f"{name}, by 2", lambda name=name: check(name, F16, BY_TWO, spoilt=True)  # type: ignore[misc]
            yield f"{name}, evenly", lambda name=name: check(name, F16, evenly, spoilt=True)  # type: ignore[misc]
        yield f"{name}, in 2", lambda name=name: check(name, F16, IN_TWO, spoilt=True)  # type: ignore[misc]
        if len(ways) == 1 and len(ways[0]) == 4:
            for way in (1, 2):
                yield f"{name}, {way}", lambda name=name, way=way: check(name, F16, TILE, way)  # type: ignore[misc]


def evenly(matmul: FusedMatmul) -> TileShape:
    """Tiles that leave something over to be cut, if there are such."""
    tiles = (replace(IN_TWO, splits=1, evenly=programs) for programs in range(2, 9))
    counted = ((tile, replace(matmul, tile=tile)) for tile in tiles)
    return next((tile for tile, one in counted if tile.evenly <= one.left_over * one.steps), TILE)


def candidates(name: str) -> None:
    """All candidates that the clock launches give the numbers of the unfused one."""
    from framesmith_backends.autotune import clock
    from framesmith_backends.launch.cuda import one_by_one

    class Interpreting(clock.DeviceClock):
        def entries(self, runs: Sequence[Any]) -> Mapping[str, object]:
            return {run.step.entry: one_by_one.entry(run, None) for run in runs}

    trials: list[tuple[MatmulTrial, Any]] = []

    class Noting(MatmulTuner):
        def __call__(self, found: Sequence[Fusable], program: Any) -> Mapping[str, TileShape]:
            for one in found:
                ways = [TILE, IN_TWO, BY_TWO, evenly(one.matmul)]
                tiles = [replace(tile, computed=way) for way in one.ways for tile in ways]
                trials.append((MatmulTrial(one, tuple(tiles)), program))
            return {}

    stages_of(trace(CASES[name][0], inputs_of(name, BF16)), choose=Noting())
    ((trial, program),) = trials
    one = trial.experiment(program)
    (launched,) = Interpreting(None)._candidates([trial], [one])  # type: ignore[arg-type]
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    buffers = {
        buffer: clock._made(layout, device, generator, one.bounds.get(buffer)) for buffer, layout in one.layouts.items()
    }
    found = clock._agreeing(trial, one, launched, buffers)
    assert {*found} == {BASELINE, *(tile.text() for tile in trial.tiles)}
    before = trial.fusable.before()
    assert before
    for kernel in before:  # what lies where an operand would is read by no form that computes it
        buffers[kernel.passes[0].stores[0].buffer].fill_(torch.nan)
    wanted = {name: buffers[name].clone() for name in one.written}
    launched[trial.tiles[-1].text()](buffers)
    assert all(torch.equal(buffers[name], tensor) for name, tensor in wanted.items())


if __name__ == "__main__":
    sys.exit(failures_of(some(attempts())))
