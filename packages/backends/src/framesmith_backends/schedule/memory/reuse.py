"""Liveness of the tensors of a launch list, and reuse of their memory by later allocations.

A dead buffer is given to the next allocation of the same layout if the memory alive at no step between the two comes to
exceed the peak that dropping everything at once would have; otherwise it is dropped. Inputs may or may not be freed by
whoever handed them in: the peak is to stay either way. Symbolic sizes count by their hints.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import fx

from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import is_custom, is_view, op_name
from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.ops import CONVOLUTIONS
from framesmith_backends.ir.program import Layout, is_dense
from framesmith_backends.ir.symbolic.size import hint
from framesmith_backends.schedule.matmuls.operators import OPERANDS
from framesmith_backends.schedule.steps import Allocate, CallStep, Drop, Step, made_by, used_by
from framesmith_guards.torch_adapter import OpOverload

#: Matmuls and convolutions, whose results share no memory with their operands, nor with each other.
MATMULS = frozenset((*OPERANDS, *CONVOLUTIONS))
#: And oneDNN's, which not every torch has.
LINEAR = "_linear_pointwise"


def with_drops(
    steps: Sequence[Step], inputs: Mapping[str, Layout | None], fixed: set[str], kept: set[str]
) -> list[Step]:
    """The steps with a Drop after each tensor's last use, and allocations that take dead buffers.

    The memory of those in `fixed` may be seen later; those in `kept` are needed to the end.
    """
    named = [dict.fromkeys((*used_by(step), *made_by(step))) for step in steps]
    last = {name: at for at, names in enumerate(named) for name in names if name not in kept}
    layouts = {step.name: step.layout for step in steps if isinstance(step, Allocate)}
    free: dict[Layout, list[str]] = {}
    heirs = {step.reuse: step.name for step in steps if isinstance(step, Allocate) and step.reuse is not None}
    alive = _Alive(steps, last, inputs, heirs)
    found: list[Step] = []
    for at, step in enumerate(steps):
        if isinstance(step, Allocate) and step.reuse is None:
            candidates = free.get(step.layout, [])
            chosen = next((name for name in candidates if alive.hold(step.layout, last[name], at)), None)
            if chosen is not None:
                candidates.remove(chosen)
                heirs[chosen] = step.name
                step = replace(step, reuse=chosen)
        found.append(step)
        for name in named[at]:
            if last.get(name) == at and name in layouts and name not in fixed and name not in heirs:
                free.setdefault(layouts[name], []).append(name)
    return _dropped(found, last, heirs)


def _dropped(steps: Sequence[Step], last: Mapping[str, int], heirs: Mapping[str, str]) -> list[Step]:
    """The steps with names deleted: behind their last use, or where another one takes their memory."""
    found: list[Step] = []
    for at, step in enumerate(steps):
        found.append(step)
        if isinstance(step, Allocate) and step.reuse is not None:
            found.append(Drop((step.reuse,)))
        names = dict.fromkeys((*used_by(step), *made_by(step)))
        gone = tuple(name for name in names if last.get(name) == at and name not in heirs)
        if gone:
            found.append(Drop(gone))
    return found


class _Alive:
    """Bytes alive at each step if everything is dropped behind its last use, inputs too, and if they stay."""

    def __init__(
        self,
        steps: Sequence[Step],
        last: Mapping[str, int],
        inputs: Mapping[str, Layout | None],
        heirs: Mapping[str, str],
    ) -> None:
        own, end = list[Life](), len(steps)
        for at, step in enumerate(steps):
            for name in made_by(step):
                while name in heirs:
                    name = heirs[name]
                own.append(Life(bytes_made(step), at, last.get(name, end - 1)))
        sizes = {name: layout_bytes(layout) for name, layout in inputs.items() if layout is not None}
        given = [Life(size, 0, last.get(name, end - 1)) for name, size in sizes.items()]
        self.curves = [bytes_alive(lives, 0, end) for lives in (own, own + given)]
        self.peaks = [max(curve, default=0) for curve in self.curves]

    def hold(self, layout: Layout, died: int, taken: int) -> bool:
        """Keep a dead buffer until it is taken, if the peak allows that."""
        size = layout_bytes(layout)
        between = range(died + 1, taken)
        if any(curve[at] + size > peak for curve, peak in zip(self.curves, self.peaks, strict=True) for at in between):
            return False
        for curve in self.curves:
            for at in between:
                curve[at] += size
        return True


@dataclass(slots=True)
class Life:
    """So many bytes, alive from one tick to another: of a step, or of an item of a run."""

    size: int
    first: int
    last: int


def bytes_alive(lives: Iterable[Life], start: int, end: int) -> list[int]:
    """Return the bytes alive at each tick from `start` to `end`."""
    changes = [0] * (end - start + 1)
    for life in lives:
        if life.first < end and life.last >= start:
            changes[max(life.first - start, 0)] += life.size
            changes[min(life.last + 1, end) - start] -= life.size
    return list(accumulate(changes))[:-1]


def layout_bytes(layout: Layout) -> int:
    """Return the bytes of a buffer of this layout, by hints."""
    return hint(layout.numel) * DTYPES[layout.dtype].itemsize


def bytes_made(step: Step) -> int:
    """Return the bytes of the step's result: 0 for views and reused buffers."""
    if isinstance(step, Allocate):
        return layout_bytes(step.layout) if step.reuse is None else 0
    if not isinstance(step, CallStep) or step.view is not None or is_view(step.call.node.target):
        return 0
    if not isinstance(step.call.node.target, OpOverload):
        return 0
    return sum(_tensor_bytes(value) for value in tensors_in(step.call.node.meta.get("val")))


def _tensor_bytes(value: torch.Tensor) -> int:
    """Return the bytes by the hints of symbolic sizes; 0 where there are none."""
    count = value.numel()
    if not isinstance(count, int):
        count = count.node.hint or 0
    return int(count) * value.itemsize


def private_layouts(steps: Sequence[Step]) -> dict[str, Layout]:
    """Return the layouts of buffers and results of calls that no call may alias."""
    calls = [step for step in steps if isinstance(step, CallStep)]
    shared = {name for step in calls if not (gives_memory(step) or _is_item(step)) for name in step.call.needs}
    makers = {step.call.name for step in calls if gives_memory(step)}
    items = Counter(_item(step) for step in calls if _is_item(step))
    found = {step.name: step.layout for step in steps if isinstance(step, Allocate)}
    for step in calls:
        own = step.call.name in makers or (step.call.needs[:1] and step.call.needs[0] in makers and _is_item(step))
        if own and step.layout is not None and items[_item(step)] <= 1:
            found[step.call.name] = step.layout
    return {name: layout for name, layout in found.items() if name not in shared and is_dense(layout)}


def gives_memory(step: CallStep) -> bool:
    """Whether a call's results are memory of their own, whatever its operands are."""
    return step.view is None and is_matmul(step.call.node)


def is_matmul(node: fx.Node) -> bool:
    """Whether a node calls one of `MATMULS`, or oneDNN's."""
    if is_custom(node.target):
        return False
    return node.target in MATMULS or (node.op == "call_function" and op_name(node.target) == LINEAR)


def _is_item(step: CallStep) -> bool:
    return step.view is None and step.call.node.target is operator.getitem


def _item(step: CallStep) -> tuple[object, ...]:
    return (step.call.needs, *step.call.node.args[1:])
