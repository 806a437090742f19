"""The generated function around a graph with gradients: it applies one autograd node after the other.

The graph runs once, in the forward of the first node, and leaves its results in a list. Each node takes its operands
and returns its results, to which autograd ties it; a result that only other nodes read is an empty tensor of the right
shape, which carries an autograd edge.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.runtime.autograd_node import AutogradNode, Parameter, apply_of, forward_text
from framesmith_aot.runtime.codegen import (
    FunctionText,
    count_versions,
    number_name,
    slot_name,
    tuple_text,
    unpacking,
    view_name,
    view_statements,
    write_mutations,
    write_outputs,
)
from framesmith_aot.runtime.compiled import CallModes, CallShape, begin, write_calls
from framesmith_aot.runtime.derivatives.second_order import SecondOrder, leading_to_inputs
from framesmith_aot.runtime.histories import alias_before_write, history_text
from framesmith_aot.runtime.numbers import ScalarText
from framesmith_aot.trace.metadata import GraphMeta, InputView
from framesmith_aot.trace.output_groups import End, Hidden, NodeResult, Source
from framesmith_aot.trace.views import numbers_of_steps
from framesmith_aten.contract import BoxedFn

#: A leaf for autograd nodes whose gradients are dropped: it gets none.
_DROPPED = torch.empty((), requires_grad=True)


def training_function(
    run: BoxedFn,
    meta: GraphMeta,
    shape: CallShape,
    modes: CallModes,
    nodes: Sequence[AutogradNode],
    second: SecondOrder | str,
    numbers: ScalarText,
) -> tuple[FunctionText, list[FunctionText]]:
    """Return the texts of the function around a graph with gradients, and of its nodes' forwards.

    `second` gives second derivatives, or says why there are none.
    """
    text = begin(shape)
    numbers.write(text, shape.names())
    writing = _Writing(text, meta, shape.names(), nodes, second, numbers)
    viewed, saved = _viewed(nodes, meta), {at for node in nodes for at in node.part.saved_inputs}
    versioned = [at for at in meta.written if meta.inputs[at].versioned]
    # An input with a node may be a view with a history: the write gives it another node, which later readers see.
    counted = [at for at in versioned if meta.inputs[at].has_node or at in viewed or at not in saved]
    # A written input may overlap any other input that is a view of the same tensor.
    for at in [at for at, one in enumerate(meta.inputs) if one.has_node] if counted else ():
        name = writing.before[at] = f"before{at}"
        text.line(f"{name} = {text.bind('alias_before_write', alias_before_write)}({writing.inputs[at]})")
    # Before nodes save other parts of the same tensors, which share the version counter and no memory.
    count_versions(text, [writing.inputs[at] for at in counted])
    given = _given_to_all(writing)
    for name, value in given.items():
        text.line(f"{name} = {value}")
    forwards: list[FunctionText] = []
    calls: list[str] = []
    if meta.graph_first:  # nodes read them
        write_calls(text, ["results.extend(graph([*inputs]))"], replace(modes, grad=False))
        text.bind("graph", run)
        _write_known_after_graph(writing)
    for index, node in enumerate(nodes):
        forwards.append(
            forward_text(None if index or meta.graph_first else run, node, list(given), modes.unwatched, numbers)
        )
        applied = text.bind(f"node{index}", apply_of(forwards[-1], node, index, len(given), second))
        calls += _node_calls(writing, index, applied, [*given])
        if index == 0 and not meta.graph_first:
            calls += [f"{number_name(at)} = results[{position}]" for at, position in numbers.results.items()]
    write_calls(text, calls, replace(modes, unwatched=False))
    if not meta.graph_first:
        _write_slots_without_gradients(text, meta)
    write_mutations(text, meta, writing.inputs, record=modes.record, copied=writing.copied, counted=counted)
    _write_notes(writing)
    write_outputs(text, meta, writing.inputs, record=modes.record, made=writing.made)
    return text, forwards


@dataclass(frozen=True)
class _Writing:
    """The function being written, and the names of its inputs.

    `made`: what `view_statements` has written so far. `copied`: the names of inputs that have received slots, by slot.
    `before`: the names of aliases that inputs had before they were written to, by position.
    """

    text: FunctionText
    meta: GraphMeta
    inputs: Sequence[str]
    nodes: Sequence[AutogradNode]
    second: SecondOrder | str
    numbers: ScalarText
    made: set[int | str] = field(default_factory=set)
    copied: dict[int, str] = field(default_factory=dict)
    before: dict[int, str] = field(default_factory=dict)

    @property
    def noted(self) -> list[int]:
        return sorted({at for node in self.nodes for at in node.noted})


def _write_known_after_graph(writing: _Writing) -> None:
    for at, position in writing.numbers.results.items():
        writing.text.line(f"{number_name(at)} = results[{position}]")
    _write_slots_without_gradients(writing.text, writing.meta)


def _write_slots_without_gradients(text: FunctionText, meta: GraphMeta) -> None:
    for index in _slots_without_gradients(meta):
        text.line(f"{slot_name(index)} = results[{index}]")


def _slots_without_gradients(meta: GraphMeta) -> list[int]:
    return [index for index, slot in enumerate(meta.slots) if not slot.differentiable]


def _viewed(nodes: Sequence[AutogradNode], meta: GraphMeta) -> set[int]:
    """Return the inputs of which a node reads a returned view: a later mutation would give the view another history."""
    ends = {source for node in nodes for source in node.part.shape.sources if isinstance(source, End)}
    roles = [meta.outputs[end.position].role for end in ends if end.kind == "output"]
    return {role.index for role in roles if isinstance(role, InputView)}


def _given_to_all(writing: _Writing) -> dict[Parameter, str]:
    """Return the names that each node's forward takes after its operands, and the expressions they stand for."""
    text, inputs = writing.text, writing.inputs
    given: dict[Parameter, str] = {"inputs": tuple_text(inputs)}
    if (
        writing.meta.graph_first
        or _slots_without_gradients(writing.meta)
        or len(writing.nodes) > 1
        or writing.numbers.returned
    ):
        given["results"] = "[]"
    saving = [node.part for node in writing.nodes if node.part.reads]
    if saving and isinstance(writing.second, SecondOrder):
        watched = set.intersection(*[part.saved_inputs for part in saving])
        given["rerun"] = writing.second.rerun_expression(text, inputs, writing.before, watched)
    elif saving:
        given["rerun"] = leading_to_inputs(text, writing.meta, inputs, writing.before)
    if any(node.user_tensors for node in writing.nodes):
        given["user_tensors"] = "{}"
    if writing.noted:
        given["written"] = "{}"
    return given


def _node_calls(writing: _Writing, index: int, applied: str, given: Sequence[str]) -> Iterator[str]:
    """Yield the statements that apply a node, after those that make its operands."""
    node = writing.nodes[index].part.shape
    for source in node.sources:
        for slot in _slots(writing, source):
            yield from _receiving(writing, index, slot)
        if isinstance(source, End) and source.kind == "output":
            if index == 0 and not writing.meta.graph_first:
                _refuse_unknown_numbers(writing, source.position)
            yield from view_statements(writing.text, writing.meta, source.position, writing.inputs, writing.made)
    for end, operand in writing.nodes[index].user_tensors.items():
        name = _operand(writing, operand)
        yield f"user_tensors[{writing.text.literal(end)}] = {history_text(writing.text, name)}"
    operands = [_operand(writing, source) for source in node.sources]
    results = [_name(writing.nodes, index, position) for position in range(len(node.results))]
    yield f"{unpacking(results)} = {applied}({', '.join([*operands, *given])})"


def _receiving(writing: _Writing, index: int, slot: int) -> Iterator[str]:
    """Yield the statements with which an input receives this slot, if one does, before node `index` reads it."""
    copy = writing.meta.early_copies.get(slot)
    if copy is None or copy.slot in writing.copied:
        return
    name = writing.copied[copy.slot] = writing.inputs[copy.index]
    if any(End("input", copy.index) in later.part.shape.sources for later in writing.nodes[index:]):
        before = writing.before[copy.index] = f"before{copy.index}"
        yield f"{before} = {history_text(writing.text, name)}"
    yield f"{name}.copy_({slot_name(copy.slot)})"


def _refuse_unknown_numbers(writing: _Writing, position: int) -> None:
    """Raise AotUnsupported where a view that the graph reads needs a number that the graph returns."""
    role: Any = writing.meta.outputs[position].role
    if any(at in writing.numbers.results for at in numbers_of_steps(role.steps)):
        why = "its sizes are known only after the graph, which reads it"
        raise AotUnsupported("view-replay", f"output {position}, a view of an input", why)
    if role.over is not None:
        _refuse_unknown_numbers(writing, role.over)


def _write_notes(writing: _Writing) -> None:
    """Write the nodes' notes on written inputs: an alias (the input would be a cycle), its version, a weakref."""
    with_history = {copy.index for copy in writing.meta.early_copies.values()}
    for at in writing.noted:
        name = writing.inputs[at]
        alias = f"{name}.detach()" if at in with_history else name
        ref = writing.text.bind("ref", weakref.ref)
        writing.text.line(f"written[{at}] = {alias}, {name}._version, {ref}({name})")


def _slots(writing: _Writing, source: Source) -> Sequence[int]:
    """Return the slots that an operand is, or is made of."""
    if isinstance(source, End):
        return writing.meta.base_slots(source.position) if source.kind == "output" else ()
    slot = _slot(writing, source)
    return () if slot is None else (slot,)


def _slot(writing: _Writing, source: NodeResult) -> int | None:
    """Return the slot that a result of a node is; None for a hidden one."""
    result = writing.nodes[source.node].part.shape.results[source.position]
    return None if isinstance(result, Hidden) else result


def _operand(writing: _Writing, source: Source) -> str:
    """Return the name of a node's operand: the input where the slot was copied to one.

    An operand that reads a mutated input as it was before has another history than one that reads it after.
    """
    if not isinstance(source, End):
        slot = _slot(writing, source)
        copied = None if slot is None else writing.copied.get(slot)
        return copied or _name(writing.nodes, *source)
    if source.kind == "output":
        return view_name(source.position)
    if source.kind == "dropped":
        return writing.text.bind("dropped", _DROPPED)
    return writing.before.get(source.position) or writing.inputs[source.position]


def _name(nodes: Sequence[AutogradNode], index: int, position: int) -> str:
    result = nodes[index].part.shape.results[position]
    return f"hidden{index}_{position}" if isinstance(result, Hidden) else slot_name(result)
