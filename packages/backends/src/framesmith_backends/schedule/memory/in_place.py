"""Kernels that write to what they read for the last time, and kernels that copy onto inputs what none may write there.

The graph's form (`framesmith_aten.contract`) has mutations as copies onto inputs, after everything else, and inputs
that are written to overlap no other. A kernel may do the write where nobody sees it earlier: what fails fails before
inputs change, and whoever reads the input reads it before, or at the very point that is written next. The rest is
copied when nothing may fail any more: on the CPU by one native entry, on a GPU by one call for each type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from framesmith_aten.operators import is_view
from framesmith_backends.ir.expr import Expr, Load, indirect_parts, loads
from framesmith_backends.ir.kernel import Kernel, RowPass, Store, params_of, with_numbers
from framesmith_backends.ir.matmul import Item, failures_of
from framesmith_backends.ir.program import Layout, Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.schedule.fusion.domains import variables_of
from framesmith_backends.schedule.memory.reuse import private_layouts
from framesmith_backends.schedule.steps import (
    Allocate,
    CallStep,
    CopyStep,
    Run,
    Step,
    made_by,
    names_of,
    run_of,
    used_by,
)
from framesmith_guards.torch_adapter import aten


def write_in_place(steps: Sequence[Step], program: Program, in_order: bool) -> list[Step]:
    """Return the steps with copies onto inputs done, where possible, by the kernels that compute their source.

    `in_order`: a kernel visits points one after another.
    """
    last = max((k for k, step in enumerate(steps) if isinstance(step, Run)), default=None)
    if last is None or not all(_cannot_fail(step) for step in steps[last + 1 :]):
        return list(steps)
    run = steps[last]
    assert isinstance(run, Run)
    uses = Counter(name for step in steps if isinstance(step, CallStep) for name in step.call.needs)
    items = _Items(run.items, in_order)
    targets: dict[str, str] = {}
    done: set[int] = set()
    for at, (_, pair) in enumerate(_with_copies_of_buffers(steps, program)):
        if pair is None or at < last:
            continue
        target, source = pair
        private = uses[target] == uses[source] == 1 and not {target, source} & {*program.outputs}
        if private and items.is_made_behind_checks(source) and items.may_write(source, target):
            targets[source] = target
            items.rename(source, target)
            done.add(at)
    buffers = tuple(dict.fromkeys(targets.get(buffer, buffer) for buffer in run.buffers))
    run = replace(run, items=tuple(items.items), buffers=buffers)
    kept = [run if k == last else step for k, step in enumerate(steps) if k not in done]
    return [step for step in kept if not (isinstance(step, Allocate) and step.name in targets)]


def copy_by_kernels(steps: Sequence[Step], program: Program) -> list[Step]:
    """The steps with copies of buffers onto inputs of the same layout done by kernels, behind everything else.

    Those of other layouts stay calls: ATen copies such in tiles.
    """
    kernels: list[Kernel] = []
    kept: list[Step] = []
    for step, pair in _with_copies_of_buffers(steps, program):
        if pair is None:
            kept.append(step)
        else:
            kernels.append(_copying(f"copy{len(kernels)}", *pair, program.layouts[pair[0]]))
    if not kernels:
        return kept
    last = kept[-1]
    if isinstance(last, Run):
        return [*kept[:-1], run_of(last.entry, (*last.items, *kernels))]
    return [*kept, run_of("run_copies", kernels)]


def with_copies_together(steps: Sequence[Step], program: Program) -> list[Step]:
    """The steps with all copies of buffers onto inputs of the same layout by one call for each type, at the end.

    That is behind every other copy. The graph's form has all copies give what was computed before any of them, so none
    that stays was to read what these write; and they themselves read buffers, which nothing writes to any more.
    """
    found: dict[str, list[tuple[Step, str, str]]] = {}
    for step, pair in _with_copies_of_buffers(steps, program):
        if pair is not None:
            found.setdefault(program.layouts[pair[0]].dtype, []).append((step, *pair))
    several = [copies for copies in found.values() if len(copies) > 1]
    moved = {id(step) for copies in several for step, *_ in copies}
    together = [CopyStep(*map(tuple, zip(*(pair for _, *pair in copies), strict=True))) for copies in several]
    return [*(step for step in steps if id(step) not in moved), *together]


def _with_copies_of_buffers(steps: Sequence[Step], program: Program) -> Iterator[tuple[Step, tuple[str, str] | None]]:
    """Yield each step, with (target, source) if it copies a buffer onto an input of the same layout."""
    made = {step.name: step.layout for step in steps if isinstance(step, Allocate)}
    for step in steps:
        target, source = _copy(step) or ("", "")
        layout = made.get(source)
        fits = layout is not None and target in program.inputs and program.layouts.get(target) == layout
        yield step, (target, source) if fits else None


def _copying(name: str, target: str, source: str, layout: Layout) -> Kernel:
    """The kernel that copies a buffer onto another of its layout, which is dense."""
    loops = variables_of(() if layout.numel == 1 else (layout.numel,))
    place = index.total((index.of(loop), 1) for loop in loops)
    store = Store(target, place, Load(source, (place,), layout.dtype))
    passes = (RowPass((), (), (store,)),)
    return with_numbers(Kernel(name, params_of(passes), loops, (), loops[0] if loops else None, passes))


class Overwriting:
    """The buffers of steps that kernels may write over: in a run, those that no later step uses.

    `known` are the layouts of buffers that no call may alias and nobody sees behind the steps, `shown` the buffers
    whose shape and strides others see.
    """

    def __init__(self, steps: Sequence[Step], outputs: set[str]) -> None:
        named = [(*used_by(step), *(made_by(step) if isinstance(step, CallStep) else ())) for step in steps]
        self.seen = Counter(name for names in named for name in names)
        self.layouts = {step.name: step.layout for step in steps if isinstance(step, Allocate)}
        self.known = {name: layout for name, layout in private_layouts(steps).items() if name not in outputs}
        calls = [step.call.needs for step in steps if isinstance(step, CallStep) and step.view is None]
        self.shown = outputs.union(*calls, *(used_by(step) for step in steps if isinstance(step, CopyStep)))
        self.first = {name: at for at, names in reversed([*enumerate(named)]) for name in names}
        self._last = {name: at for at, names in enumerate(named) for name in names}

    def within(self, run: Run, at: int) -> tuple[Run, dict[str, str], dict[str, str]]:
        """The run at a position of the steps, with results where its kernels read a buffer for the last time.

        Also the names of those results, and of the buffers, for results that the run alone uses, and for others.
        """
        made = {name: self.layouts[name] for name in run.buffers if name in self.layouts and self.first[name] == at}
        dying = {name: self.known[name] for name in run.buffers if name in self.known and self._last[name] == at}
        run, found = _write_over_dead(run, made, dying, self.shown)
        inner = {name: target for name, target in found.items() if name in dying}
        heirs = {name: target for name, target in found.items() if name not in dying}
        self.known.update({name: self.known[target] for name, target in heirs.items() if name in self.known})
        return run, inner, heirs


def _write_over_dead(
    run: Run, made: Mapping[str, Layout], dying: Mapping[str, Layout], shown: Collection[str]
) -> tuple[Run, dict[str, str]]:
    """The run, with results where their kernel reads a buffer for the last time: their names, and those of the buffers.

    Nobody sees the buffers `made` before the run, nor those `dying` after it.
    """
    items = _Items(run.items, in_order=True)
    layouts, found = dict(dying), dict[str, str]()

    def fits(source: str, target: str) -> bool:
        layout, place = made[source], layouts[target]
        if source in dying or source not in shown:
            return (layout.numel, layout.dtype) == (place.numel, place.dtype)
        return layout == place

    for at, item in enumerate(run.items):
        if not isinstance(item, Kernel):
            continue
        named = [param.name for param in items.items[at].params]
        dead = [name for name in named if name in layouts and items.naming[name][-1] == at]
        for source in [param.name for param in item.params if param.written and param.name in made]:
            fitting = (name for name in dead if name != source and fits(source, name))
            target = next((name for name in fitting if items.may_write(source, name)), None)
            if target is not None and items.naming[source][0] == at:
                items.rename(source, target)
                dead.remove(target)
                found[source] = target
                if source not in dying:
                    del layouts[target]
    buffers = tuple(name for name in run.buffers if name not in found)
    return replace(run, items=tuple(items.items), buffers=buffers), found


def _cannot_fail(step: Step) -> bool:
    if not isinstance(step, CallStep) or step.call.size is not None:
        return True
    return _copy(step) is not None or is_view(step.call.node.target)


def _copy(step: Step) -> tuple[str, str] | None:
    """(target, source) of a copy of one tensor onto another."""
    if not isinstance(step, CallStep) or step.call.node.target is not aten.copy_.default:
        return None
    return (step.call.needs[0], step.call.needs[1]) if len(step.call.needs) == 2 else None


class _Items:
    """The kernels and matmuls of a run, and which of them name a buffer; `in_order`: see `write_in_place`."""

    def __init__(self, items: Sequence[Item], in_order: bool) -> None:
        self.items = list(items)
        self.in_order = in_order
        self.naming: dict[str, list[int]] = {}
        for k, item in enumerate(items):
            for name in names_of(item):
                self.naming.setdefault(name, []).append(k)
        self._first = max((k + 1 for k, item in enumerate(items) if failures_of(item)), default=0)

    def is_made_behind_checks(self, source: str) -> bool:
        """Whether items name the buffer that do not run where a check fails (see `failures_of`), and no others."""
        return self.naming.get(source, (0,))[0] >= self._first

    def may_write(self, source: str, target: str) -> bool:
        """Whether the kernel that makes `source` may write it to `target` instead.

        Every kernel after it leaves the target alone, and it reads the target only where, and before, it writes: at the
        same element, in the pass that writes or in one before, which is done with these elements by then. Where threads
        read an element more than once, at any time, the pass that writes must be the last one, which reduces nothing.
        """
        at = next((k for k in self.naming.get(source, ()) if source in names_of(self.items[k], written=True)), None)
        if at is None or any(k > at for k in self.naming.get(target, ())):
            return False
        kernel = self.items[at]
        if not isinstance(kernel, Kernel) or target in names_of(kernel, written=True):
            return False
        [place, *others] = [store.index for store in kernel.stores if store.buffer == source]
        writing = [k for k, one in enumerate(kernel.passes) if any(store.buffer == source for store in one.stores)]
        indices = indirect_parts(*(store.index for store in kernel.stores))
        read = [load for load in _loads_of(kernel.passes, indices) if load.source in (source, target)]
        if not read:
            return True
        behind = _loads_of(kernel.passes[writing[0] + 1 :]) if writing else read
        if others or not writing or any(load.source in (source, target) for load in behind):
            return False
        is_early = not self.in_order and writing[0] != len(kernel.passes) - 1
        return not is_early and all(load.index == (place,) for load in read)

    def rename(self, source: str, target: str) -> None:
        """Call the buffer `source` by the name `target`, too, which others may name already."""
        changed = self.naming.pop(source)
        for k in changed:
            self.items[k] = self.items[k].on({source: target})
        self.naming[target] = sorted({*self.naming.get(target, ()), *changed})


def _loads_of(passes: Sequence[RowPass], others: Sequence[Expr] = ()) -> list[Load]:
    return loads(*(value for one in passes for value in one.values), *others)
