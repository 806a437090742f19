"""Runs of CUDA kernels as launchers take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.fused.attention import FusedAttention
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient
from framesmith_backends.ir.fused.matmul import FusedMatmul
from framesmith_backends.ir.matmul import OnGpu
from framesmith_backends.ir.symbolic.size import Size, Symbol, size_text
from framesmith_backends.launch.source import OWNER
from framesmith_backends.render.triton.fused.attention import render_attention
from framesmith_backends.render.triton.fused.attention_gradient import render_attention_gradient
from framesmith_backends.render.triton.fused.matmul import render_matmul
from framesmith_backends.render.triton.horizontal import Gathered, TritonLaunch, gathered
from framesmith_backends.render.triton.kernel import MOST_PROGRAMS, TritonKernel, render_triton
from framesmith_backends.schedule.horizontal import shown_by
from framesmith_backends.schedule.plan import Plan
from framesmith_backends.schedule.steps import Run


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A step of the plan, its Triton kernels, and where each finds its arguments among the step's."""

    step: Run
    kernels: Sequence[TritonKernel]
    positions: Sequence[tuple[int, ...]]

    def arguments(self, values: Sequence[Any]) -> list[Any]:
        """The step's arguments, with tensors for buffers in its arena: for launchers that take tensors."""
        step, count = self.step, len(self.step.buffers)
        if not step.inner:
            return [*values]
        kinds = {param.name: DTYPES[param.dtype].torch for item in step.items for param in item.params}
        arena = values[count - 1]
        inner = [arena[one.offset : one.offset + one.size].view(kinds[one.name]) for one in step.inner]
        return [*values[:count], *inner, *values[count:]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The kernels of runs, by the items' names, and by the entries' names their launches and each item's launch."""

    functions: Mapping[str, TritonKernel]
    gathered: Mapping[str, Sequence[Gathered]]
    positions: Mapping[str, Sequence[int]]


def render_runs(plan: Plan) -> Rendered:
    """Render the items of the plan's runs, and gather them into launches; items of no points are in none."""
    shown = shown_by(plan.steps)
    functions: dict[str, TritonKernel] = {}
    launches: dict[str, list[Gathered]] = {}
    positions: dict[str, list[int]] = {}
    for run in plan.runs:
        items = [item for item in run.items if isinstance(item, OnGpu) and item.points != 0]
        functions.update((item.name, rendered(item)) for item in items)
        found = launches[run.entry] = gathered(items, functions, shown)
        launch_of = {member.name: at for at, one in enumerate(found) for member in one.members}
        positions[run.entry] = [launch_of.get(item.name, 0) for item in run.items]
    return Rendered(functions, launches, positions)


def rendered(item: OnGpu) -> TritonKernel:
    """The Triton kernel of an item of a run."""
    return _RENDERERS.get(type(item), render_triton)(item, f"triton_{item.name}")


_RENDERERS: dict[type, Callable[..., TritonKernel]] = {
    FusedAttention: render_attention, FusedAttentionGradient: render_attention_gradient, FusedMatmul: render_matmul,
}  # fmt: skip


def kernel_run(run: Run, launches: Sequence[TritonLaunch]) -> KernelRun:
    """The run with what it launches, and where that finds its arguments."""
    count = len(run.buffers) + len(run.inner)
    at = run.positions | {number: count + k for k, number in enumerate(run.numbers)}
    positions = [tuple(at[n] for n in (*launch.buffers, *launch.kernel.numbers)) for launch in launches]
    return KernelRun(run, [launch.kernel for launch in launches], positions)


def number_function(size: Size, kernel: TritonKernel) -> Callable[..., int]:
    """The size as a function of the kernel's numbers."""
    names = {n: f"n{k}" for k, n in enumerate(kernel.numbers) if isinstance(n, Symbol)}
    arguments = ", ".join(f"n{k}" for k in range(len(kernel.numbers)))
    space = {**OWNER, "max": max, "min": min}
    found: Callable[..., int] = eval(f"lambda {arguments}: {size_text(size, names)}", space)
    return found


def launches(kernel: TritonKernel) -> Callable[[Sequence[Any]], Iterator[tuple[TritonKernel, int, int]]]:
    """A function of the kernel's numbers: the version that they choose, the first program and the count of each launch.

    There is no launch for no programs, and several for more than one may have.
    """
    row = number_function(kernel.row, kernel)
    grids = [number_function(one.grid, one) for one in kernel.versions]

    def chosen(numbers: Sequence[Any]) -> Iterator[tuple[TritonKernel, int, int]]:
        which = int(len(kernel.versions) > 1 and row(*numbers) > kernel.block)
        programs = int(grids[which](*numbers))
        for first in range(0, programs, MOST_PROGRAMS):
            yield kernel.versions[which], first, min(programs - first, MOST_PROGRAMS)

    return chosen
