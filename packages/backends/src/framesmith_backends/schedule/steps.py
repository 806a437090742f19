"""The steps of a launch list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framesmith_backends.ir.expr import Number
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.matmul import Item
from framesmith_backends.ir.program import BufferView, Call, Layout
from framesmith_backends.ir.symbolic.size import Symbol


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make the buffer `name`; `reuse` names a dead buffer of the same layout to take instead."""

    name: str
    layout: Layout
    reuse: str | None = None


@dataclass(frozen=True, slots=True)
class Inner:
    """A buffer of one run only: its offset in the run's arena, and its size, in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Run:
    """Kernels and matmuls run by one native entry on `buffers`, in order, and on `numbers` known at run time.

    `inner` are buffers that no other step sees, in the arena, which is the last of `buffers`.
    `shared` are others of these: each lies where one of `buffers` lay, which is dead by then.
    """

    entry: str
    items: tuple[Item, ...]
    buffers: tuple[str, ...]
    numbers: tuple[Symbol | Number, ...] = ()
    inner: tuple[Inner, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(item for item in self.items if isinstance(item, Kernel))

    @property
    def positions(self) -> dict[str, int]:
        """Positions of the items' buffers among those of the entry: given ones first, then the inner ones."""
        found = {name: at for at, name in enumerate((*self.buffers, *(one.name for one in self.inner)))}
        return found | {name: found[first] for name, first in self.shared}


@dataclass(frozen=True, slots=True)
class CallStep:
    """An ATen call; with `layout` its result must have these strides, because kernels or views read it.

    With `view` nothing is called: the result is that view.
    """

    call: Call
    layout: Layout | None
    view: BufferView | None = None


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Each of `sources` copied onto the input of the same layout, by one call."""

    targets: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """These names are not used any more."""

    names: tuple[str, ...]


Step = Allocate | Run | CallStep | CopyStep | Drop


def used_by(step: Step) -> tuple[str, ...]:
    """Return the names that the step reads or writes, without those it makes."""
    if isinstance(step, Run):
        return step.buffers
    if isinstance(step, CopyStep):
        return (*step.targets, *step.sources)
    return step.call.needs if isinstance(step, CallStep) else ()


def made_by(step: Step) -> tuple[str, ...]:
    """Return the names that the step makes."""
    if isinstance(step, CallStep):
        return (step.call.name,)
    return (step.name,) if isinstance(step, Allocate) else ()


def run_of(entry: str, items: Sequence[Item]) -> Run:
    used = dict.fromkeys(param.name for item in items for param in item.params)
    numbers = dict.fromkeys(number for item in items for number in item.numbers)
    return Run(entry, tuple(items), tuple(used), tuple(numbers))


def names_of(item: Item, written: bool = False) -> set[str]:
    """Return the buffers of an item, or those of them that it writes to."""
    return {param.name for param in item.params if param.written or not written}


def step_text(step: Step) -> str:
    """The step as a line."""
    if isinstance(step, Allocate):
        source = f"reuse {step.reuse}" if step.reuse else f"new {step.layout.dtype}{list(step.layout.shape)}"
        return f"{step.name} = {source}"
    if isinstance(step, Run):
        arguments = ", ".join((*step.buffers, *(n.name for n in step.numbers)))
        return f"{step.entry}({arguments})  # {', '.join(item.name for item in step.items)}"
    if isinstance(step, CallStep) and step.call.size is not None:
        return f"{step.call.name} = {step.call.size}"
    if isinstance(step, CallStep) and step.view is not None:
        view = step.view
        return f"{step.call.name} = {view.source} from {view.offset}, {list(view.shape)} by {list(view.strides)}"
    if isinstance(step, CallStep):
        return f"{step.call.name} = {step.call.node.target}({', '.join(step.call.needs)})"
    if isinstance(step, CopyStep):
        return "\n".join(f"{target} <- {source}" for target, source in zip(step.targets, step.sources, strict=True))
    return f"del {', '.join(step.names)}"
