"""Runs a torch-level graph node by node; the tracer knows each call's node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aot.clock import PartClock
from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional, numbers
from framesmith_aot.trace.checkpoints import packing
from framesmith_aot.trace.lazy_bits import Bits
from framesmith_aot.trace.replacements.table import REPLACEMENTS, called, in_torchs_names
from framesmith_aten import tensor_methods
from framesmith_aten.assumptions import is_assertion
from framesmith_aten.checks.ignored_warnings import without_warnings
from framesmith_aten.checks.overlaps import Overlaps
from framesmith_aten.graphs.autograd_calls import new_leaf, through_one_node
from framesmith_aten.graphs.control_flow import BODIES
from framesmith_aten.graphs.numbers import FUNCTIONS
from framesmith_aten.graphs.step_parts import part_of
from framesmith_aten.graphs.transforms import BodyInterpreter
from framesmith_aten.layouts import share_storage, storage_id
from framesmith_aten.meta import CHECKPOINT, EXAMPLE
from framesmith_aten.operators import op_name
from framesmith_aten.symbolic import is_symbolic
from framesmith_aten.tracing.functional_forms import run_functionally, writing_operator
from framesmith_aten.tracing.tracer import GraphTracer

#: In-place functions of tensor lists: functionalised, they move no version counter, and autograd does not record them.
LIST_MUTATIONS = frozenset(
    name for name in dir(torch) if name.startswith(("_foreach_", "_fused_")) and name.endswith("_")
)

#: Calls that a functional graph cannot express, and why.
REFUSED_METHODS: tuple[tuple[frozenset[str], str], ...] = (
    (tensor_methods.AUTOGRAD_STATE, "its change of the tensor object cannot be replayed after the graph"),
    (tensor_methods.STORAGE, "the tensor's memory is handled directly"),
    (tensor_methods.ENGINE, "it writes to `.grad` of tensors outside the graph"),
    (tensor_methods.DATA, "its value is not known while compiling"),
    (tensor_methods.CALLBACK, "it calls a Python function for each element"),
)


@dataclass(frozen=True)
class Ran:
    """A run of a graph: its flat outputs, the names of the nodes that made them, and what else happened.

    `histories`: by output that shares memory and that an autograd.Function has led to, a copy with its history.
    `writers`: the last recorded node that wrote to memory, by `framesmith_aten.layouts.storage_id`. `leaves`: the
    results of `new_leaf`. `led`: the results of `through_one_node`, by call.
    """

    outputs: list[Any]
    makers: list[str]
    writers: Mapping[int, str]
    histories: Mapping[int, torch.Tensor]
    leaves: Sequence[torch.Tensor]
    led: Sequence[tuple[torch.Tensor, ...]]


@contextmanager
def _transforms_left() -> Iterator[None]:
    """Leave the function transforms that a graph of torch.compile has entered when it fails inside them."""
    depth = unstable.get_dynamic_layer_stack_depth()
    try:
        yield
    except BaseException:
        unstable.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        raise


@_transforms_left()
def run_graph(
    gm: fx.GraphModule,
    args: Sequence[Any],
    attributes: dict[str, Any],
    tracer: GraphTracer,
    clock: PartClock | None = None,
) -> Ran:
    env: dict[fx.Node, Any] = {}
    inputs = iter(args)
    writers: dict[int, str] = {}
    overlaps, facts = Overlaps(tracer.parts), numbers.Facts(tracer, gm.graph)
    for value in [*args, *attributes.values()]:
        overlaps.note(value)
    bits = Bits()
    for value in _wrappers((args, attributes)):
        bits.note(value)
    for node in gm.graph.nodes:
        tracer.source = node
        if clock is not None:
            clock.switch(part_of(node))
        if node.op == "placeholder":
            env[node] = next(inputs)
        elif node.op == "get_attr":
            held = attributes[node.target]
            env[node] = _Body(held) if isinstance(held, fx.GraphModule) else held
        elif node.op == "output":
            tracer.source = None
            outputs = _flat_outputs(fx.node.map_arg(node.args[0], env.__getitem__))
            makers = {id(value): maker.name for maker, value in reversed(env.items())}
            named = [makers.get(id(value), "") for value in outputs]
            leaves = [env[leaf] for leaf in gm.graph.find_nodes(op="call_function", target=new_leaf)]
            led = [env[call] for call in gm.graph.find_nodes(op="call_function", target=through_one_node)]
            histories = _histories([*args, *attributes.values()], outputs)
            return Ran(outputs, named, writers, histories, leaves, led)
        else:
            before = tracer.undone_by_sums
            with packing(tracer, CHECKPOINT.get(node)):
                env[node] = _call(node, env, overlaps, writers, tracer, facts)
            for value in _wrappers(env[node]):
                bits.note(value)
            bits.restore()
            overlaps.note(env[node])
            for value in _wrappers(env[node]) if tracer.undone_by_sums > before else ():
                overlaps.note_undone_by_sums(value)
            facts.check(node, env)
    raise AotUnsupported("no-output", "a graph without an output node", "there is nothing to return")


def _histories(inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Return the copies of `Ran.histories`."""
    shown = Counter(storage_id(value) for value in {id(each): each for each in _wrappers([*inputs, *outputs])}.values())
    found: dict[int, torch.Tensor] = {}
    with torch.enable_grad():
        for at, value in enumerate(outputs):
            if functional.is_functional(value) and shown[storage_id(value)] > 1 and is_view_by_function(value):
                found[at] = value.clone()
    return found


def is_view_by_function(value: torch.Tensor) -> bool:
    """Whether an autograd.Function leads from its base to this view: a replayed view would skip the Function."""
    node = value.grad_fn if value._is_view() and functional.differentiable(value) else None
    ends = None if value._base is None else value._base.grad_fn
    while node is not None and node is not ends:
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


class _Body(BodyInterpreter):
    """A graph that a node holds, run as it was captured, with functorch above the tracer."""

    def run_in(self, tracer: GraphTracer, args: Sequence[Any]) -> list[Any]:
        """Run the graph as one of its own, whose operators this tracer records: the body of control flow."""
        body: Any = self.module
        held = {node.target: getattr(body, node.target) for node in body.graph.find_nodes(op="get_attr")}
        return run_graph(body, args, held, tracer).outputs

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return called(target, args, kwargs) if target in BODIES else super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        if n.op in ("call_function", "call_method"):
            refuse_method(tensor_methods.method_of(n.target), *self.fetch_args_kwargs_from_env(n))
        return super().run_node(n)


def _call(
    node: fx.Node,
    env: dict[fx.Node, Any],
    overlaps: Overlaps,
    writers: dict[int, str],
    tracer: GraphTracer,
    facts: numbers.Facts,
) -> Any:
    args = fx.node.map_arg(node.args, lambda operand: numbers.as_known(env[operand]))
    kwargs = fx.node.map_arg(node.kwargs, lambda operand: numbers.as_known(env[operand]))
    if node.target is unstable.check:
        facts.note_check(node, args)
    facts.note_asserted(node, env)
    if is_assertion(node) and facts.has_checked(args[0]):
        return None
    if node.target in FUNCTIONS and any(map(is_symbolic, args)) and not any(map(torch.is_tensor, args)):
        return numbers.call(tracer, node, args, kwargs)
    before = [
        (value, functional.mutation_count(value), value._version, value.shape, value.stride())
        for value in _wrappers((args, kwargs))
    ]
    with without_warnings():  # capture has already warned
        result = _run(node, args, kwargs)
    numbers.note_result(tracer, node, result)
    result = _in_own_memory_as_captured(node, env, result)
    for value, count, version, size, stride in before:
        if functional.mutation_count(value) != count:
            if op_name(node.target) in LIST_MUTATIONS and value._version == version:
                torch.autograd.graph.increment_version(value)
            overlaps.check(value, str(node.target))
            functional.keep_layout(value, size, stride)
            if torch.is_grad_enabled() and value.requires_grad:
                writers[storage_id(value)] = node.name
    return result


def _in_own_memory_as_captured(node: fx.Node, env: Mapping[fx.Node, Any], result: Any) -> Any:
    """Return a copy of the result where it owned its memory at capture: `contiguous` of a non-contiguous tensor.

    An operand that was written to in place may be contiguous here: eager mode's memory has gaps, a functional value has
    none.
    """
    example = EXAMPLE.get(node) if node.meta else None
    if not isinstance(example, torch.Tensor) or not functional.is_functional(result):
        return result
    for source in node.all_input_nodes:
        operand, before = env[source], EXAMPLE.get(source)
        aliased = functional.is_functional(operand) and storage_id(operand) == storage_id(result)
        if aliased and isinstance(before, torch.Tensor) and not share_storage(before, example):
            return result.clone()
    return result


def _run(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if node.op == "call_module":
        raise AotUnsupported("module-call", f"a call of submodule {node.target!r}", "the graph must be flat")
    refuse_method(tensor_methods.method_of(node.target), args, kwargs)
    if tensor_methods.concerns_pinning(node.target, kwargs):
        what = f"pinned memory ({op_name(node.target)})"
        raise AotUnsupported("pinned-memory", what, "a graph makes tensors in memory of its own")
    if node.target is new_leaf:
        return functional.new_leaf(*args)
    if node.op == "call_method":
        instead = REPLACEMENTS.get(getattr(torch.Tensor, str(node.target), None))
        if instead is not None:
            return instead(*args, **in_torchs_names(kwargs))
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    many = op_name(node.target) in LIST_MUTATIONS and torch.is_grad_enabled()
    if many and any(one.requires_grad for one in _wrappers((args, kwargs))):
        what = f"torch.{op_name(node.target)} of tensors that require gradients"
        raise AotUnsupported("unrecorded-change", what, "the trace would not record their new history")
    op = writing_operator(node.target)
    if op is not None:
        return run_functionally(op, args, kwargs)
    return called(node.target, args, kwargs)


def _wrappers(value: Any) -> Iterator[torch.Tensor]:
    if functional.is_functional(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _wrappers(item)
    elif isinstance(value, dict):
        yield from _wrappers(tuple(value.values()))


def refuse_method(name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise AotUnsupported for a tensor method that a functional graph cannot express."""
    for names, reason in REFUSED_METHODS:
        if name in names and not _changes_nothing(name, args, kwargs):
            raise AotUnsupported("tensor-method", f"Tensor.{name}", reason)


def _changes_nothing(name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    wanted = kwargs.get("requires_grad", args[1] if len(args) > 1 else True)
    return name == "requires_grad_" and bool(args[0].requires_grad) == bool(wanted)


def _flat_outputs(outputs: Any) -> list[Any]:
    if not isinstance(outputs, (tuple, list)):
        raise AotUnsupported("output-form", f"a graph output of type {type(outputs).__name__}", "a tuple is expected")
    for item in outputs:
        if isinstance(item, (tuple, list, dict)):
            raise AotUnsupported("output-form", "a nested graph output", "a flat tuple of tensors is expected")
    return list(outputs)
