"""Matmuls with their epilogues beside eager's, on CPU tensors.

With the argument "clock", the device's clock with stand-ins for what is CUDA's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from case_selection.sweeps import a_part
from graphs.tracing import trace
from interpreter_scripts.attempts import failures_of, some

from framesmith_backends.autotune.matmuls import BASELINE, MatmulTrial, MatmulTuner
from framesmith_backends.cuda import launcher, stages_of
from framesmith_backends.ir.fused.matmul import FusedMatmul, TileShape
from framesmith_backends.ir.verify import verify_item

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TILE = TileShape(32, 32, 32, 4, 2)


class Forced(MatmulTuner):
    """The same tile for every matmul, or for those alone that something is fused with."""

    tile, alone = TILE, False

    def __call__(self, found: Any, program: Any) -> Mapping[str, TileShape]:
        return {one.call.name: self.tile for one in found if self.alone or one.kernel is not None}


def forced(tile: TileShape, alone: bool = False) -> MatmulTuner:
    found = Forced()
    found.tile, found.alone = tile, alone  # type: ignore[misc]
    return found


Shapes = tuple[tuple[int, ...], ...]
#: Name -> function, shapes of its inputs, how many of its matmuls are fused.
CASES: dict[str, tuple[Callable[..., Any], Shapes, int]] = {
    "linear, gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((70, 40), (50, 40), (50,)), 1),
    "linear of rows of rows, residual": (
        lambda x, w, b, r: F.relu(F.linear(x, w, b)) + r, ((3, 11, 48), (33, 48), (33,), (3, 11, 33)), 1,
    ),
    "transposed operand, cast": (lambda a, b: torch.mm(a.t(), b).float() * 2, ((40, 64), (40, 64)), 1),
    "batch": (lambda a, b: torch.tanh(torch.bmm(a, b.transpose(1, 2))), ((3, 20, 36), (3, 17, 36)), 1),
    "batch, scaled sum": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2).sigmoid(), ((3, 20, 17), (3, 20, 36), (3, 36, 17)), 1,
    ),
    "batch, expanded addend": (
        lambda c, a, b: torch.baddbmm(c, a, b).sigmoid(), ((17,), (3, 20, 36), (3, 36, 17)), 1,
    ),
    "addend that does not count": (
        lambda c, a, b: torch.addmm(c * torch.inf, a, b, beta=0).relu(), ((17,), (20, 36), (36, 17)), 1,
    ),
    "expanded rows": (lambda c, a, b: torch.addmm(c, a, b).relu(), ((20, 1), (20, 36), (36, 17)), 1),
    "expanded operand": (
        lambda a, b: torch.bmm(a.expand(3, 20, 36), b).relu(), ((1, 20, 36), (3, 36, 17)), 1,
    ),
    "heads": (
        lambda x, w: (x @ w).view(2, 10, 4, 8).permute(0, 2, 1, 3).contiguous() * 2, ((2, 10, 32), (32, 32)), 1,
    ),
    "read twice": (lambda a, b: (torch.mm(a, b) * 2, torch.mm(a, b).sum(0)), ((40, 64), (64, 64)), 1),
    "result and what is made of it": (lambda a, b: ((c := torch.mm(a, b)), c.relu()), ((40, 64), (64, 64)), 1),
    "several results": (
        lambda a, b, m: ((c := torch.mm(a, b)).relu(), torch.where(m > 0, c, 0).float(), c > 0),
        ((40, 64), (64, 30), (40, 30)), 1,
    ),
    "slices": (lambda a, b: torch.mm(a[1:, ::2], b[:, 3:33]).relu(), ((41, 64), (32, 64)), 1),
    "one row": (lambda a, b, c: torch.addmm(c, a, b).relu(), ((1, 64), (64, 30), (30,)), 1),
    "one column": (lambda a, b, c: torch.addmm(c, a, b).relu(), ((20, 64), (64, 1), (1,)), 1),
    "one number": (lambda a, b: torch.mm(a, b).relu(), ((1, 1), (1, 1)), 1),
    "depth of one": (lambda a, b: torch.mm(a, b).relu(), ((20, 1), (1, 20)), 1),
    "whole tiles": (lambda a, b: torch.mm(a, b).relu(), ((64, 64), (64, 96)), 1),
    "many tiles": (lambda a, b: torch.mm(a, b).relu(), ((330, 16), (16, 70)), 1),
    "read across": (lambda a, b, c: torch.mm(a, b).t().relu() + c, ((20, 64), (64, 40), (40, 20)), 1),
    "scaled by a number": (lambda x, a, s: (x @ a) * s.exp(), ((40, 33), (33, 50), ()), 1),
    "two matmuls": (lambda x, a, b: F.silu(x @ a) * (x @ b), ((20, 64), (64, 40), (64, 40)), 1),
    "one after another": (lambda x, a, b: ((x @ a).relu() @ b).relu(), ((20, 64), (64, 24), (24, 16)), 2),
    # Read twice, in several rows, by a call, by a reduction, by two kernels: not fused.
    "symmetric": (lambda x, a: (c := x @ a) + c.t(), ((20, 64), (64, 20)), 0),
    "repeated": (lambda x, a, c: (x @ a)[None] + c, ((20, 64), (64, 24), (3, 20, 24)), 0),
    "a part of it": (lambda x, a: (x @ a)[3:].relu(), ((20, 64), (64, 24)), 0),
    "read by a call": (lambda x, a, b: ((c := x @ a).relu(), c @ b), ((20, 64), (64, 24), (24, 8)), 0),
    "norm": (lambda x, a: F.layer_norm((x @ a).relu(), (24,)), ((20, 64), (64, 24)), 0),
}  # fmt: skip
#: Matmuls by themselves.
ALONE: dict[str, tuple[Callable[..., Any], Shapes, int]] = {
    "alone": (lambda a, b: torch.mm(a, b), ((70, 40), (40, 33)), 1),
    "alone, with a bias": (lambda a, w, b: F.linear(a, w, b), ((3, 7, 40), (33, 40), (33,)), 1),
    "alone in batches": (lambda a, b: torch.bmm(a, b.transpose(1, 2)), ((3, 20, 36), (3, 17, 36)), 1),
    "a part of it is read": (lambda x, a: (x @ a)[3:].relu(), ((20, 64), (64, 24)), 1),
    "before a norm": (lambda x, a: F.layer_norm((x @ a).relu(), (24,)), ((20, 64), (64, 24)), 1),
    "two that one kernel reads": (lambda x, a, b: F.silu(x @ a) * (x @ b), ((20, 64), (64, 40), (64, 40)), 2),
    "one reads another": (lambda x, a, b: ((c := x @ a).relu(), c @ b), ((20, 64), (64, 24), (24, 8)), 2),
}
#: Cases, and among how many programs what is left over is cut: of 20 tiles 6 or all, of 12 2 or 5, both of 2.
EVENLY = (
    ("linear, gelu", 7), ("linear, gelu", 47), ("batch", 5), ("read across", 4), ("result and what is made of it", 7),
    ("batch, scaled sum", 7), ("one row", 8), ("scaled by a number", 7),
)  # fmt: skip
SPLIT = (
    "linear, gelu",
    "batch",
    "read across",
    "result and what is made of it",
    "batch, scaled sum",
    "one row",
    "scaled by a number",
)


def inputs_of(name: str, dtype: torch.dtype, deeper: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(name))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in (CASES | ALONE)[name][1]]


def check(name: str, dtype: torch.dtype, tile: TileShape) -> None:
    """Results as near to those in float64 as eager's."""
    function, _, count = (CASES | ALONE)[name]
    inputs = inputs_of(name, dtype)
    stages = stages_of(trace(function, inputs), choose=forced(tile, name in ALONE))
    fused = [one for one in stages.plan.items_of(FusedMatmul) if one.rest is None or one.rest.known]
    assert len(fused) == count, (len(fused), count)
    for one in stages.plan.items_of(FusedMatmul):
        if tile.splits != 3:  # which no candidate has
            verify_item(one)
    found = launcher(stages)(list(inputs))
    wanted, exact = (tuple_of(function(*given)) for given in (inputs, [x.double() for x in inputs]))
    for one, other, true in zip(found, wanted, exact, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        if one.dtype == torch.bool:
            assert (one == other).float().mean() > 0.98
            continue
        step = torch.finfo(dtype).eps * true.abs().max()
        mine, its = ((result.double() - true).abs().max() for result in (one, other))
        assert mine <= 1.5 * its + 2 * step, (mine, its, step)


def tuple_of(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def attempts() -> Iterator[tuple[str, Callable[[], None]]]:
    for number, name in enumerate(CASES):
        for dtype in (BF16, F32) if number % 3 else (BF16, F16, F32):
            yield f"{name}, {dtype}", lambda name=name, dtype=dtype: check(name, dtype, TILE)  # type: ignore[misc]
        yield f"{name}, 64x16", lambda name=name: check(name, F16, TileShape(64, 16, 16, 4, 2))  # type: ignore[misc]
    for name in ALONE:
        yield name, lambda name=name: check(name, BF16, TILE)  # type: ignore[misc]
        tile = TileShape(16, 16, 16, 4, 2, 2)
        yield f"{name} in 2", lambda name=name, tile=tile: check(name, F32, tile)  # type: ignore[misc]
    for name in SPLIT:
        for programs in (3, 100):
            tile = TileShape(16, 32, 16, 4, 2, programs=programs)
            yield f"{name} by {programs}", lambda name=name, tile=tile: check(name, F16, tile)  # type: ignore[misc]
        tile = TileShape(16, 16, 16, 4, 2, 2, programs=2)
        yield f"{name} in 2 by 2", lambda name=name, tile=tile: check(name, F32, tile)  # type: ignore[misc]
    for name, shares in EVENLY:
        tile = TileShape(16, 16, 16, 4, 2, evenly=shares)
        yield f"{name} evenly by {shares}", lambda name=name, tile=tile: check(name, F32, tile)  # type: ignore[misc]
    for name in SPLIT:
        for parts in (2, 3):
            tile = TileShape(32, 16, 16, 4, 2, parts)
            yield f"{name} in {parts}", lambda name=name, tile=tile: check(name, F32, tile)  # type: ignore[misc]


class Stream:
    waits = 0

    def wait_stream(self, other: Any) -> None:
        pass

    def synchronize(self) -> None:
        Stream.waits += 1


class Event:
    """A CUDA event whose time advances by the replays between."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@contextmanager
def nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def stand_in_clock() -> type[Any]:
    """The device's clock on CPU tensors, with stand-ins for what is CUDA's: a class of clocks.

    A captured graph takes one unit a launch; the launches of the first entry count for all.
    """
    from framesmith_backends.autotune import clock
    from framesmith_backends.autotune.clock import DeviceClock
    from framesmith_backends.launch.cuda import one_by_one

    class Graph:
        launches = 0

        def capture_begin(self, capture_error_mode: str) -> None:
            Graph.launches = 0

        def capture_end(self) -> None:
            self.launches = Graph.launches

        def replay(self) -> None:
            Event.now += self.launches

    class StandIn(DeviceClock):
        wrong = failing = ""
        broken = "candidate1"  # what does not compile
        spoilt = ""  # the buffer in which its numbers are wrong
        buffers: Mapping[str, tuple[str, ...]] = {}

        @property
        def place(self) -> torch.device:
            return torch.device("cpu")

        def entries(self, runs: Sequence[Any]) -> Mapping[str, object]:
            self.buffers = {run.step.entry: tuple(run.step.buffers) for run in runs}
            made = {run.step.entry: one_by_one.entry(run, None) for run in runs}

            def counted(name: str) -> Callable[..., None]:
                def launch(*values: Any) -> None:
                    Graph.launches += 1 + (len(made) - 1 if name == "candidate0" else 0)
                    made[name](*values)
                    if name == self.failing:
                        raise RuntimeError("after its launch")
                    if name == self.wrong:
                        spoilt = values[self.buffers[name].index(self.spoilt)]
                        spoilt.copy_(spoilt == 0 if spoilt.dtype == torch.bool else spoilt + 1)

                return launch

            return {name: counted(name) for name in made if name != self.broken}

    class Properties:
        L2_cache_size, multi_processor_count = 1 << 14, 132

    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event, cuda.CUDAGraph = lambda device: Stream(), Event, Graph
    cuda.stream = cuda.device = nothing
    cuda.current_stream = lambda device=None: Stream()
    cuda.mem_get_info, cuda.memory_reserved, cuda.memory_allocated = lambda d: (1 << 30, 0), lambda d: 0, lambda d: 0
    cuda.get_device_properties = lambda d: Properties
    clock._plain = nothing  # type: ignore[attr-defined]
    clock.MOST_LAUNCHES, clock.ROUNDS = 2, 2
    return StandIn


def clock() -> None:
    """All that the clock does with matmuls."""
    stand_ins = stand_in_clock()
    trials: list[tuple[MatmulTrial, Any]] = []

    class Noting(MatmulTuner):
        def __call__(self, found: Any, program: Any) -> Mapping[str, TileShape]:
            tiles = (TileShape(32, 32, 32, 4, 2), TileShape(16, 32, 32, 4, 2), TileShape(32, 16, 16, 4, 2, 2))
            trials.extend((MatmulTrial(one, tiles), program) for one in found)
            return {}

    names = ("linear, gelu", "batch, scaled sum", "linear of rows of rows, residual", "several results")
    names = (*names, "result and what is made of it", "alone", "alone in batches")
    written = dict(zip(names, (1, 1, 1, 3, 2, 1, 1), strict=True))
    buffers = dict.fromkeys(a_part(names, 4), 0)
    for name in buffers:
        trials.clear()
        function = (CASES | ALONE)[name][0]
        stages_of(trace(function, inputs_of(name, BF16)), choose=Noting())
        ((trial, program),) = trials
        stand_in = stand_ins(None)
        first, second, third = (tile.text() for tile in trial.tiles)
        alone = trial.fusable.kernel is None
        # The first tile does not compile, alone the second one; the third gives wrong numbers in one of the buffers.
        stand_in.wrong, right = ("candidate2", first) if alone else ("candidate3", second)
        for param in (param for param in trial.fusable.matmul.params if param.written):
            buffers[name] += 1
            stand_in.spoilt = param.name
            (times,) = stand_in.times([trial], program)
            if isinstance(times, Exception):
                raise times
            assert set(times) == {BASELINE, right}, (name, param, times)
            assert alone or times[BASELINE] == 4 * times[right]
        stand_in.wrong = ""
        (times,) = stand_in.times([trial], program)
        assert set(times) == {BASELINE, right, third}, (name, times)
        waits, stand_in.failing = Stream.waits, "candidate0"
        (error,) = stand_in.times([trial], program)
        assert str(error) == "after its launch" and Stream.waits == waits + 1, (error, waits, Stream.waits)
    assert buffers == {name: written[name] for name in buffers}
    print("ok clock")


def main() -> int:
    return failures_of(some(attempts()))


if __name__ == "__main__":
    sys.exit(clock() if sys.argv[1:] == ["clock"] else main())
