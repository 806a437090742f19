"""Traces a segment on fake tensors into an FX graph of ATen calls.

Note [Storage offsets]: the offset at which a tensor begins in its storage changes from pass to pass, as batches are
slices of the data. ATen calls and compiled functions take views relative to their operands, so that offsets do not
matter, except to a call with an explicit offset into an input's storage (`as_strided`), and to code that asks for one
(`storage_offset`). Kernels check alignment when they are launched. Segments write to no memory of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from framesmith_aten.fakes import new_fake_mode, python_kernels
from framesmith_aten.fakes.symbols import symbolic_fake, symbolic_number
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.tidying.cleanup import eliminate_dead
from framesmith_aten.layouts import storage_id
from framesmith_aten.operators import arguments
from framesmith_aten.symbolic import is_symbolic
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards import LocalSource
from framesmith_guards.torch_adapter import OpOverload

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import FakeTensorMode

Values = Sequence[torch.Tensor | int | float | None]
#: The dynamic dimensions of tensors, by position; a dynamic number has an empty entry.
DynamicDims = Mapping[int, Collection[int]]


class OffsetQueries(TorchFunctionMode):
    """Notes whether the code inside asks for storage offsets: see Note [Storage offsets]."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked = self.asked or func in (torch.Tensor.storage_offset, torch.Tensor.untyped_storage)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Traced:
    """A traced segment: `module` takes the values at the positions `inputs`, and returns a tuple of tensors.

    `outputs[i]` is the position of the segment's i-th result in that tuple, None for an absent result. `fakes`: the
    fake values of the trace, one for each value, with symbols for dynamic sizes and numbers. `offset_dependent`: the
    module is right only for tensors with these storage offsets, see Note [Storage offsets].
    """

    module: fx.GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    fakes: tuple[Any, ...]
    mode: FakeTensorMode
    offset_dependent: bool


Capture = Callable[[torch.Tensor], torch.Tensor]
"""Makes an input of the graph, behind all others, of a tensor; returns its fake."""

Run = Callable[[list[Any], OffsetQueries, Capture], list[Any]]


def trace(run: Run, inputs: Values, dynamic_dims: DynamicDims) -> Traced:
    """Trace `run` for values like `inputs`. Raises the errors of `run` on fake tensors, and TraceUnsupported.

    `run` gets fakes, the `OffsetQueries` to enter around code that is not torch's, and a `Capture`. The graph holds
    ATen overloads on plain tensors, `meta["val"]` on every node; it is not functional where a derivative itself mutates
    its intermediates.
    """
    mode = new_fake_mode()
    tracer = GraphTracer(mode)
    tracer.phase = "backward"
    queries = OffsetQueries()
    inputs = _distinct(inputs)
    values = [_fake(mode, value, source_of(index), dynamic_dims.get(index)) for index, value in enumerate(inputs)]
    taken = [index for index, value in enumerate(values) if isinstance(value, torch.Tensor) or is_symbolic(value)]
    for index in taken:
        tracer.placeholder(f"input_{index}", values[index])
    captured: list[Any] = []

    def capture(value: torch.Tensor) -> torch.Tensor:
        fake = mode.from_tensor(value, static_shapes=True)
        last = next(reversed(tracer.graph.find_nodes(op="placeholder")), None)
        with tracer.graph.inserting_before(None) if last is None else tracer.graph.inserting_after(last):
            tracer.placeholder(f"captured_{len(captured)}", fake)
        captured.append(fake)
        return fake

    with torch.no_grad(), mode, tracer, python_kernels(mode):
        results = [_not_a_constant(tracer, value) for value in run(list(values), queries, capture)]
    present = list({id(value): value for value in results if value is not None}.values())
    positions = {id(value): position for position, value in enumerate(present)}
    offset_dependent = queries.asked or _strides_over(tracer.graph, [*values, *captured])
    tracer.graph.output(tuple(tracer.node_of(value) for value in present))
    eliminate_dead(tracer.graph)
    outputs = tuple(None if value is None else positions[id(value)] for value in results)
    return Traced(
        new_module(tracer.attributes, tracer.graph), tuple(taken), outputs, tuple(values), mode, offset_dependent
    )


def _strides_over(graph: fx.Graph, values: Sequence[Any]) -> bool:
    """Whether a call has an explicit storage offset into an input."""
    memory = {storage_id(value) for value in values if isinstance(value, torch.Tensor)}
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and "storage_offset" in arguments(node.target, node.args, node.kwargs):
            tensors = [source.meta["val"] for source in node.all_input_nodes]
            if not memory.isdisjoint(storage_id(value) for value in tensors if isinstance(value, torch.Tensor)):
                return True
    return False


def _distinct(values: Values) -> Values:
    """Return the values as distinct tensor objects: two that happen to be one are two inputs all the same."""
    seen: set[int] = set()
    distinct: list[Any] = []
    for value in values:
        again = isinstance(value, torch.Tensor) and id(value) in seen
        seen.add(id(value))
        distinct.append(value.detach() if again and isinstance(value, torch.Tensor) else value)
    return distinct


def source_of(index: int) -> LocalSource:
    return LocalSource(f"value_{index}")


def _fake(mode: FakeTensorMode, value: Any, source: LocalSource, dynamic_dims: Collection[int] | None) -> Any:
    if isinstance(value, torch.Tensor):
        if dynamic_dims:
            return symbolic_fake(mode, value, source, dynamic_dims)
        return mode.from_tensor(value, static_shapes=True)
    return value if dynamic_dims is None or value is None else symbolic_number(mode, value, source)


def _not_a_constant(tracer: GraphTracer, value: torch.Tensor | None) -> torch.Tensor | None:
    """Return a result that the caller may hold and mutate: a copy of a constant of the graph."""
    if value is None or tracer.node_of(value).op != "get_attr":
        return value
    return torch.clone(value)
