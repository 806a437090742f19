"""Kernels of the cuda backend compiled for a device and run on CPU tensors by the emulator."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from ptx.memory import GlobalSpace
from ptx.program import WIDTHS, Program, PtxError, parse
from ptx.threads import Threads

from framesmith_backends.cuda import TritonStages, kernel_runs
from framesmith_backends.launch.cuda.kernel_runs import KernelRun, number_function
from framesmith_backends.launch.cuda.triton_jit import compiled
from framesmith_backends.launch.source import executed, write
from framesmith_backends.render.triton.kernel import MOST_PROGRAMS, POINTER_ALIGNMENT, SIZE_DIVISOR, TritonKernel
from framesmith_backends.target import SCRATCH_PARAMETERS

#: So many threads are run at once.
AT_ONCE = 1 << 15


@functools.cache
def code(kernel: TritonKernel, capability: int, aligned: bool) -> tuple[Program, int]:
    """The kernel's program, and the bytes of shared memory of a block."""
    found = compiled(kernel, capability, aligned)
    return parse(found.asm["ptx"]), found.metadata.shared


def smallest_access(program: Program) -> int:
    kinds = [
        one.parts[-1]
        for one in program.instructions
        if one.parts[0] in ("ld", "st", "atom", "red") and "param" not in one.parts
    ]
    return min([4, *(WIDTHS.get(kind, 16) // 8 for kind in kinds)])


def launch(
    program: Program, shared: int, grid: int, tensors: Sequence[torch.Tensor], numbers: Sequence[int | float] = (),
    blocks: range | None = None,
) -> None:  # fmt: skip
    """Run the grid, or `blocks` of it, on the tensors, which come first among the parameters; null is what is left."""
    words = [struct.pack("<d" if isinstance(value, float) else "<q", value) for value in numbers]
    left = len(program.parameters) - len(tensors) - len(words)
    if left not in (0, SCRATCH_PARAMETERS):
        raise PtxError(f"{program.name} has {len(program.parameters)} parameters, {left} more than were given")
    run_grid(program, shared, blocks or range(grid), grid, [*tensors, *words, *[bytes(8)] * left])


def run_grid(program: Program, shared: int, blocks: range, grid: int, values: Sequence[torch.Tensor | bytes]) -> None:
    """Run blocks on parameters: tensors, and the bytes of numbers."""
    unit = smallest_access(program)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    memory = GlobalSpace(tensors, program.constants, unit)
    data = bytearray()
    for value, (offset, size) in zip(values, program.parameters.values(), strict=True):
        word = struct.pack("<q", memory.address_of(value)) if isinstance(value, torch.Tensor) else value
        if len(word) != size:
            raise PtxError(f"{program.name} has a parameter of {size} bytes, and {len(word)} were given")
        data = data.ljust(offset, b"\0") + word
    each, time = max(AT_ONCE // program.threads, 1), 1
    for first in range(blocks.start, blocks.stop, each):
        many = min(each, blocks.stop - first)
        threads = Threads(program, memory, bytes(data), first, many, grid, shared, unit, time)
        threads.run()
        time = threads.clock.now + 1
    memory.write_back()


@dataclass
class Emulated:
    """Runs graphs through the emulator as a device of that compute capability would run them.

    `aligned` as `compiled` has it; None chooses by the numbers, as launches do. `seen` are the kernels that ran.
    """

    capability: int = 80
    aligned: bool | None = None
    seen: dict[str, TritonKernel] = field(default_factory=dict)

    def compile(self, stages: TritonStages) -> Callable[[list[torch.Tensor]], Any]:
        """The graph's launch list with emulated kernels."""
        source, space = write(stages.plan, stages.graph)
        entries = {run.step.entry: self._entry(run) for run in kernel_runs(stages)}
        return executed(source, space | entries)

    def _entry(self, run: KernelRun) -> Callable[..., None]:
        def call(*values: Any) -> None:
            known = run.arguments(values)
            for kernel, own in zip(run.kernels, run.positions, strict=True):
                self.launch(kernel, [known[k] for k in own])

        return call

    def launch(self, kernel: TritonKernel, values: Sequence[Any]) -> None:
        """One kernel on its tensors and numbers, in the form that a launch would choose."""
        many = len(kernel.pointers)
        tensors, numbers = list(values[:many]), list(values[many:])
        if len(kernel.versions) > 1 and number_function(kernel.row, kernel)(*numbers) > kernel.block:
            kernel = kernel.versions[1]
        wide = [float(v) if kind == "fp64" else int(v) for v, (_, kind) in zip(numbers, kernel.parameters[many:])]
        fits = all(wide[k] % SIZE_DIVISOR == 0 for k in kernel.aligned)
        if any(t.data_ptr() % POINTER_ALIGNMENT for t in tensors):
            raise AssertionError(
                f"{kernel.name} is launched on tensors that are not aligned"
            )  # the entry goes elsewhere
        aligned = fits if self.aligned is None else self.aligned and fits
        self.seen[kernel.source.replace(kernel.name, "kernel")] = kernel
        program, shared = code(kernel, self.capability, aligned)
        programs = int(number_function(kernel.grid, kernel)(*numbers))
        for first in range(0, programs, MOST_PROGRAMS):
            rest = [first] if kernel.has_first else []
            launch(program, shared, min(programs - first, MOST_PROGRAMS), tensors, [*wide, *rest])
