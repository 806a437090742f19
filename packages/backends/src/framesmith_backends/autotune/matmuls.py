"""In which form matmuls run: the fastest of those that were timed.

The present candidate is an ATen call and, where there is one, the kernel that reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from framesmith_aten.contract import OnError
from framesmith_backends.autotune.matmul_trials import experiment_of
from framesmith_backends.autotune.trials import FORMAT, Clock, Experiment, Times, fastest, lines_of, times_of
from framesmith_backends.ir.fused.matmul import TileShape
from framesmith_backends.ir.matmul import OnGpu
from framesmith_backends.ir.program import Program
from framesmith_backends.launch.cuda.support_source import support_digest
from framesmith_backends.render.triton.fused.matmul import render_matmul
from framesmith_backends.render.triton.fused.matmul_tiles import candidates
from framesmith_backends.render.triton.kernel import render_triton
from framesmith_backends.schedule.matmuls.epilogues import Fusable
from framesmith_backends.target import GPU_PROCESSORS

#: The name of the present candidate.
PRESENT = "ATen"
#: So many tiles of matmuls that nothing is fused with are measured: cuBLAS is rarely slower.
MOST_ALONE = 3
#: Compute capability of the GPU that is taken where there is none.
CAPABILITY = 90


@dataclass(frozen=True, slots=True)
class Trial:
    """A matmul, and the tiles in which it is timed beside the present candidate."""

    fusable: Fusable
    tiles: tuple[TileShape, ...]

    @property
    def name(self) -> str:
        return self.fusable.call.name

    @property
    def present(self) -> str:
        return PRESENT

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(tile.text() for tile in self.tiles)

    def key(self, program: Program, about: tuple[object, ...]) -> str:
        return key_of(self, program, about)

    def experiment(self, program: Program) -> Experiment:
        return experiment_of(self.fusable, self.tiles, program, PRESENT)


@dataclass(slots=True)
class Choices:
    """Chooses candidates for the matmuls of a graph and reports them; without a `clock` the present ones.

    A matmul that cannot be timed keeps its present candidate, and `on_error` is called; without it, the error raises.
    """

    clock: Clock | None = None
    exact: bool = True
    on_error: OnError | None = None
    reports: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, found: Sequence[Fusable], program: Program) -> Mapping[str, TileShape]:
        try:
            return self._chosen(found, program)
        except Exception as error:  # the present candidate is as good as ever
            self._failed(error)
            return {}

    def _chosen(self, found: Sequence[Fusable], program: Program) -> Mapping[str, TileShape]:
        mine = [one for one in found if not (self.exact and one.matmul.dtype == "f32")]
        trials = [trial for one in mine if (trial := Trial(one, tuple(self._tiles(one)))).tiles]
        chosen: dict[str, TileShape] = {}
        for trial, times in zip(trials, times_of(trials, program, self.clock, self._failed), strict=True):
            name = fastest(times, PRESENT, trial.others)
            self._report(trial, times, name)
            if name is not None:
                chosen[trial.name] = trial.tiles[trial.others.index(name)]
        return chosen

    def _tiles(self, one: Fusable) -> list[TileShape]:
        capability = CAPABILITY if self.clock is None else self.clock.capability
        processors = GPU_PROCESSORS if self.clock is None else self.clock.processors
        found: list[TileShape] = []
        for way in one.ways:
            some = candidates(one.in_tiles(replace(one.matmul.tile, computed=way)), capability, processors)
            found += some if one.kernel is not None else some[:MOST_ALONE]
        return found

    def _failed(self, error: Exception) -> None:
        if self.on_error is None:
            raise error
        self.on_error("matmuls by other candidates than ATen's", error)

    def _report(self, trial: Trial, times: Times, chosen: str | None) -> None:
        one = trial.fusable
        parts = [str(one.call.node.target), *(["its kernel"] if one.kernel is not None else [])]
        parts += [f"what computes {', '.join(operands)}"] if (operands := _computable(one)) else []
        head = f"{one.call.name}: {' and '.join(parts)}"
        self.reports[one.call.name] = lines_of(trial, head, times, chosen)

    def text(self) -> str:
        """The candidates, with their times."""
        return "\n".join(line for lines in self.reports.values() for line in lines)


def _computable(one: Fusable) -> list[str]:
    """The operands that may be computed on the way in, by what they are called in the names of tiles."""
    return [name for name, own in zip("ab", one.prologues, strict=True) if own is not None]


def key_of(trial: Trial, program: Program, about: tuple[object, ...]) -> str:
    """The digest of all that the times depend on: equal for matmuls that differ in names only."""
    one = trial.fusable
    matmul = one.matmul
    computed = [one.in_tiles(replace(matmul.tile, computed=way)) for way in one.ways[1:]]
    before = [render_triton(kernel, "kernel") for kernel in one.before()]
    rendered = [render_matmul(form, "kernel") for form in (matmul, *computed)] + before
    items: list[OnGpu] = [matmul, *computed, *one.before()]
    names = dict.fromkeys(param.name for item in items for param in item.params)
    buffers = [(program.layouts[name].shape, program.layouts[name].strides, name in program.inputs) for name in names]
    texts = tuple((one.source, one.pointers, one.grid, one.warps) for one in rendered)
    after = None if one.kernel is None else render_triton(one.kernel, "kernel")
    present = (str(one.call.node.target), after and (after.source, after.grid, after.pointers, after.warps))
    tiles = tuple(tile.text() for tile in trial.tiles)
    parts = (FORMAT, texts, present, buffers, tiles, about, support_digest())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
