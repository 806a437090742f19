"""The joint graph: a torch-level graph traced once, forward and (for training) backward, in functional form."""

from __future__ import annotations

import itertools
import logging
import operator
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from framesmith_aot.clock import PartClock
from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.backward import JointNode, trace_backward
from framesmith_aot.trace.checkpoints import mark_readers
from framesmith_aot.trace.collect import InputPair, collect
from framesmith_aot.trace.control_flow.shared import TraceShared, share_bodies
from framesmith_aot.trace.interpret import run_graph
from framesmith_aot.trace.metadata import GraphMeta
from framesmith_aot.trace.numbers import refusing_new_assumptions
from framesmith_aot.trace.rng_order import rules_for
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes import python_kernels
from framesmith_aten.graphs.nodes import are_disjoint, view_root, view_source
from framesmith_aten.graphs.tidying.cleanup import canonicalise, eliminate_dead, merge_equal
from framesmith_aten.graphs.tidying.idle_writes import drop_idle_writes
from framesmith_aten.graphs.tidying.unused_steps import drop_unused_steps
from framesmith_aten.meta import PHASE
from framesmith_aten.symbolic import all_equal, is_data_dependent
from framesmith_aten.tracing.decompositions import Lowers
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.contexts import ambient
from framesmith_guards.torch_adapter import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    aten,
)


class _Here(threading.local):
    """Whether this thread is tracing."""

    tracing = False


_here = _Here()


def _is_reported(record: logging.LogRecord) -> bool:
    """Filter torch's log: such an error while tracing becomes an assumption, or an error of this package.

    Errors are data-dependent ones, and those of guards that are refused since the compiled frame's are taken.
    """
    if not _here.tracing:
        return True
    refused = str(record.msg).startswith("failed during evaluate_expr")
    return not (refused or (record.exc_info and record.exc_info[1] and is_data_dependent(record.exc_info[1])))


for _module in (FakeTensorMode.__module__, "torch.fx.experimental.symbolic_shapes"):
    logging.getLogger(_module).addFilter(_is_reported)


@dataclass
class JointGraph:
    """The traced graph, forward and (for training) backward, and the roles of its nodes.

    `inputs` and `late_inputs` are placeholders: the inputs at the call, and, by position, the contents of mutated
    inputs when the backward pass runs. Results: the `slots` (see `metadata`), the final values of the inputs that the
    graph itself overwrites, `numbers` (`Collected.numbers`), and the gradients of the autograd `nodes` (none for
    inference). `joined`: sets of slots that have one node together (see `sets_to_join`).
    """

    graph: fx.Graph
    fake_mode: FakeTensorMode
    meta: GraphMeta
    attributes: dict[str, torch.Tensor]
    inputs: list[fx.Node]
    slots: list[fx.Node]
    written: list[fx.Node]
    numbers: list[fx.Node]
    nodes: list[JointNode] = field(default_factory=list)
    late_inputs: dict[int, fx.Node] = field(default_factory=dict)
    joined: list[frozenset[int]] = field(default_factory=list)

    @property
    def training(self) -> bool:
        return bool(self.nodes)

    @property
    def tangents(self) -> list[fx.Node]:
        return [tangent for node in self.nodes for tangent in node.tangents]

    @property
    def grads(self) -> list[fx.Node]:
        return [grad for node in self.nodes for grad in node.grads if grad is not None]

    def take(self, graph: fx.Graph) -> None:
        """Replace the graph by a pass's result, with the same placeholders and results."""
        self.graph = graph
        placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
        self.inputs = [placeholders[node.name] for node in self.inputs]
        self.late_inputs = {at: placeholders[node.name] for at, node in self.late_inputs.items()}
        for node in self.nodes:
            node.tangents = [placeholders[tangent.name] for tangent in node.tangents]
        self.read_output()

    def final_value(self, at: int) -> fx.Node:
        copy = self.meta.inputs[at].copy
        return self.written[self.meta.written.index(at)] if copy is None else self.slots[copy.slot]

    def write_output(self) -> None:
        """Put slots, written values, numbers and gradients (in this order) into the graph's output node."""
        for node in reversed(self.graph.nodes):
            if node.op == "output":
                self.graph.erase_node(node)
            break
        grads = itertools.chain.from_iterable(node.grads for node in self.nodes)
        self.graph.output((*self.slots, *self.written, *self.numbers, *grads))

    def read_output(self) -> None:
        """Take them back from the output node, after a pass replaced nodes."""
        values: Any = iter(next(iter(reversed(self.graph.nodes))).args[0])
        for owner, name in (*((self, name) for name in RESULTS), *((node, "grads") for node in self.nodes)):
            setattr(owner, name, list(itertools.islice(values, len(getattr(owner, name)))))


#: The results of the forward pass in the joint graph's output node.
RESULTS = ("slots", "written", "numbers")


@dataclass(frozen=True)
class Binding:
    """The values of a graph's operands: positions among the distinct inputs, or fixed `values`."""

    placeholders: list[int]
    attributes: dict[str, int]
    values: dict[str, Any]


def trace_joint(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    binding: Binding,
    fake_mode: FakeTensorMode,
    lowers: Lowers,
    *,
    training: bool,
    keep_input_mutations: bool,
    trace_shared: TraceShared | None = None,
    gradients: bool = False,
    join_groups: bool = False,
    clock: PartClock | None = None,
) -> JointGraph:
    """Trace `gm` on the `inputs`, fake tensors and symbolic numbers.

    `trace_shared` traces bodies that calls share; without it they run in place. `gradients`: the results are gradients,
    which nobody needs as views of tensors that nobody has. `join_groups`: see `sets_to_join`. `clock` measures the time
    of each part.

    `binding`: which of `inputs` each placeholder and each attribute of `gm` is. Raises AotUnsupported, also for errors
    of the graph's own calls.
    """
    tracer = GraphTracer(fake_mode, lowers)
    tracer.rules = rules_for(tracer)
    if trace_shared is not None:
        share_bodies(tracer, trace_shared)
    # Torch caches unbacked sizes by tensor (`x.nonzero()`) until this changes. Assumptions of the capture have to be
    # made again here, where they are checked.
    fake_mode.epoch += 1
    with _refusing(), _tracing(tracer) as before:
        pairs, nodes = _make_inputs(tracer, inputs)
        try:
            values = {name: pairs[at].run for name, at in binding.attributes.items()} | binding.values
            ran = run_graph(gm, [pairs[at].run for at in binding.placeholders], values, tracer, clock)
        except (AotUnsupported, TraceUnsupported):
            raise
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise AotUnsupported(
                "data-dependent", str(error.func), "its result is not known while compiling"
            ) from error
        except Exception as error:
            if is_data_dependent(error):
                raise AotUnsupported("data-dependent", "a data-dependent branch", str(error).splitlines()[0]) from error
            raise AotUnsupported("trace-error", f"{type(error).__name__} while tracing", str(error)) from error
        found = collect(
            pairs,
            ran,
            tracer,
            keep_input_mutations=keep_input_mutations,
            grad_mode_after=_compare_ambient(before, ambient.read()),
            alone=gradients,
        )
        slots = [_fresh_node(tracer, wrapper) for wrapper in found.slots]
        written = [tracer.node_of(value) for value in found.written]
        numbers = found.numbers.nodes  # grows in the backward pass
        joint = JointGraph(tracer.graph, fake_mode, found.meta, tracer.attributes, nodes, slots, written, numbers)
        if training and found.meta.differentiable:
            if clock is not None:
                clock.switch("backward")
            joint.late_inputs = {at: _late_input(tracer, at, pairs[at], nodes[at]) for at in found.meta.mutated}
            with refusing_new_assumptions(fake_mode.shape_env):
                joint.nodes, joint.joined = trace_backward(tracer, found, pairs, join_groups)
    _finish(joint)
    if clock is not None:
        clock.stop()
    return joint


@contextmanager
def _refusing() -> Iterator[None]:
    """Inside, the tracer's errors are raised as this package's."""
    try:
        yield
    except TraceUnsupported as error:
        raise AotUnsupported(error.id, error.what, error.why) from error


@contextmanager
def _tracing(tracer: GraphTracer) -> Iterator[ambient.Ambient]:
    """Set up the tracing environment; yields the ambient modes that the graph starts with."""
    with ambient.preserved() as before, torch.inference_mode(False), _no_saved_tensor_hooks():
        unstable.set_grad_enabled(before.grad)
        with (
            _own_autocast_cache(),
            torch.autograd.set_multithreading_enabled(False),
            tracer.fake_mode,
            tracer,
            functional.functionalising(),
            python_kernels(tracer.fake_mode),
            _noted_as_tracing(),
        ):
            yield ambient.read()


@contextmanager
def _noted_as_tracing() -> Iterator[None]:
    before, _here.tracing = _here.tracing, True
    try:
        yield
    finally:
        _here.tracing = before


@contextmanager
def _own_autocast_cache() -> Iterator[None]:
    """Keep casts of fake weights out of autocast's cache for real calls."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def _no_saved_tensor_hooks() -> Iterator[None]:
    """Keep the user's saved-tensor hooks from the fake tensors that autograd saves while tracing."""
    if unstable.top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: value):
        yield


def _make_inputs(tracer: GraphTracer, inputs: Sequence[Any]) -> tuple[list[InputPair], list[fx.Node]]:
    pairs: list[InputPair] = []
    nodes: list[fx.Node] = []
    for index, value in enumerate(inputs):
        nodes.append(tracer.placeholder(f"input_{index}", value, guarded=True))
        if not isinstance(value, torch.Tensor):
            pairs.append(InputPair(value, value, False, True))
            continue
        leaf, run = functional.wrap_input(value, value.requires_grad, value.is_leaf)
        pairs.append(InputPair(leaf, run, value.requires_grad, value.is_leaf, run.grad_fn, run._version))
    return pairs, nodes


def _late_input(tracer: GraphTracer, at: int, pair: InputPair, node: fx.Node) -> fx.Node:
    """Return a new placeholder; it becomes the value of the input's wrapper, after all writes of the graph.

    Eager mode saves an input's memory: the backward pass reads its contents then, which `.data` may have changed.
    """
    with functional.below():
        value = aten.alias.default(node.meta["val"])
    late = tracer.placeholder(f"input_{at}_late", value)
    functional.replace_value(pair.run, value)
    return late


def _compare_ambient(before: ambient.Ambient, after: ambient.Ambient) -> bool | None:
    """Return the grad mode to leave, None for no change. Raises AotUnsupported for other changes."""
    if before.autocast != after.autocast or before.nesting != after.nesting:
        raise AotUnsupported("autocast-change", "the graph", "it leaves autocast in another state")
    return after.grad if after.grad != before.grad else None


def _fresh_node(tracer: GraphTracer, wrapper: torch.Tensor) -> fx.Node:
    """Return the node of a slot's value, with the strides of eager mode."""
    value = functional.current_value(wrapper)
    node = tracer.node_of(value)
    if all_equal(value.stride(), wrapper.stride()):
        return node
    with functional.below():
        frame = aten.empty_strided.default(
            list(wrapper.shape), list(wrapper.stride()), dtype=value.dtype, device=value.device
        )
        return tracer.node_of(aten.copy.default(frame, value))


def _finish(joint: JointGraph) -> None:
    """Clean the graph, and give each slot memory of its own."""
    roots = [[None if grad is None else view_root(grad) for grad in node.grads] for node in joint.nodes]
    joint.write_output()
    mark_readers(joint.graph)
    canonicalise(joint.graph)
    merge_equal(joint.graph)
    drop_idle_writes(joint.graph)
    joint.read_output()
    _isolate(joint, roots)  # after `merge_equal`: several slots may be views of one call
    joint.write_output()
    eliminate_dead(joint.graph)
    drop_unused_steps(joint.graph)
    eliminate_dead(joint.graph)
    joint.read_output()
    for at, node in [*joint.late_inputs.items()]:
        if not node.users:
            joint.graph.erase_node(joint.late_inputs.pop(at))


def _isolate(joint: JointGraph, roots: Sequence[Sequence[fx.Node | None]]) -> None:
    """Copy slots and gradients that share memory. `roots`: the roots of gradients before equal calls were merged."""
    owned: set[fx.Node] = set()
    for index, slot in enumerate(joint.slots):
        root = view_root(slot)
        if root.op in ("placeholder", "get_attr"):
            joint.slots[index] = clone_node(joint, slot)
        elif root in owned:
            joint.slots[index] = _in_own_memory(joint, slot)
        owned.add(view_root(joint.slots[index]))
    returned: dict[tuple[fx.Node, fx.Node | None], fx.Node] = {}
    others: defaultdict[fx.Node, list[tuple[fx.Node, fx.Node | None]]] = defaultdict(list)
    for node, shown_by in zip(joint.nodes, roots, strict=True):
        for index, (grad, shown) in enumerate(zip(node.grads, shown_by, strict=True)):
            if grad is None:
                continue
            if (grad, shown) not in returned:
                taken = _shares_memory(grad, shown, others[view_root(grad)])
                returned[grad, shown] = given = clone_node(joint, grad) if taken else grad
                others[view_root(given)].append((given, shown))
            node.grads[index] = returned[grad, shown]


def _shares_memory(grad: fx.Node, shown: fx.Node | None, others: Sequence[tuple[fx.Node, fx.Node | None]]) -> bool:
    """Whether a gradient shares memory with another gradient, an input or a saved value.

    Disjoint parts of one tensor may: they do in eager mode. `others`: the gradients of the same root, and their roots
    before.
    """
    parts = all(of is shown and are_disjoint(grad, other) for other, of in others)
    return PHASE.of(view_root(grad)) == "forward" or not parts


def _in_own_memory(joint: JointGraph, node: fx.Node) -> fx.Node:
    """Return the same view as `node` of a copy of its base."""
    source = view_source(node)
    if source is None:
        return clone_node(joint, node)
    instead = {source: _in_own_memory(joint, source)}
    for step in (node.args[0], node) if node.target is operator.getitem else (node,):
        assert isinstance(step, fx.Node)
        with joint.graph.inserting_after(step):
            instead[step] = joint.graph.node_copy(step, lambda used: instead.get(used, used))
    return instead[node]


def clone_node(joint: JointGraph, node: fx.Node) -> fx.Node:
    with joint.graph.inserting_after(node):
        copy = joint.graph.call_function(aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    with joint.fake_mode, torch.no_grad():
        copy.meta["val"] = aten.clone.default(node.meta["val"])
    return copy
