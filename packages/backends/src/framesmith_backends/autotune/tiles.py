"""In which tiles and numbers of warps kernels run: by rule, or in the form that was timed as fastest.

A launch is timed as a whole, a kernel or several of the same source: these share it, whatever is chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from framesmith_aten.contract import OnError
from framesmith_backends.autotune.trials import (
    ANY_INTEGERS,
    FORMAT,
    Clock,
    Experiment,
    Times,
    fastest,
    lines_of,
    span,
    times_of,
)
from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Load, loads, variables, walk
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.program import Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Indirect, Ix
from framesmith_backends.ir.symbolic.size import Symbol, hint
from framesmith_backends.launch.cuda.support_source import support_digest
from framesmith_backends.render.triton.horizontal import Gathered, Launch
from framesmith_backends.render.triton.kernel import TritonKernel, render_triton
from framesmith_backends.render.triton.tile import Form
from framesmith_backends.render.triton.tile_candidates import forms_of

#: The name of the present candidate.
BY_RULE = "by rule"
#: Fewer bytes are moved in less time than a launch (H200: 3 us); so many different launches of a graph are timed,
#: the largest ones, each for so many seconds.
LEAST_BYTES, MOST_TIMED, SECONDS = 12 << 20, 16, 0.3


@dataclass(frozen=True, slots=True)
class TileTrial:
    """A launch and its candidate configurations, the rule's first; `moved` are the bytes that it moves."""

    one: Gathered
    candidates: tuple[Form, ...]
    moved: int

    @property
    def name(self) -> str:
        return self.one.text()

    @property
    def present(self) -> str:
        return BY_RULE

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(form.text() for form in self.candidates[1:])

    def key(self, program: Program, about: tuple[object, ...]) -> str:
        launch, rule = self._launched(self.candidates[0]), self.candidates[0].text()
        function = launch.kernel
        buffers = [(span(program.layouts[name]), name in program.inputs) for name in launch.buffers]
        form = (text_of(function), function.grid, function.pointers, function.options, rule, self.others)
        parts = (FORMAT, "tiles", form, buffers, about, support_digest())
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

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

    def _launched(self, form: Form) -> Launch:
        kernels = tuple(map(without_checks, self.one.kernels))
        return in_form(replace(self.one, members=kernels), form).launch


@dataclass(frozen=True, slots=True)
class InForm:
    """A launch in one configuration: its members as functions of their own, by name, and all of them at once."""

    functions: Mapping[str, TritonKernel]
    launch: Launch


def in_form(one: Gathered, form: Form) -> InForm:
    """Return the launch in that configuration of `forms_of`.

    Raises ValueError where kernels that share a text would not do so in that form.
    """
    if one.line is not None:
        functions = {kernel.name: render_triton(kernel, f"triton_{kernel.name}") for kernel in one.kernels}
        return InForm(functions, one.launch(functions, form))
    at = forms_of(one.kernels[0]).index(form)
    own = [forms_of(kernel) for kernel in one.kernels]  # the same form, over each kernel's own loops
    functions = {
        kernel.name: render_triton(kernel, f"triton_{kernel.name}", candidates[at])
        for kernel, candidates in zip(one.kernels, own, strict=True)
    }
    if len({text_of(function) for function in functions.values()}) > 1:
        raise ValueError(f"kernels equal to {one.kernels[0].name} differ in the configuration {form.text()}")
    return InForm(functions, one.launch(functions))


def text_of(function: TritonKernel) -> str:
    """Its source, whatever it is called."""
    return function.source.replace(f"def {function.name}(", "def kernel(", 1)


@dataclass(slots=True)
class TileChoices:
    """Chooses configurations for the launches of a graph and reports them; without a `clock` those by rule.

    A launch that cannot be timed is by rule, and `on_error` is called; without it, the error is raised.
    """

    clock: Clock | None = None
    on_error: OnError | None = None
    reports: list[str] = field(default_factory=list)

    def __call__(self, found: Sequence[Gathered], program: Program) -> Mapping[str, InForm]:
        """The launches in another configuration than the rule's, by name."""
        try:
            return self._chosen(found, program)
        except Exception as error:  # the rule's form is as good as ever
            self._failed(error)
            return {}

    def _chosen(self, found: Sequence[Gathered], program: Program) -> Mapping[str, InForm]:
        trials = [trial for one in found if (trial := trial_of(one, program)) is not None]
        trials.sort(key=lambda trial: -trial.moved)
        chosen: dict[str, InForm] = {}
        for trial, times in zip(trials, times_of(trials, program, self.clock, self._failed, MOST_TIMED), strict=True):
            name = fastest(times, BY_RULE, trial.others)
            self._report(trial, times, name)
            if name is not None:
                chosen[trial.one.name] = in_form(trial.one, trial.candidates[1 + trial.others.index(name)])
        return chosen

    def _failed(self, error: Exception) -> None:
        if self.on_error is None:
            raise error
        self.on_error("kernels in other configurations than the rule's", error)

    def _report(self, trial: TileTrial, times: Times, chosen: str | None) -> None:
        head = f"{trial.name}: {trial.moved / 2**20:.0f} MiB, by rule {trial.candidates[0].text()}"
        skipped = self.clock is not None and not times
        self.reports += [head, "  not measured"] if skipped else lines_of(trial, head, times, chosen)

    def text(self) -> str:
        """The candidates, with their times."""
        return "\n".join(self.reports)


def trial_of(one: Gathered, program: Program) -> TileTrial | None:
    """The trial of a launch; None where it is not worth it, or not known how."""
    kernels = one.kernels
    if len(kernels) != len(one.members) or not all(_is_fixed(kernel, program) for kernel in kernels):
        return None
    moved = sum(bytes_moved(kernel, program) for kernel in kernels)
    if moved < LEAST_BYTES:
        return None
    candidates = tuple(forms_of(one.line or kernels[0]))
    return TileTrial(one, candidates, moved) if len(candidates) > 1 else None


def _is_fixed(kernel: Kernel, program: Program) -> bool:
    """Whether no size of it changes, its buffers are known, and it computes something but checks."""
    sizes = [size for p in kernel.params if p.name in program.layouts for size in _sizes(program, p.name)]
    known = all(param.name in program.layouts for param in kernel.params)
    fixed = all(isinstance(size, int) for size in (kernel.points, *sizes))
    return known and fixed and bool(kernel.stores) and not any(isinstance(n, Symbol) for n in kernel.numbers)


def _sizes(program: Program, name: str) -> tuple[object, ...]:
    layout = program.layouts[name]
    return (*layout.shape, *layout.strides)


def bytes_moved(kernel: Kernel, program: Program) -> int:
    """The bytes of all elements that it reads and writes, each once: of a buffer no more than this has."""
    found: dict[tuple[str, bool], int] = {}
    for load in _read(kernel):
        _add(found, (load.source, False), load.index[0], load)
    for store in kernel.stores:
        _add(found, (store.buffer, True), store.index)
    total = 0
    for (name, _), elements in found.items():
        layout = program.layouts[name]
        total += min(elements, span(layout)) * DTYPES[layout.dtype].itemsize
    return total


def _add(found: dict[tuple[str, bool], int], what: tuple[str, bool], ix: Ix, load: Load | None = None) -> None:
    inside = index.variables(ix) if load is None else variables(load)
    elements = 1
    for var in inside:
        elements *= hint(var.size)
    found[what] = found.get(what, 0) + elements


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
