"""The bodies of control flow: functional ATen graphs, traced by tracers of their own with the fakes of the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.rng_order import rules_for
from framesmith_aten.fakes import python_kernels
from framesmith_aten.graphs.modules import new_module
from framesmith_aten.graphs.nodes import view_root
from framesmith_aten.graphs.tidying.cleanup import canonicalise, eliminate_dead, merge_equal
from framesmith_aten.graphs.tidying.idle_writes import drop_idle_writes
from framesmith_aten.layouts import has_stride
from framesmith_aten.meta import PHASE
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.torch_adapter import aten

Strides = Sequence[Any]


class TorchBody(Protocol):
    """A body of a torch-level graph, as the trace has it."""

    def run_in(self, tracer: GraphTracer, args: Sequence[Any]) -> list[Any]:
        """Run it on functional tensors above another tracer."""
        ...


Run = Callable[[GraphTracer, Sequence[Any]], Sequence[torch.Tensor]]
"""Computes the results of a body from its operands, functional tensors and numbers, above the tracer of the body."""


@dataclass(frozen=True)
class AtenBody:
    """A traced body, fakes of its results, and numbers of the trace around it, which it takes after its operands.

    `drawn` are fakes of what its random operators give.
    """

    module: fx.GraphModule
    results: list[torch.Tensor]
    numbers: list[Any]
    drawn: list[torch.Tensor] = field(default_factory=list)


def current_tracer() -> GraphTracer | None:
    """Return the tracer that records what is called; None where a graph is run, not traced."""
    modes = reversed(unstable.get_current_dispatch_mode_stack())
    return next((mode for mode in modes if isinstance(mode, GraphTracer)), None)


@contextmanager
def making_fakes(tracer: GraphTracer) -> Iterator[None]:
    """Context manager for making fakes that nothing in the graph computes."""
    with functional.below(), unstable.disable_current_modes(), tracer.fake_mode:
        yield


def new_tensor(tracer: GraphTracer, like: torch.Tensor, shape: Sequence[Any], stride: Strides | None) -> torch.Tensor:
    """Return a fake that nothing has computed; without a stride it is contiguous."""
    with making_fakes(tracer):
        if stride is None:
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)


def new_tensors(tracer: GraphTracer, layouts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return fakes of these layouts that nothing has computed."""
    with making_fakes(tracer):
        return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device) for one in layouts]


def example_of(tracer: GraphTracer, value: Any) -> Any:
    """Return a fake with the layout of a value, a number as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    value = functional.current_value(value)
    return new_tensor(tracer, value, value.shape, value.stride())


def slice_of(tracer: GraphTracer, value: torch.Tensor) -> torch.Tensor:
    """Return a fake with the layout of a slice in dimension 0."""
    value = functional.current_value(value)
    return new_tensor(tracer, value, value.shape[1:], value.stride()[1:])


def draws_of(child: GraphTracer) -> list[torch.Tensor]:
    """Return what the random operators of a body have given, as its results."""
    return [*map(functional.wrap, child.drawn)]


def reuse_draws(child: GraphTracer, drawn: Sequence[torch.Tensor]) -> None:
    """Have the random operators of a body give these tensors, of an earlier run of it."""
    if drawn:
        child.saved_draws = map(functional.current_value, drawn)


def trace_body(
    tracer: GraphTracer, run: Run, examples: Sequence[Any], strides: Sequence[Strides | None] = ()
) -> AtenBody:
    """Trace a body on examples of its operands. `strides`: those that the first results must have, where they must."""
    child = GraphTracer(tracer.fake_mode, tracer.lowers)
    child.rules, child.phase = rules_for(child), tracer.phase
    outer = _Numbers(tracer, child)
    child.numbers.outside = outer.node_of
    with _recording(child):
        operands = []
        for at, value in enumerate(examples):
            child.placeholder(f"operand_{at}", value)
            operands.append(functional.wrap(value) if isinstance(value, torch.Tensor) else value)
        found = [one.resolve_conj().resolve_neg() for one in run(child, operands)]
        for one in operands:
            if functional.is_functional(one) and functional.mutation_count(one):
                raise AotUnsupported("body-mutation", "the body of control flow", "it writes to its operands")
        wanted = [*strides, *[None] * (len(found) - len(strides))]
        nodes = [_node_of(child, one, stride) for one, stride in zip(found, wanted, strict=True)]
    module = _finished(child, nodes)
    results: Any = module.graph.output_node().args[0]
    return AtenBody(module, [node.meta["val"] for node in results], outer.captured, child.drawn)


@contextmanager
def _recording(child: GraphTracer) -> Iterator[None]:
    """Inside, this tracer records what is called, and no other."""
    torch.clear_autocast_cache()  # its casts belong to other graphs
    try:
        with unstable.disable_current_modes(), child.fake_mode, child, python_kernels(child.fake_mode):
            yield
    finally:
        torch.clear_autocast_cache()


def _node_of(child: GraphTracer, result: torch.Tensor, stride: Strides | None) -> fx.Node:
    """Return the node of a result, with these strides or those of eager mode."""
    value = functional.current_value(result)
    return child.node_of(laid_out(value, result.stride() if stride is None else stride))


def laid_out(value: torch.Tensor, stride: Strides) -> torch.Tensor:
    """Return a fake tensor of the trace, or a copy of it, with these strides."""
    if has_stride(value, stride):
        return value
    with functional.below():
        frame = aten.empty_strided.default([*value.shape], [*stride], dtype=value.dtype, device=value.device)
        copied: torch.Tensor = aten.copy.default(frame, value)
        return copied


def _finished(child: GraphTracer, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """Clean the graph of a body up; its results become new tensors, each with memory of its own."""
    graph = child.graph
    graph.output(tuple(nodes))
    canonicalise(graph)
    merge_equal(graph)
    drop_idle_writes(graph)
    owned: set[fx.Node] = set()
    output = graph.output_node()
    results: list[fx.Node] = []
    given: Any = output.args[0]
    for node in given:
        root = view_root(node)
        results.append(node)
        if root.op in ("placeholder", "get_attr") or root in owned:
            with graph.inserting_before(output):
                results[-1] = graph.call_function(aten.clone.default, (node,))
            results[-1].meta = dict(node.meta)
            with functional.below(), unstable.disable_current_modes(), child.fake_mode:
                results[-1].meta["val"] = aten.clone.default(node.meta["val"])
        owned.add(root)
    output.args = (tuple(results),)
    eliminate_dead(graph)
    return new_module(dict(child.attributes), graph)


@dataclass
class _Numbers:
    """The symbols of the trace around a body that it computes with: each becomes an operand."""

    tracer: GraphTracer
    child: GraphTracer
    captured: list[Any] = field(default_factory=list)

    def node_of(self, symbol: Any) -> fx.Node:
        """Return a new placeholder. KeyError where the graph around has no node of it."""
        number = self.tracer.numbers.of_expression(symbol).meta["val"]
        graph = self.child.graph
        last = next(iter(reversed(graph.find_nodes(op="placeholder"))), None)
        with graph.inserting_before(None) if last is None else graph.inserting_after(last):
            made = graph.placeholder(f"number_{len(self.captured)}")
        made.meta["val"] = number
        PHASE.set(made, self.child.phase)
        self.captured.append(number)
        return made
