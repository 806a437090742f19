"""One autograd node of a compiled graph: its forward, as text, and its backward pass. Note [Regions]: why several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_aot.partition.split import NodePart, Saved
from framesmith_aot.runtime.backward import BackwardPass
from framesmith_aot.runtime.codegen import (
    FunctionText,
    number_name,
    tuple_text,
    unwatching,
)
from framesmith_aot.runtime.histories import refuse_derivative
from framesmith_aot.runtime.numbers import Numbers
from framesmith_aot.runtime.second_order import Present, SecondOrder, check_versions
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.metadata import GraphMeta
from framesmith_aot.trace.output_groups import BEFORE_ALL_OTHERS, Hidden, Refusal
from framesmith_aten.contract import BoxedFn


@dataclass(frozen=True)
class AutogradNode:
    """One autograd node: what it computes from what, and its backward pass."""

    part: NodePart
    backward: BackwardPass


@dataclass(frozen=True)
class Changes:
    """Inputs that eager keeps for a node as the graph leaves them, and which of them receive its results, by slot."""

    watched: Sequence[int]
    receivers: Mapping[int, int]

    @property
    def noted(self) -> set[int]:
        """The inputs of which the node is told, once they are written, what they are then."""
        return {*self.watched, *self.receivers.values()}


def changes_of(node: AutogradNode, meta: GraphMeta) -> Changes:
    watched = sorted({*node.part.left, *(at for at in node.part.node.eager_saved.inputs if at in meta.changed)})
    early = meta.early
    received = {slot: early[slot].index for slot, _ in _eager_results(node.part) if slot in early}
    return Changes(watched, received)


def forward_text(
    run: BoxedFn | None,
    part: NodePart,
    given: Sequence[str],
    unwatched: bool,
    changes: Changes,
    read: Collection[int],
    numbers: Numbers,
) -> FunctionText:
    """The text of a node's forward; the first node's runs the graph. `given` are the names after the operands.

    `read`: see `SecondOrder.read_by`.
    """
    operands = [f"operand{index}" for index in range(len(part.node.operands))]
    text = FunctionText("forward", ["ctx", *operands, *given])
    if run is not None:
        text.bind("graph", run)
        if unwatched:
            text.line(f"with {unwatching(text)}:")
        call = "results.extend(graph([*inputs]))" if "results" in given else "results = graph([*inputs])"
        text.line(call, 2 if unwatched else 1)
    text.line("ctx.set_materialize_grads(False)")
    if any(refusal.first for refusal in part.node.refusals.values()):
        text.line(f"ctx._set_sequence_nr({BEFORE_ALL_OTHERS})")
    saved = [_held(item) for item in part.handed]
    if part.node.eager_saved.anything and not saved:
        with torch.inference_mode(False):
            saved = [text.bind("token", torch.empty(0))]  # the pass is to be gone through once
    if saved:
        text.line(f"ctx.save_for_backward({', '.join(saved)})")
    if part.numbers:
        text.line(f"ctx.numbers = {tuple_text([_held(item) for item in part.numbers])}")
    if part.reads:
        text.line("ctx.rerun = rerun")
        text.line(f"ctx.held = {{{', '.join(f'{at}: held[{at}]' for at in read)}}}")
    if changes.noted:
        text.line("ctx.left = left")  # filled when all has been written
    hidden = {at.index for one in part.node.results if isinstance(one, Hidden) for at in one.numbers}
    numbers.write(text, [f"inputs[{at}]" for at in range(len(numbers.inputs))], hidden)
    for at in hidden & {*numbers.results}:
        text.line(f"{number_name(at)} = results[{numbers.results[at]}]")
    text.line(f"return {tuple_text([_given(text, result) for result in part.node.results])}")
    return text


def _held(item: Saved) -> str:
    return f"{'inputs' if item.from_input else 'results'}[{item.index}]"


def _received(ctx: Any, changes: Changes) -> Iterator[tuple[int, torch.Tensor]]:
    """The inputs that have received results of a node, by slot, where the user still has them as they were then."""
    for slot, at in changes.receivers.items():
        alias, version, ref = ctx.left[at]
        tensor = ref()
        if tensor is not None and alias._version == version:
            yield slot, tensor


def _eager_slots(part: NodePart) -> Iterator[tuple[int, int]]:
    """The slots that are kept for a node in eager mode, and their positions in `handed`."""
    for position, one in enumerate(part.handed):
        if not one.from_input and one.index in part.node.eager_saved.slots:
            yield one.index, position


def _eager_results(part: NodePart) -> Iterator[tuple[int, int]]:
    """Those that are results of the node itself."""
    return ((slot, position) for slot, position in _eager_slots(part) if slot in part.node.results)


def _given(text: FunctionText, result: int | Hidden) -> str:
    if not isinstance(result, Hidden):
        return f"results[{result}]"
    empty = text.bind("empty_strided", torch.empty_strided)
    options = f"dtype={text.literal(result.dtype)}, device={text.literal(result.device)}"
    return f"{empty}({text.literal(result.shape)}, {text.literal((0,) * len(result.shape))}, {options})"


def _refuse(refusals: Mapping[int, Refusal], ctx: Any) -> None:
    """Raise what eager mode raises on its way to an operand whose gradient is asked for, if it refuses one of them."""
    met = [one for at, one in refusals.items() if _leads_to_a_result(ctx.next_functions[at][0])]
    if met:
        first = max(met, key=lambda refusal: refusal.number)
        raise first.error(first.words)


def _leads_to_a_result(node: Any) -> bool:
    """Whether the pass that runs goes on through a node, or ends there with a gradient that is asked for.

    True where nobody can tell, outside of a pass.
    """
    if node is None:
        return False
    try:
        return bool(unstable.will_engine_execute_node(node))
    except RuntimeError:  # said of leaves whose gradients are asked for, too
        return True


def apply_of(
    forward: FunctionText,
    node: AutogradNode,
    index: int,
    given: int,
    second: SecondOrder | str,
    changes: Changes,
) -> Callable[..., Any]:
    """What makes a node of autograd: the C++ half of `Function.apply`, since guards keep functorch away from here.

    `given` is the number of arguments after the operands, which have no gradients.
    """
    rest = (None,) * given
    run, refusals = node.backward, node.part.node.refusals
    used = len(node.part.saved)
    eager_slots, eager_results = dict(_eager_slots(node.part)), dict(_eager_results(node.part))

    def numbers_of(ctx: Any) -> list[Any]:
        return [*ctx.numbers] if node.part.numbers else []

    def left_of(ctx: Any) -> list[torch.Tensor]:
        return [ctx.left[at][0] for at in node.part.left]

    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        _refuse(refusals, ctx)
        saved = list(ctx.saved_tensors)  # an error where one was changed or is gone
        if changes.watched:
            check_versions([ctx.left[at][:2] for at in changes.watched])
        create_graph = torch.is_grad_enabled()
        once = not unstable.get_current_graph_task_keep_graph()
        if create_graph and not node.part.reads:
            return (*run.evaluate(numbers_of(ctx), tangents), *rest)  # linear, and so its own derivative
        why = second if isinstance(second, str) else None
        if create_graph and isinstance(second, SecondOrder):
            why = second.obstacle(ctx.rerun, index, node.part.stand_ins)
            if why is None:
                results = {slot: saved[position] for slot, position in eager_results.items()}
                results.update(_received(ctx, changes))
                instead = {at: saved[position] for at, position in node.part.stand_ins.items()}
                contents = {slot: saved[position] for slot, position in eager_slots.items()} | results
                left = {at: ctx.left[at][0] for at in changes.watched}
                wanted = [_leads_to_a_result(one) for one, _ in ctx.next_functions[: len(node.part.node.operands)]]
                present = Present(results, contents, left, instead)
                grads = second.gradients(ctx.rerun, index, ctx.held, present, tangents, wanted)
                if once:
                    ctx.rerun = ctx.held = ctx.left = None
                return (*grads, *rest)
        del saved[used:]  # what is only watched
        saved += [*left_of(ctx), *numbers_of(ctx)]
        if create_graph and why is not None:
            led = second.leading(ctx.rerun) if isinstance(second, SecondOrder) else ctx.rerun
            came = [tangent for tangent in tangents if tangent is not None]
            return (*refuse_derivative(run(saved, tangents), why, [*led, *came]), *rest)
        # Unless the graph is retained: the list is then the only holder, and the backward program frees
        # each tensor after its last use.
        ctx.maybe_clear_saved_tensors()
        if once:
            ctx.rerun = ctx.held = ctx.left = None
        return (*run(saved, tangents), *rest)

    def backward_without_saved(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        _refuse(refusals, ctx)
        # As often as asked: to ask for saved tensors twice is an error.
        return (*(run.evaluate if torch.is_grad_enabled() else run)(numbers_of(ctx), tangents), *rest)

    eager_saved = node.part.node.eager_saved.anything or node.part.reads
    members = {
        "forward": staticmethod(forward.build()),
        "backward": staticmethod(backward if eager_saved else backward_without_saved),
    }

    def evaluate_backward(saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> Any:
        return run.evaluate([*saved[:used]], tangents)  # without what is only watched

    # Tells a compiler of whole backward passes that it may trace this one (see README): all that it reads is saved, and
    # all that it checks.
    if not (node.part.numbers or node.part.left or changes.watched or refusals):
        members["evaluate_backward"] = staticmethod(evaluate_backward)
    cls: Any = type("CompiledGraphNode", (torch.autograd.Function,), members)
    apply: Callable[..., Any] = super(torch.autograd.Function, cls).apply
    return apply
