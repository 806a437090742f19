"""The autograd nodes around a compiled graph with gradients: Note [Regions] says why there are several.

The graph runs once, in the forward of the first node, and leaves its results in a list. Each node takes its operands
and gives its results, which autograd ties to it; what only other nodes read is an empty tensor of the right shape, for
autograd to hang its edge on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from framesmith_aot.partition.split import NodePart
from framesmith_aot.runtime.backward import BackwardPass
from framesmith_aot.runtime.compiled import Calling, CallShape, begin, write_calls
from framesmith_aot.runtime.histories import refuse_derivative
from framesmith_aot.runtime.replay import (
    FunctionText,
    count_versions,
    tuple_text,
    unpacking,
    unwatching,
    view_name,
    view_statements,
    write_changes,
    write_outputs,
)
from framesmith_aot.runtime.second_order import SecondOrder, check_versions, leading_to_inputs
from framesmith_aot.trace.metadata import CopyBack, GraphMeta
from framesmith_aot.trace.regions import Hidden, Operand
from framesmith_aten.contract import BoxedFn


@dataclass(frozen=True)
class AutogradNode:
    """One autograd node: what it computes from what, and its backward pass."""

    part: NodePart
    backward: BackwardPass


def training_function(
    run: BoxedFn,
    meta: GraphMeta,
    shape: CallShape,
    calling: Calling,
    nodes: Sequence[AutogradNode],
    second: SecondOrder | str,
) -> tuple[FunctionText, list[FunctionText]]:
    """The texts for a graph with gradients: the function that applies one node after the other, and their forwards.

    `second` gives second derivatives, or says why there are none.
    """
    text = begin(shape)
    inputs = shape.names()
    apart = [index for index, flows in enumerate(meta.slots) if not flows]
    shared = bool(apart) or len(nodes) > 1
    given = {"inputs": tuple_text(inputs)}
    if shared:
        given["results"] = "[]"
    saving = [node.part for node in nodes if node.part.saved]
    if saving and isinstance(second, SecondOrder):
        given["rerun"] = second.keep(text, inputs, set.intersection(*[part.handed_inputs for part in saving]))
    elif saving:
        given["rerun"] = leading_to_inputs(text, meta, inputs)
    early = {copy.slot: copy for copy in meta.copy_back if not (copy.no_grad or copy.index in meta.unversioned)}
    changes = [_changes(node, meta, early) for node in nodes]
    noted = sorted({at for change in changes for at in change.noted})
    held = [_read(node.part, second) for node in nodes]
    if any(held):
        given["held"] = "{}"
    if noted:
        given["left"] = "{}"
    for name, value in given.items():
        text.line(f"{name} = {value}")
    forwards: list[FunctionText] = []
    calls: list[str] = []
    made: set[int] = set()
    copied: dict[int, str] = {}
    for index, node in enumerate(nodes):
        change, read = changes[index], held[index]
        forwards.append(_forward(run if index == 0 else None, node, list(given), calling.unwatched, change, read))
        name = text.bind(f"node{index}", _apply(forwards[-1], node, index, len(given), second, change))
        for at in node.part.node.operands:
            if isinstance(at, int) and at >= len(inputs):
                calls += view_statements(text, meta, at - len(inputs), inputs, made)
            elif not isinstance(at, int) and (copy := early.get(_slot(nodes, *at))) and copy.slot not in copied:
                copied[copy.slot] = inputs[copy.index]
                calls.append(f"{inputs[copy.index]}.copy_(r{copy.slot})")
        operands = [_operand(nodes, at, inputs, copied) for at in node.part.node.operands]
        for at, name_of in [(at, _operand(nodes, operand, inputs, copied)) for at, operand in read.items()]:
            calls.append(f"held[{at}] = {name_of}, {name_of}._version")
        results = [_name(nodes, index, position) for position in range(len(node.part.node.results))]
        calls.append(f"{unpacking(results)} = {name}({', '.join([*operands, *given])})")
    # A view that is written to gets another history, from its base; what reads it is to have that one.
    counted = [at for at in meta.written if meta.requires_grad[at] and not meta.is_leaf[at]]
    counted = [at for at in counted if at not in meta.unversioned]
    count_versions(text, [inputs[at] for at in counted])
    write_calls(text, calls, replace(calling, unwatched=False))
    for index in apart:
        text.line(f"r{index} = results[{index}]")
    write_changes(text, meta, inputs, record=calling.record, copied=copied, counted=counted)
    with_history = {copy.index for copy in early.values()}
    for at in noted:
        name = inputs[at]
        alias = f"{name}.detach()" if at in with_history else name  # of its history, the input would hold its holder
        text.line(f"left[{at}] = {alias}, {name}._version, {text.bind('ref', weakref.ref)}({name})")
    write_outputs(text, meta, inputs, record=calling.record, made=made)
    return text, forwards


@dataclass(frozen=True)
class _Changes:
    """Inputs that eager keeps for a node as the graph leaves them, and which of them receive its results, by slot."""

    watched: Sequence[int]
    receivers: Mapping[int, int]

    @property
    def noted(self) -> set[int]:
        """The inputs of which the node is told, once they are written, what they are then."""
        return {*self.watched, *self.receivers.values()}


def _changes(node: AutogradNode, meta: GraphMeta, copies: Mapping[int, CopyBack]) -> _Changes:
    watched = [at for at in node.part.node.kept.inputs if at in meta.changed]
    received = {slot: copies[slot].index for slot, _ in _kept_results(node.part) if slot in copies}
    return _Changes(watched, received)


def _read(part: NodePart, second: SecondOrder | str) -> dict[int, Operand]:
    """What second derivatives of a node lead to beside inputs, see `SecondOrder.read_by`."""
    return second.read_by(part.node) if part.saved and isinstance(second, SecondOrder) else {}


def _slot(nodes: Sequence[AutogradNode], index: int, position: int) -> int:
    """The slot that a node's result is, -1 for what is hidden."""
    result = nodes[index].part.node.results[position]
    return result if isinstance(result, int) else -1


def _operand(nodes: Sequence[AutogradNode], at: Operand, inputs: Sequence[str], copied: Mapping[int, str]) -> str:
    """The name of what a node reads (see NodeShape): of slots that were `copied` to inputs, the input."""
    if not isinstance(at, int):
        return copied.get(_slot(nodes, *at)) or _name(nodes, *at)
    return inputs[at] if at < len(inputs) else view_name(at - len(inputs))


def _name(nodes: Sequence[AutogradNode], index: int, position: int) -> str:
    """The name of a node's result: that of its slot, or one of its own."""
    result = nodes[index].part.node.results[position]
    return f"hidden{index}_{position}" if isinstance(result, Hidden) else f"r{result}"


def _forward(
    run: BoxedFn | None,
    node: AutogradNode,
    given: Sequence[str],
    unwatched: bool,
    changes: _Changes,
    read: Collection[int],
) -> FunctionText:
    """The text of a node's forward; the first node's runs the graph. `given` are the names after the operands.

    `read`: see `SecondOrder.read_by`.
    """
    part = node.part
    operands = [f"operand{index}" for index in range(len(part.node.operands))]
    text = FunctionText("forward", ["ctx", *operands, *given])
    if run is not None:
        text.bind("graph", run)
        if unwatched:
            text.line(f"with {unwatching(text)}:")
        call = "results.extend(graph([*inputs]))" if "results" in given else "results = graph([*inputs])"
        text.line(call, 2 if unwatched else 1)
    text.line("ctx.set_materialize_grads(False)")
    saved = [f"{'inputs' if item.from_input else 'results'}[{item.index}]" for item in part.handed]
    if part.node.kept.anything and not saved:
        with torch.inference_mode(False):
            saved = [text.bind("token", torch.empty(0))]  # the pass is to be gone through once
    if saved:
        text.line(f"ctx.save_for_backward({', '.join(saved)})")
    if part.saved:
        text.line("ctx.rerun = rerun")
        text.line(f"ctx.held = {{{', '.join(f'{at}: held[{at}]' for at in read)}}}")
    if changes.noted:
        text.line("ctx.left = left")  # filled when all has been written
    text.line(f"return {tuple_text([_given(text, result) for result in part.node.results])}")
    return text


def _received(ctx: Any, changes: _Changes) -> Iterator[tuple[int, torch.Tensor]]:
    """The inputs that have received results of a node, by slot, where the user still has them as they were then."""
    for slot, at in changes.receivers.items():
        alias, version, ref = ctx.left[at]
        tensor = ref()
        if tensor is not None and alias._version == version:
            yield slot, tensor


def _kept_results(part: NodePart) -> Iterator[tuple[int, int]]:
    """The slots that are results of a node and kept for it in eager mode, and their positions in `handed`."""
    for position, one in enumerate(part.handed):
        if not one.from_input and one.index in part.node.results and one.index in part.node.kept.slots:
            yield one.index, position


def _given(text: FunctionText, result: int | Hidden) -> str:
    if not isinstance(result, Hidden):
        return f"results[{result}]"
    empty = text.bind("empty_strided", torch.empty_strided)
    options = f"dtype={text.literal(result.dtype)}, device={text.literal(result.device)}"
    return f"{empty}({text.literal(result.shape)}, {text.literal((0,) * len(result.shape))}, {options})"


def _apply(
    forward: FunctionText,
    node: AutogradNode,
    index: int,
    given: int,
    second: SecondOrder | str,
    changes: _Changes,
) -> Callable[..., Any]:
    """What makes a node of autograd: the C++ half of `Function.apply`, since guards keep functorch away from here.

    `given` is the number of arguments after the operands, which have no gradients.
    """
    rest = (None,) * given
    run = node.backward
    used = len(node.part.saved)
    kept_results = dict(_kept_results(node.part))

    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        saved = list(ctx.saved_tensors)  # an error where one was changed or is gone
        if changes.watched:
            check_versions([ctx.left[at][:2] for at in changes.watched])
        again = torch.is_grad_enabled()
        if again and not used:
            return (*run.evaluate([], tangents), *rest)  # linear, and so its own derivative
        if again and isinstance(second, SecondOrder):
            results = {slot: saved[position] for slot, position in kept_results.items()}
            results.update(_received(ctx, changes))
            return (*second.gradients(ctx.rerun, index, ctx.held, results, tangents), *rest)
        del saved[used:]  # what is only watched
        if again and isinstance(second, str):
            return (*refuse_derivative(run(saved, tangents), second, ctx.rerun), *rest)
        # Unless the graph is retained: the list is then the only holder, and the backward program frees
        # each tensor after its last use.
        ctx.maybe_clear_saved_tensors()
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.rerun = ctx.held = ctx.left = None
        return (*run(saved, tangents), *rest)

    def backward_of_nothing_kept(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        # As often as asked: to ask for saved tensors twice is an error.
        return (*(run.evaluate if torch.is_grad_enabled() else run)([], tangents), *rest)

    def backward_refused(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        raise RuntimeError(node.part.node.refusal)

    kept = node.part.node.kept.anything or node.part.saved
    members = {
        "forward": staticmethod(forward.build()),
        "backward": staticmethod(
            backward_refused if node.part.node.refusal else backward if kept else backward_of_nothing_kept
        ),
        # Tells a compiler of whole backward passes that it may trace this one (see README).
        "evaluate_backward": staticmethod(run.evaluate),
    }
    cls: Any = type("CompiledGraphNode", (torch.autograd.Function,), members)
    apply: Callable[..., Any] = super(torch.autograd.Function, cls).apply
    return apply
