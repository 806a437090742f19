"""Kernels in all candidate configurations beside eager's results.

Blocks are small, so that small tensors take several. Of `PART` cases one; in long runs, `FRAMESMITH_LONG=1`, all.
With the argument "clock", the device's clock with stand-ins for what is CUDA's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from case_selection.sweeps import a_part
from graphs.tracing import mutating, trace
from interpreter_scripts.attempts import failures_of
from sample_programs import row_column
from sample_programs import scans as scan_programs
from sample_programs.list_steps import LISTS
from sample_programs.random_graphs import random_program
from sample_programs.samples import SAMPLES
from stand_ins.tile_clock import Preferring
from torch import fx

from framesmith_backends import cuda
from framesmith_backends.autotune import tiles as choosing_tiles
from framesmith_backends.autotune.tiles import InForm, TileTrial, TileTuner, trial_of
from framesmith_backends.autotune.trials import Experiment
from framesmith_backends.cuda import launcher, stages_of
from framesmith_backends.ir.program import Program
from framesmith_backends.render.triton import tile_candidates, tile_rules
from framesmith_backends.render.triton.horizontal import Gathered
from framesmith_backends.render.triton.tile_candidates import MOST_CONFIGS
from framesmith_backends.target import GPU

#: A graph, what it is run on, and how far its results may be off.
Case = tuple[fx.GraphModule, Sequence[torch.Tensor], float]


#: Of so many cases one is tried.
PART = 25


def make_blocks_small() -> None:
    tile_rules.WHOLE_ROW, tile_rules.ROW_BLOCK, tile_rules.LANE_BLOCK, tile_rules.LARGEST_BLOCK = 64, 32, 64, 64
    tile_rules.LONGER_ROWS.update({1: 128, 2: 128})
    tile_rules.SCAN_BLOCK, tile_rules.WHOLE_SCAN = 32, 64
    tile_candidates.LEAST_ELEMENTS = 4
    tile_candidates.ROW_BLOCK, tile_candidates.LARGEST_BLOCK = 32, 64
    choosing_tiles.LEAST_BYTES, TileTuner.MOST = 0, 1000


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Kernels of all kinds by names."""
    for sample in (one for one in SAMPLES if one.name not in SLOW):
        inputs = sample.inputs(interpreted=True)
        yield sample.name, lambda s=sample, i=inputs: (trace(s.function, i), i, max(s.tolerance, 1e-4))  # type: ignore[misc]
    for one in scan_programs.PROGRAMS:
        given = one.inputs()
        loose = 0.05 if one.dtype != torch.float32 or "bfloat16" in str(one.function.__code__.co_names) else 1e-3
        yield f"scan: {one.name}", lambda o=one, i=given, t=loose: (trace(o.function, i), i, t)  # type: ignore[misc]
    for both in row_column.CASES:
        rows = both.inputs(48, 96, torch.float32)
        name = f"rows and columns: {both.function.__name__}"
        yield name, lambda f=both.function, i=rows: (trace(f, i), i, 1e-3)  # type: ignore[misc]
    for step in (replace(one, shapes=SHORT) for one in LISTS[:8]):
        half = 1e-2 if step.dtype == torch.bfloat16 else 1e-5
        yield f"list: {step.name}", lambda s=step, t=half: (s.graph(), s.inputs(), t)  # type: ignore[misc]
    for name, function, shapes in MORE:
        tensors = [torch.randn(shape) for shape in shapes]
        yield name, lambda f=function, i=tensors: (trace(f, i), i, 1e-3)  # type: ignore[misc]
    for seed in range(8):
        program, drawn = random_program(seed)
        yield f"random {seed}", lambda f=program, i=drawn: (trace(f, i), i, 1e-3)  # type: ignore[misc]
    yield "onto its input", onto_its_input


def onto_its_input() -> Case:
    inputs = [torch.randn(40, 30), torch.randn(40, 30)]
    return mutating(lambda x, y: (x * 0.9 + y, (x * y).sum(1)), inputs, [0]), inputs, 1e-4


#: Tensors of lists: single, short, a whole block, several with a rest, and with two dimensions.
SHORT = ((7,), (1,), (64,), (1003,), (33, 5), (), (128, 3))
#: Samples that take an interpreter long: their sizes are for the CPU.
SLOW = ("tiles", "tile passes", "long columns", "full sum")
MORE: tuple[tuple[str, Callable[..., Any], Sequence[tuple[int, ...]]], ...] = (
    ("transposed", lambda x, y: x.t() * y, ((70, 50), (50, 70))),
    ("transposed in batches", lambda x: x.transpose(1, 2).contiguous() + 1, ((3, 40, 37),)),
    ("windows", lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 3, 20, 18),)),
    ("cross entropy", lambda x: torch.log_softmax(x, 1).exp().sum(1), ((30, 200),)),
    ("variance of long rows", lambda x: (x.var(1), x.mean(1)), ((7, 300),)),
    ("sums of a batch", lambda x: (x.sum((0, 2)), x.amax((0, 2))), ((6, 5, 70),)),
    ("argmax", lambda x: x.argmax(1), ((20, 150),)),
    ("pairs of one", lambda x: F.interpolate(x, scale_factor=2.0) + 1, ((2, 3, 9, 11),)),
    ("threes of one", lambda x: x.repeat_interleave(3, 1) * 2, ((9, 11),)),
    ("outer", lambda x, y: x[:, None] * y, ((60,), (90,))),
)


def check(case: Case, counts: dict[int, int]) -> None:
    """The numbers are eager's with each other candidate of each launch."""
    gm, inputs, tolerance = case
    plain = [x.clone() for x in inputs]
    wanted = gm(*plain)
    for which in range(MOST_CONFIGS - 1):
        clock = Preferring(which, blocks_alone=True)
        stages = stages_of(gm, tiles=TileTuner(clock))
        if not clock.preferred:
            return
        assert stages.tiles.count(", chosen") >= len(clock.asked)
        counts[which] += len(clock.preferred)
        compiled = [x.clone() for x in inputs]
        found = launcher(stages)(list(compiled))
        for one, other in zip([*found, *compiled], [*wanted, *plain], strict=True):
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def attempts(counts: dict[int, int]) -> Iterator[tuple[str, Callable[[], None]]]:
    for name, make in a_part(cases(), PART):
        yield name, lambda make=make: check(make(), counts)  # type: ignore[misc]


def clocked() -> Iterator[tuple[str, fx.GraphModule, int]]:
    """Graphs by names, and how many trials each has: of all that a kernel may do to its buffers."""
    x, y, at = torch.randn(40, 30), torch.randn(40, 30), torch.randint(0, 40, (25,))
    truths = x > 0
    given: list[tuple[str, Callable[..., Any], list[torch.Tensor], list[int], int]] = [
        ("onto its input", lambda x, y: (x * 0.9 + y, (x * y).sum(1)), [x, y], [0], 1),
        ("gathers", lambda x, at: x[at] * 2, [x, at], [], 1),
        ("sums at indices", lambda x, at, y: x.index_add(0, at, y), [x, at, torch.randn(25, 30)], [], 2),
        ("truths", lambda x, t: (torch.where(t, x, 0), (x > 0.5) & t), [x, truths], [], 1),
        ("integers", lambda x: ((x * 9).to(torch.int32), (x * 9).to(torch.int8), x.argmax(1)), [x], [], 1),
        ("a part", lambda x, y: torch.cat([x, y * 2]), [x, y], [], 1),
        ("a set", lambda *some: [one * 2 + 1 for one in some], [x, y, torch.randn(300)], [0, 1, 2], 1),
    ]
    for name, function, inputs, written, launches in given:
        yield name, mutating(function, inputs, written) if written else trace(function, inputs), launches


def clock() -> int:
    """All that the clock does with kernels: a candidate with wrong numbers in a written buffer is excluded."""
    from interpreter_scripts.matmuls import stand_in_clock

    make_blocks_small()
    stand_ins = stand_in_clock()
    for name, gm, launches in a_part(clocked(), 3):
        trials: list[tuple[TileTrial, Program]] = []

        class Noting(TileTuner):
            def __call__(self, found: Sequence[Gathered], program: Program) -> Mapping[str, InForm]:
                trials.extend((trial, program) for one in found if (trial := trial_of(one, program)))
                return {}

        stages_of(gm, tiles=Noting())
        assert len(trials) == launches, (name, len(trials))
        for trial, program in trials:
            written = {param.name for kernel in trial.one.kernels for param in kernel.params if param.written}
            for buffer in (*sorted(written), ""):
                one = stand_ins(None)
                one.broken, one.spoilt, one.wrong = "candidate2", buffer, "candidate1" if buffer else ""
                state = torch.get_rng_state()
                (times,) = one.times([trial], program)
                assert torch.equal(state, torch.get_rng_state())
                if isinstance(times, Exception):
                    raise times
                right = trial.others[:1] if not buffer else ()
                assert {*times} == {trial.baseline, *right, *trial.others[2:]}, (name, buffer, times)
        print("ok", name, flush=True)
    failed, times = stand_ins(None).times([Failing(), trials[0][0]], trials[0][1])
    assert isinstance(failed, LookupError) and not isinstance(times, Exception), (failed, times)
    print("ok one that fails, and one beside it", flush=True)
    return 0


class Failing:
    """A trial that cannot say how it is run."""

    name, baseline, others = "failing", "candidate0", ()

    def experiment(self, program: Program) -> Experiment:
        raise LookupError("no such buffer")


def main() -> int:
    make_blocks_small()
    cuda.GPU = replace(GPU, row_column=replace(GPU.row_column, parts=4, least=2, least_rows=2))
    counts = dict.fromkeys(range(MOST_CONFIGS - 1), 0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        failures = failures_of(attempts(counts))
    print("candidates:", counts)
    return failures


if __name__ == "__main__":
    sys.exit(clock() if sys.argv[1:] == ["clock"] else main())
