"""Traces a torch-level graph once, forward and (for training) backward, into one functional graph."""

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

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.backward import trace_backward
from framesmith_aot.trace.interpret import run_graph
from framesmith_aot.trace.metadata import GraphMeta, InputPair, Origin, collect
from framesmith_aot.trace.numbers import refusing_new_assumptions
from framesmith_aot.trace.output_groups import NodeShape
from framesmith_aot.trace.rng_order import rules_for
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes import python_kernels
from framesmith_aten.graphs.cleanup import canonicalise, eliminate_dead, merge_equal
from framesmith_aten.graphs.idle_writes import drop_idle_writes
from framesmith_aten.graphs.nodes import are_disjoint, view_root, view_source
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
    """A filter for torch's log: what is asked of data while tracing is taken for granted then, or told as an error."""
    return not (_here.tracing and record.exc_info and record.exc_info[1] and is_data_dependent(record.exc_info[1]))


logging.getLogger(FakeTensorMode.__module__).addFilter(_is_reported)


@dataclass
class JointGraph:
    """The traced graph, and which nodes mean what.

    `inputs` and `tangents` are placeholders; `slots` the fresh results (see `metadata`), `written`
    the final values of the inputs that the graph itself overwrites. `nodes` are the autograd nodes of the
    compiled graph; `tangents` and `grads` hold, for one after the other, a tangent for each of its results and the
    gradient of each of its operands (None: no gradient). For inference all three are empty. `left` holds placeholders
    for what inputs that the call changes, by position, hold when the backward pass runs. `origins` tells of slots
    with gradients where the torch-level graph has them, `views` of the outputs at which autograd nodes end as they do
    at inputs: the slots they are views of (see `GraphMeta.base_slot`). `order` has for each node the
    place of its region among those that `regions_of` finds. `makers`, `writers` and `numbers` are those of `Collected`.
    """

    graph: fx.Graph
    fake_mode: FakeTensorMode
    meta: GraphMeta
    attributes: dict[str, torch.Tensor]
    inputs: list[fx.Node]
    slots: list[fx.Node]
    written: list[fx.Node]
    tangents: list[fx.Node]
    grads: list[fx.Node | None]
    nodes: list[NodeShape] = field(default_factory=list)
    left: dict[int, fx.Node] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)
    views: dict[int, int | None] = field(default_factory=dict)
    order: Sequence[int] = ()
    makers: dict[int, str] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)
    numbers: list[fx.Node] = field(default_factory=list)

    @property
    def training(self) -> bool:
        return bool(self.tangents)

    def take(self, graph: fx.Graph) -> None:
        """Goes on with a graph that a pass has made of this one: the same placeholders and results."""
        self.graph = graph
        placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
        self.inputs = [placeholders[node.name] for node in self.inputs]
        self.tangents = [placeholders[node.name] for node in self.tangents]
        self.left = {at: placeholders[node.name] for at, node in self.left.items()}
        self.read_output()

    def final_value(self, at: int) -> fx.Node:
        """What the call leaves in input `at`, which it changes."""
        if at in self.meta.written:
            return self.written[self.meta.written.index(at)]
        return next(self.slots[copy.slot] for copy in self.meta.copy_back if copy.index == at)

    def write_output(self) -> None:
        """Puts slots, written values, numbers and gradients (in this order) into the graph's output node."""
        for node in reversed(self.graph.nodes):
            if node.op == "output":
                self.graph.erase_node(node)
            break
        self.graph.output((*self.slots, *self.written, *self.numbers, *self.grads))

    def read_output(self) -> None:
        """Takes them back from the output node, after a pass replaced nodes."""
        values: Any = next(iter(reversed(self.graph.nodes))).args[0]
        values = iter(values)
        for name in ("slots", "written", "numbers", "grads"):
            setattr(self, name, list(itertools.islice(values, len(getattr(self, name)))))


@dataclass(frozen=True)
class Binding:
    """Where a graph's operands come from: positions among the distinct inputs, or fixed `values`."""

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
) -> JointGraph:
    """Traces `gm` on the `inputs`, fake tensors and symbolic numbers.

    Raises AotUnsupported, also for errors of the graph's own calls. `binding` says which of `inputs` each placeholder
    and each attribute of `gm` is.
    """
    tracer = GraphTracer(fake_mode, lowers)
    tracer.rules = rules_for(tracer)
    # What was found out of numbers that data tell while the graph was captured is to be found out again here, where it
    # is checked: torch remembers them by tensor (`x.nonzero()`) until this changes.
    fake_mode.epoch += 1
    with _refusing(), _tracing(tracer) as before:
        pairs, nodes = _make_inputs(tracer, inputs)
        try:
            values = {name: pairs[at].run for name, at in binding.attributes.items()} | binding.values
            ran = run_graph(gm, [pairs[at].run for at in binding.placeholders], values, tracer)
        except (AotUnsupported, TraceUnsupported):
            raise
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise AotUnsupported(
                "data-dependent", str(error.func), "its result is not known while compiling"
            ) from error
        except Exception as error:
            if is_data_dependent(error):
                raise AotUnsupported("data-dependent", "a choice by a number", str(error).splitlines()[0]) from error
            raise AotUnsupported("trace-error", f"{type(error).__name__} while tracing", str(error)) from error
        found = collect(
            pairs,
            ran,
            tracer,
            keep_input_mutations=keep_input_mutations,
            grad_mode_after=_compare_ambient(before, ambient.read()),
        )
        joint = JointGraph(tracer.graph, fake_mode, found.meta, tracer.attributes, nodes, [], [], [], [])
        joint.slots = [_fresh_node(tracer, wrapper) for wrapper in found.slots]
        joint.written = [tracer.node_of(value) for value in found.written]
        if training and found.meta.differentiable:
            joint.left = {at: _hand_over(tracer, f"input_{at}_left", pairs[at], nodes[at]) for at in found.meta.changed}
            with refusing_new_assumptions(fake_mode.shape_env):
                back = trace_backward(tracer, found, pairs)
            joint.nodes, joint.tangents, joint.grads = back.nodes, back.tangents, back.grads
            joint.origins, joint.views, joint.makers = found.origins, back.views, found.makers
            joint.order = back.order
            joint.writers = found.writers
        joint.numbers = found.numbers.nodes
    _finish(joint)
    return joint


@contextmanager
def _refusing() -> Iterator[None]:
    """What the tracer refuses, as this package's error."""
    try:
        yield
    except TraceUnsupported as error:
        raise AotUnsupported(error.id, error.what, error.why) from error


@contextmanager
def _tracing(tracer: GraphTracer) -> Iterator[ambient.Ambient]:
    """The tracing environment; yields the ambient switches the graph starts with."""
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
    """Keeps the casts of fake weights that autocast remembers out of real calls."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def _no_saved_tensor_hooks() -> Iterator[None]:
    """Keeps the user's saved-tensor hooks away from the fake tensors autograd saves while tracing."""
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


def _hand_over(tracer: GraphTracer, name: str, pair: InputPair, node: fx.Node) -> fx.Node:
    """A new placeholder, which the input's wrapper shows from now on, behind all that the graph writes to it.

    What eager mode keeps of an input is its memory: the backward pass reads what is there when it runs, which may have
    been changed since by way of `.data`.
    """
    with functional.below():
        value = aten.alias.default(node.meta["val"])
    left = tracer.placeholder(name, value)
    functional.replace_value(pair.run, value)
    return left


def _compare_ambient(before: ambient.Ambient, after: ambient.Ambient) -> bool | None:
    """The grad mode to leave behind, None for no change. Raises AotUnsupported for other changes."""
    if before.autocast != after.autocast or before.nesting != after.nesting:
        raise AotUnsupported("autocast-change", "the graph", "it leaves autocast in another state than it found")
    return after.grad if after.grad != before.grad else None


def _fresh_node(tracer: GraphTracer, wrapper: torch.Tensor) -> fx.Node:
    """The node of a slot's value, with the strides that eager mode gives it."""
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
    """Tidies the graph and makes the slots fresh: none shares memory with another or with an input."""
    roots = [None if grad is None else view_root(grad) for grad in joint.grads]
    joint.write_output()
    canonicalise(joint.graph)
    merge_equal(joint.graph)
    drop_idle_writes(joint.graph)
    joint.read_output()
    _isolate(joint, roots)  # after equal calls, which views of several results may show, have become one
    joint.write_output()
    eliminate_dead(joint.graph)
    joint.read_output()
    for at, node in [*joint.left.items()]:
        if not node.users:
            joint.graph.erase_node(joint.left.pop(at))


def _isolate(joint: JointGraph, roots: Sequence[fx.Node | None]) -> None:
    """`roots`: what gradients showed before equal calls became one. Those of one root are one tensor in eager mode."""
    owned: set[fx.Node] = set()
    for index, node in enumerate(joint.slots):
        root = view_root(node)
        if root.op in ("placeholder", "get_attr"):
            joint.slots[index] = clone_node(joint, node)
        elif root in owned:
            joint.slots[index] = _in_own_memory(joint, node)
        owned.add(view_root(joint.slots[index]))
    returned: dict[tuple[fx.Node, fx.Node | None], fx.Node] = {}
    others: defaultdict[fx.Node, list[tuple[fx.Node, fx.Node | None]]] = defaultdict(list)
    for index, (grad, shown) in enumerate(zip(joint.grads, roots, strict=True)):
        if grad is None:
            continue
        if (grad, shown) not in returned:
            taken = _shares_memory(grad, shown, others[view_root(grad)])
            returned[grad, shown] = given = clone_node(joint, grad) if taken else grad
            others[view_root(given)].append((given, shown))
        joint.grads[index] = returned[grad, shown]


def _shares_memory(grad: fx.Node, shown: fx.Node | None, others: Sequence[tuple[fx.Node, fx.Node | None]]) -> bool:
    """Whether a gradient shows memory that another gradient, an input or a saved value shows too.

    Other parts of one tensor do not: they are that in eager mode. `beside`: the gradients of the same root, and what
    they showed.
    """
    parts = all(of is shown and are_disjoint(grad, other) for other, of in others)
    return view_root(grad).meta["phase"] == "forward" or not parts


def _in_own_memory(joint: JointGraph, node: fx.Node) -> fx.Node:
    """The same value as `node`, at the same place of memory of its own: the same view of a copy of what it shows."""
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
    """A new node that copies `node`, placed right after it."""
    with joint.graph.inserting_after(node):
        copy = joint.graph.call_function(aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    with joint.fake_mode, torch.no_grad():
        copy.meta["val"] = aten.clone.default(node.meta["val"])
    return copy
