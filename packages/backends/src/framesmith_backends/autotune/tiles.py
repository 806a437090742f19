"""Trials of kernels in several tiles and numbers of warps: by rule, and in other configurations.

A launch is timed as a whole, a kernel or several of the same source: these share it, whatever is chosen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from framesmith_backends.autotune.autotuner import key_of
from framesmith_backends.autotune.trials import ANY_INTEGERS, Experiment, Tuner, span
from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Load, loads, variables, walk
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.program import Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Indirect
from framesmith_backends.ir.symbolic.size import Symbol, hint
from framesmith_backends.launch.cuda.support_source import support_digest
from framesmith_backends.render.triton.horizontal import Gathered, TritonLaunch
from framesmith_backends.render.triton.kernel import TritonKernel, render_triton
from framesmith_backends.render.triton.tile import Config
from framesmith_backends.render.triton.tile_candidates import configs_of

#: The baseline's name.
BY_RULE = "by rule"
#: Fewer bytes are moved in less time than a launch (H200: 3 us); others are timed for so many seconds.
LEAST_BYTES, SECONDS = 12 << 20, 0.3


@dataclass(frozen=True, slots=True)
class TileTrial:
    """A launch and its candidate configurations, the rule's first; `moved` are the bytes that it moves."""

    one: Gathered
    candidates: tuple[Config, ...]
    moved: int
    baseline: ClassVar[str] = BY_RULE

    @property
    def name(self) -> str:
        return self.one.text()

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(form.text() for form in self.candidates[1:])

    @property
    def head(self) -> str:
        return f"{self.name}: {self.moved / 2**20:.0f} MiB, by rule {self.candidates[0].text()}"

    def chosen(self, which: int) -> dict[str, InForm]:
        return {self.one.name: in_form(self.one, self.candidates[1 + which])}

    def key(self, program: Program, about: tuple[object, ...]) -> str:
        launch, rule = self._launched(self.candidates[0]), self.candidates[0].text()
        function = launch.kernel
        buffers = [(span(program.layouts[name]), name in program.inputs) for name in launch.buffers]
        form = (function.anonymous_source, function.grid, function.pointers, function.options, rule, self.others)
        return key_of("tiles", form, buffers, about, support_digest())

    def experiment(self, program: Program) -> Experiment:
        """The launch in all candidates, without the checks of its kernels, which would be of random numbers."""
        kernels = [without_checks(kernel) for kernel in self.one.kernels]
        params = {param.name: param for kernel in kernels for param in kernel.params}
        written = {param.name for kernel in kernels for param in kernel.params if param.written}
        read = {load.source for kernel in kernels for load in _read(kernel)}
        return Experiment(
            {
                name: (kernels, [self._launched(form)])
                for name, form in zip((BY_RULE, *self.others), self.candidates, strict=True)
            },
            {name: program.layouts[name] for name in params},
            tuple(sorted(written)),
            frozenset(name for name in params if name in program.inputs),
            SECONDS,
            bounds={**dict.fromkeys(written - read, ANY_INTEGERS), **_bounds(kernels)},
        )

    def _launched(self, form: Config) -> TritonLaunch:
        kernels = tuple(map(without_checks, self.one.kernels))
        return in_form(replace(self.one, members=kernels), form).launch


@dataclass(frozen=True, slots=True)
class InForm:
    """A launch in one configuration: its members as functions of their own, by name, and all of them at once."""

    functions: Mapping[str, TritonKernel]
    launch: TritonLaunch


def in_form(one: Gathered, form: Config) -> InForm:
    """Return the launch in that configuration of `configs_of`.

    Raises ValueError where kernels that share a text would not do so in that form.
    """
    if one.line is not None:
        functions = {kernel.name: render_triton(kernel, f"triton_{kernel.name}") for kernel in one.kernels}
        return InForm(functions, one.launch(functions, form))
    at = configs_of(one.kernels[0]).index(form)
    own = [configs_of(kernel) for kernel in one.kernels]  # the same form, over each kernel's own loops
    functions = {
        kernel.name: render_triton(kernel, f"triton_{kernel.name}", candidates[at])
        for kernel, candidates in zip(one.kernels, own, strict=True)
    }
    if len({function.anonymous_source for function in functions.values()}) > 1:
        raise ValueError(f"kernels equal to {one.kernels[0].name} differ in the configuration {form.text()}")
    return InForm(functions, one.launch(functions))


@dataclass(slots=True)
class TileTuner(Tuner[Gathered, InForm]):
    """Chooses configurations for the launches of a graph, the largest ones first."""

    WHAT = "kernels in other configurations than the rule's"
    MOST = 16

    def trials(self, found: Sequence[Gathered], program: Program) -> list[TileTrial]:
        trials = [trial for one in found if (trial := trial_of(one, program)) is not None]
        return sorted(trials, key=lambda trial: -trial.moved)


def trial_of(one: Gathered, program: Program) -> TileTrial | None:
    """The trial of a launch; None where it is not worth it, or not known how."""
    kernels = one.kernels
    if len(kernels) != len(one.members) or not all(_is_fixed(kernel, program) for kernel in kernels):
        return None
    moved = sum(bytes_moved(kernel, program) for kernel in kernels)
    if moved < LEAST_BYTES:
        return None
    candidates = tuple(configs_of(one.line or kernels[0]))
    return TileTrial(one, candidates, moved) if len(candidates) > 1 else None


def _is_fixed(kernel: Kernel, program: Program) -> bool:
    """Whether no size of it changes, its buffers are known, and it computes something but checks."""
    layouts = [program.layouts.get(param.name) for param in kernel.params]
    sizes = [kernel.points, *(size for one in layouts if one is not None for size in (*one.shape, *one.strides))]
    fixed = None not in layouts and all(isinstance(size, int) for size in sizes)
    return fixed and bool(kernel.stores) and not any(isinstance(n, Symbol) for n in kernel.numbers)


def bytes_moved(kernel: Kernel, program: Program) -> int:
    """The bytes of all elements that it reads and writes, each once: of a buffer no more than this has."""
    inside = [(load.source, False, variables(load)) for load in _read(kernel)]
    inside += [(store.buffer, True, index.variables(store.index)) for store in kernel.stores]
    found = Counter[tuple[str, bool]]()
    for name, written, loops in inside:
        found[name, written] += math.prod(hint(var.size) for var in loops)
    total = 0
    for (name, _), elements in found.items():
        layout = program.layouts[name]
        total += min(elements, span(layout)) * DTYPES[layout.dtype].itemsize
    return total


def _read(kernel: Kernel) -> list[Load]:
    """The loads, also for indices of stores."""
    indirect = [atom.value for store in kernel.stores for atom in index.indirect_atoms(store.index)]
    values = [value for one in kernel.passes for value in one.values]
    after = [store.value for store in kernel.after]
    return loads(*values, *after, *indirect)  # type: ignore[arg-type]


def _bounds(kernels: Sequence[Kernel]) -> dict[str, int]:
    """Of buffers of integers that say where something is: below which number these are."""
    found: dict[str, int] = {}
    for one in (atom for kernel in kernels for atom in _indirect(kernel)):
        if not isinstance(one.size, int):
            continue
        for load in loads(one.value):  # type: ignore[arg-type]
            found[load.source] = min(found.get(load.source, one.size), one.size)
    return found


def _indirect(kernel: Kernel) -> Iterator[Indirect]:
    for store in kernel.stores:
        yield from index.indirect_atoms(store.index)
    for node in walk(*_read(kernel)):
        if isinstance(node, Load):
            yield from index.indirect_atoms(node.index[0])


def without_checks(kernel: Kernel) -> Kernel:
    """The kernel without what it checks."""
    return replace(kernel, passes=tuple(replace(one, checks=()) for one in kernel.passes))
