"""The function around a graph with gradients: it applies one autograd node after the other.

The graph runs once, in the forward of the first node, and leaves its results in a list. Each node takes its operands
and gives its results, which autograd ties to it; what only other nodes read is an empty tensor of the right shape, for
autograd to hang its edge on.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.partition.split import NodePart
from framesmith_aot.runtime.autograd_node import AutogradNode, Changes, apply_of, changes_of, forward_text
from framesmith_aot.runtime.codegen import (
    FunctionText,
    count_versions,
    number_name,
    tuple_text,
    unpacking,
    view_name,
    view_statements,
    write_changes,
    write_outputs,
)
from framesmith_aot.runtime.compiled import Calling, CallShape, begin, write_calls
from framesmith_aot.runtime.histories import alias_before_write
from framesmith_aot.runtime.numbers import Numbers
from framesmith_aot.runtime.second_order import SecondOrder, history_text, leading_to_inputs
from framesmith_aot.trace.metadata import GraphMeta, InputView
from framesmith_aot.trace.output_groups import Hidden, Operand
from framesmith_aot.trace.views import numbers_of_steps
from framesmith_aten.contract import BoxedFn


def training_function(
    run: BoxedFn,
    meta: GraphMeta,
    shape: CallShape,
    calling: Calling,
    nodes: Sequence[AutogradNode],
    second: SecondOrder | str,
    numbers: Numbers,
) -> tuple[FunctionText, list[FunctionText]]:
    """The texts for a graph with gradients: the function that applies one node after the other, and their forwards.

    `second` gives second derivatives, or says why there are none.
    """
    text = begin(shape)
    numbers.write(text, shape.names())
    changes = [changes_of(node, meta) for node in nodes]
    writing = _Writing(
        text, meta, shape.names(), nodes, second, changes, [_read(node.part, second) for node in nodes], numbers
    )
    viewed, saved = _viewed(nodes, meta), _saved_inputs(nodes) | meta.unversioned
    counted = [at for at in meta.written if _is_moved(meta, at) or at in viewed or at not in saved]
    for at in _with_nodes(meta) if counted else ():  # what is written may be a part of the same tensor as what is read
        name = writing.before[at] = f"before{at}"
        text.line(f"{name} = {text.bind('alias_before_write', alias_before_write)}({writing.inputs[at]})")
    # Before nodes keep what shares the count of versions and none of the memory: other parts of the same tensors.
    count_versions(text, [writing.inputs[at] for at in counted])
    given = _given_to_all(writing)
    for name, value in given.items():
        text.line(f"{name} = {value}")
    forwards: list[FunctionText] = []
    calls: list[str] = []
    for index, node in enumerate(nodes):
        part, change = node.part, changes[index]
        first = run if index == 0 else None
        forwards.append(forward_text(first, part, list(given), calling.unwatched, change, writing.read[index], numbers))
        applied = text.bind(f"node{index}", apply_of(forwards[-1], node, index, len(given), second, change))
        calls += _node_calls(writing, index, applied, [*given])
        if index == 0:
            calls += [f"{number_name(at)} = results[{position}]" for at, position in numbers.results.items()]
    write_calls(text, calls, replace(calling, unwatched=False))
    for index in _slots_without_gradients(meta):
        text.line(f"r{index} = results[{index}]")
    write_changes(text, meta, writing.inputs, record=calling.record, copied=writing.copied, counted=counted)
    _write_notes(writing)
    write_outputs(text, meta, writing.inputs, record=calling.record, made=writing.made)
    return text, forwards


@dataclass(frozen=True)
class _Writing:
    """The function being written, for graph inputs of these names.

    For each node there are its `changes` and what it has `read` (see `SecondOrder.read_by`). `made` is what
    `view_statements` has done so far, `copied` the names of inputs that have received slots, `before` those of what
    inputs were until they were changed, by position.
    """

    text: FunctionText
    meta: GraphMeta
    inputs: Sequence[str]
    nodes: Sequence[AutogradNode]
    second: SecondOrder | str
    changes: Sequence[Changes]
    read: Sequence[Mapping[int, Operand]]
    numbers: Numbers
    made: set[int | str] = field(default_factory=set)
    copied: dict[int, str] = field(default_factory=dict)
    before: dict[int, str] = field(default_factory=dict)

    @property
    def noted(self) -> list[int]:
        """The inputs of which some node is told what they are once they are written."""
        return sorted({at for changes in self.changes for at in changes.noted})


def _slots_without_gradients(meta: GraphMeta) -> list[int]:
    """The slots without gradients."""
    return [index for index, flows in enumerate(meta.slots) if not flows]


def _with_nodes(meta: GraphMeta) -> Iterator[int]:
    """The inputs that a node of autograd's has made."""
    return (at for at, requires in enumerate(meta.requires_grad) if requires and not meta.is_leaf[at])


def _is_moved(meta: GraphMeta, at: int) -> bool:
    """Whether a written input may be a view with a history: it gets another one, which what reads it is to have."""
    return meta.requires_grad[at] and not meta.is_leaf[at] and at not in meta.unversioned


def _viewed(nodes: Sequence[AutogradNode], meta: GraphMeta) -> set[int]:
    """The inputs of which nodes read a view that is returned: its history would begin anew at each later change."""
    first = len(meta.requires_grad)
    operands = {at for node in nodes for at in node.part.node.operands if isinstance(at, int) and at >= first}
    forms = [meta.outputs[at - first] for at in operands]
    return {form.index for form in forms if isinstance(form, InputView)} - meta.unversioned


def _saved_inputs(nodes: Sequence[AutogradNode]) -> set[int]:
    """The inputs that nodes keep."""
    return {one.index for node in nodes for one in node.part.handed if one.from_input}


def _given_to_all(writing: _Writing) -> dict[str, str]:
    """What the forward of each node is given behind its operands: names, and the expressions that they stand for."""
    text, inputs = writing.text, writing.inputs
    given = {"inputs": tuple_text(inputs)}
    if _slots_without_gradients(writing.meta) or len(writing.nodes) > 1 or writing.numbers.handed:
        given["results"] = "[]"
    saving = [node.part for node in writing.nodes if node.part.reads]
    if saving and isinstance(writing.second, SecondOrder):
        watched = set.intersection(*[part.handed_inputs for part in saving])
        given["rerun"] = writing.second.keep(text, inputs, writing.before, watched)
    elif saving:
        given["rerun"] = leading_to_inputs(text, writing.meta, inputs, writing.before)
    if any(writing.read):
        given["held"] = "{}"
    if writing.noted:
        given["left"] = "{}"
    return given


def _node_calls(writing: _Writing, index: int, applied: str, given: Sequence[str]) -> Iterator[str]:
    """The statements that apply a node, after those that make what it reads."""
    node = writing.nodes[index].part.node
    inputs = writing.inputs
    for at in node.operands:
        view = at - len(inputs) if isinstance(at, int) else -1
        slot = writing.meta.base_slot(view) if view >= 0 else -1 if isinstance(at, int) else _slot(writing.nodes, *at)
        yield from _receiving(writing, index, slot)
        if view >= 0:
            if index == 0:
                _refuse_unknown_numbers(writing, view)
            yield from view_statements(writing.text, writing.meta, view, inputs, writing.made)
    for at, operand in writing.read[index].items():
        name = _operand(writing, operand)
        yield f"held[{at}] = {history_text(writing.text, name)}"
    operands = [_operand(writing, at) for at in node.operands]
    results = [_name(writing.nodes, index, position) for position in range(len(node.results))]
    yield f"{unpacking(results)} = {applied}({', '.join([*operands, *given])})"


def _receiving(writing: _Writing, index: int, slot: int | None) -> Iterator[str]:
    """The statements with which an input receives this slot, if one does, before node `index` reads it."""
    copy = writing.meta.early.get(-1 if slot is None else slot)
    if copy is None or copy.slot in writing.copied:
        return
    name = writing.copied[copy.slot] = writing.inputs[copy.index]
    if any(copy.index in later.part.node.operands for later in writing.nodes[index:]):
        before = writing.before[copy.index] = f"before{copy.index}"
        yield f"{before} = {history_text(writing.text, name)}"
    yield f"{name}.copy_(r{copy.slot})"


def _refuse_unknown_numbers(writing: _Writing, position: int) -> None:
    """The graph reads this view, and so it is made before the graph runs. Raises AotUnsupported."""
    form: Any = writing.meta.outputs[position]
    if any(at in writing.numbers.results for at in numbers_of_steps(form.steps)):
        why = "its sizes are known when the graph has run, which reads it"
        raise AotUnsupported("view-replay", f"output {position}, a view of an input", why)
    if form.over is not None:
        _refuse_unknown_numbers(writing, form.over)


def _write_notes(writing: _Writing) -> None:
    """Tell the nodes what inputs are that have been written: by an alias, for the input would hold what holds it."""
    with_history = {copy.index for copy in writing.meta.early.values()}
    for at in writing.noted:
        name = writing.inputs[at]
        alias = f"{name}.detach()" if at in with_history else name
        ref = writing.text.bind("ref", weakref.ref)
        writing.text.line(f"left[{at}] = {alias}, {name}._version, {ref}({name})")


def _read(part: NodePart, second: SecondOrder | str) -> dict[int, Operand]:
    """What second derivatives of a node lead to beside inputs, see `SecondOrder.read_by`."""
    return second.read_by(part.node) if part.reads and isinstance(second, SecondOrder) else {}


def _slot(nodes: Sequence[AutogradNode], index: int, position: int) -> int:
    """The slot that a node's result is, -1 for what is hidden."""
    result = nodes[index].part.node.results[position]
    return result if isinstance(result, int) else -1


def _operand(writing: _Writing, at: Operand) -> str:
    """The name of what a node reads (see NodeShape): of slots that were copied to inputs, the input.

    What reads such an input as it was has another history than what reads it now.
    """
    if not isinstance(at, int):
        return writing.copied.get(_slot(writing.nodes, *at)) or _name(writing.nodes, *at)
    if at in writing.before:
        return writing.before[at]
    return writing.inputs[at] if at < len(writing.inputs) else view_name(at - len(writing.inputs))


def _name(nodes: Sequence[AutogradNode], index: int, position: int) -> str:
    """The name of a node's result: that of its slot, or one of its own."""
    result = nodes[index].part.node.results[position]
    return f"hidden{index}_{position}" if isinstance(result, Hidden) else f"r{result}"
