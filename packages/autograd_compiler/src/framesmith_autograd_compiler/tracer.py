"""Runs a segment on fake tensors and records the ATen calls under it as an FX graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from framesmith_aten.graphs.cleanup import eliminate_dead
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.symbolic import is_symbolic
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards import LocalSource, new_fake_mode, python_kernels
from framesmith_guards.fakes.symbols import symbolic_fake, symbolic_number

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

Values = Sequence[torch.Tensor | int | float | None]
#: The dimensions of tensors that change, by position; a number that changes has an entry, without any.
Changing = Mapping[int, Collection[int]]


@dataclass(frozen=True)
class Traced:
    """`module` takes what is at the positions `inputs`, and returns a tuple of tensors.

    `outputs[i]` is the position of the segment's i-th result in that tuple, None for an absent result. `fakes` are
    what it was traced with, one for each value, of the sizes and numbers that change symbols.
    """

    module: fx.GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    fakes: tuple[Any, ...]
    mode: FakeTensorMode


def trace(run: Callable[[list[Any]], list[Any]], inputs: Values, changing: Changing) -> Traced:
    """Records `run` for values like `inputs`. Raises what `run` raises on fake tensors, and TraceUnsupported.

    The graph holds ATen overloads on plain tensors, `meta["val"]` on every node; it is not functional
    where a derivative itself mutates its intermediates.
    """
    mode = new_fake_mode()
    tracer = GraphTracer(mode)
    tracer.phase = "backward"
    values = [_fake(mode, value, source_of(index), changing.get(index)) for index, value in enumerate(inputs)]
    taken = [index for index, value in enumerate(values) if isinstance(value, torch.Tensor) or is_symbolic(value)]
    for index in taken:
        tracer.placeholder(f"input_{index}", values[index])
    with torch.no_grad(), mode, tracer, python_kernels(mode):
        results = [_not_a_constant(tracer, value) for value in run(list(values))]
    present = list({id(value): value for value in results if value is not None}.values())
    positions = {id(value): position for position, value in enumerate(present)}
    tracer.graph.output(tuple(tracer.node_of(value) for value in present))
    eliminate_dead(tracer.graph)
    outputs = tuple(None if value is None else positions[id(value)] for value in results)
    return Traced(new_module(tracer.attributes, tracer.graph), tuple(taken), outputs, tuple(values), mode)


def source_of(index: int) -> LocalSource:
    """Where guards find the value at a position."""
    return LocalSource(f"value_{index}")


def _fake(mode: FakeTensorMode, value: Any, source: LocalSource, changing: Collection[int] | None) -> Any:
    if isinstance(value, torch.Tensor):
        if changing:
            return symbolic_fake(mode, value, source, changing)
        return mode.from_tensor(value, static_shapes=True)
    return value if changing is None or value is None else symbolic_number(mode, value, source)


def _not_a_constant(tracer: GraphTracer, value: torch.Tensor | None) -> torch.Tensor | None:
    """A result that the caller may keep and change: a constant of the graph is copied."""
    if value is None or tracer.node_of(value).op != "get_attr":
        return value
    return torch.clone(value)
