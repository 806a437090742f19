"""One autograd node of a compiled graph: the text of its forward, and its backward pass. See Note [Output groups]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointFunction

from framesmith_aot.errors import AbsentGradientsError
from framesmith_aot.partition.split import NodePart, Saved
from framesmith_aot.partition.value_keys import ValueKey, result_keys
from framesmith_aot.runtime.backward import BackwardPass
from framesmith_aot.runtime.codegen import FunctionText, number_name, tuple_text, unwatching
from framesmith_aot.runtime.derivatives.asked import Asked, refuse
from framesmith_aot.runtime.derivatives.derivative_graphs import CompileDerivative, DerivativeGraphs
from framesmith_aot.runtime.derivatives.second_order import Present, SecondOrder, check_versions
from framesmith_aot.runtime.histories import refuse_derivative
from framesmith_aot.runtime.numbers import ScalarText
from framesmith_aot.runtime.usual_pass import install_usual_passes
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.metadata import GraphMeta
from framesmith_aot.trace.output_groups import BEFORE_ALL_OTHERS, End, Hidden, Source
from framesmith_aten.contract import BoxedFn, OnError
from framesmith_aten.graphs.control_flow import SHOWN_BY_FAKES
from framesmith_guards.programs.native.lookups import interned_lookups

#: The attributes that torch's C++ reads of the class of a node at each call, and of the node at each backward pass.
_ASKED: Final = ("_backward_cls", "clear_saved_tensors_on_access", "boxed_grads_call", "setup_context", "forward")
_FUNCTION_META: Final = interned_lookups(type(torch.autograd.Function), _ASKED)
_NODE: Final = interned_lookups(torch.autograd.function.BackwardCFunction, ("apply",))

Parameter = Literal["inputs", "results", "rerun", "user_tensors", "written"]
"""A parameter of nodes' forwards: the graph's inputs, the list of its results, and those of `NodeContext`."""


class NodeContext(Protocol):
    """The context of a node: what its forward leaves there for its backward pass, as far as the pass reads it.

    `numbers`: the values of `NodePart.numbers`. `rerun`: a `Rerun`, or the tensors of `leading_to_inputs`.
    `user_tensors`: `UserTensors`. `written`: by input, an alias, its version and a weak reference. All but the first
    are None after the last pass.
    """

    numbers: Sequence[Any]
    rerun: Any
    user_tensors: Any
    written: Any
    saved_tensors: Sequence[torch.Tensor]
    next_functions: Sequence[tuple[Any, int]]

    def maybe_clear_saved_tensors(self) -> None: ...


@dataclass(frozen=True)
class AutogradNode:
    """One autograd node: its part of the graph, its backward pass, and what it reads besides saved tensors.

    `watched`: inputs that eager mode saves and the graph mutates; a later mutation is an error. `receivers`: the inputs
    that receive its results, by slot. `user_tensors`: see `SecondOrder.read_by`. `known`, `compile` and
    `on_error`: see `DerivativeGraphs`.
    """

    part: NodePart
    backward: BackwardPass
    watched: Sequence[int]
    receivers: Mapping[int, int]
    user_tensors: Mapping[End, Source]
    known: Mapping[int, ValueKey]
    compile: CompileDerivative
    on_error: OnError | None

    @property
    def noted(self) -> set[int]:
        """The inputs whose alias, version and tensor the node notes after the call has written to them."""
        return {*self.watched, *self.receivers.values()}


def autograd_node(
    part: NodePart,
    backward: BackwardPass,
    meta: GraphMeta,
    second: SecondOrder | str,
    forward: fx.Graph,
    compile: CompileDerivative,
    on_error: OnError | None,
) -> AutogradNode:
    """Return the node of `part`; `second` gives its second derivatives, or says why there are none.

    `forward`: the graph that computes what is saved.
    """
    mutated, early = {*meta.mutated}, meta.early_copies
    watched = sorted({*part.late_inputs, *(mutated.intersection(part.shape.eager_saved.inputs))})
    receivers = {slot: early[slot].index for slot, _ in _eager_results(part) if slot in early}
    user_tensors = second.read_by(part.shape) if part.reads and isinstance(second, SecondOrder) else {}
    known = result_keys(forward, {one.index for one in part.saved if not one.from_input})
    return AutogradNode(part.without_graph(), backward, watched, receivers, user_tensors, known, compile, on_error)


def forward_text(
    run: BoxedFn | None, node: AutogradNode, given: Sequence[Parameter], unwatched: bool, numbers: ScalarText
) -> FunctionText:
    """Return the text of a node's forward, whose parameters are `ctx`, the operands and those named in `given`.

    The forward of the first node runs the graph, `run`; `unwatched`: see `CallModes`.
    """
    part = node.part
    operands = [f"operand{index}" for index in range(len(part.shape.operands))]
    text = FunctionText("forward", ["ctx", *operands, *given])
    if run is not None:
        text.bind("graph", run)
        if unwatched:
            text.line(f"with {unwatching(text)}:")
        call = "results.extend(graph([*inputs]))" if "results" in given else "results = graph([*inputs])"
        text.line(call, 2 if unwatched else 1)
    text.line("ctx.set_materialize_grads(False)")
    if any(one.refusal is not None and one.refusal.first for one in part.shape.operands):
        text.line(f"ctx._set_sequence_nr({BEFORE_ALL_OTHERS})")
    saved = [_saved_text(item) for item in part.saved_tensors]
    if part.shape.eager_saved.anything and not saved:
        with torch.inference_mode(False):
            saved = [text.bind("token", torch.empty(0))]  # a second backward pass raises
    if saved:
        text.line(f"ctx.save_for_backward({', '.join(saved)})")
    if part.numbers:
        text.line(f"ctx.numbers = {tuple_text([_saved_text(item) for item in part.numbers])}")
    if part.reads:
        text.line("ctx.rerun = rerun")
    if node.user_tensors:
        ends = [text.literal(end) for end in node.user_tensors]
        text.line(f"ctx.user_tensors = {{{', '.join(f'{end}: user_tensors[{end}]' for end in ends)}}}")
    if node.noted:
        text.line("ctx.written = written")  # filled after the writes to inputs
    hidden = {at.index for one in part.shape.results if isinstance(one, Hidden) for at in one.numbers}
    numbers.write(text, [f"inputs[{at}]" for at in range(len(numbers.inputs))], hidden)
    for at in hidden & {*numbers.results}:
        text.line(f"{number_name(at)} = results[{numbers.results[at]}]")
    text.line(f"return {tuple_text([_given(text, result) for result in part.shape.results])}")
    return text


def _install(cls: Any, node: AutogradNode, given: int) -> None:
    """Let passes of the class `cls` run in C in the usual case, where they check only saved tensors."""
    part = node.part
    refused = any(one.refusal is not None for one in part.shape.operands)
    if refused or node.watched or part.late_inputs or part.reentrant:
        return
    noted = {"rerun": part.reads, "user_tensors": bool(node.user_tensors), "written": bool(node.noted)}
    dropped = tuple([name for name, is_noted in noted.items() if is_noted])
    install_usual_passes(cls._backward_cls, node.backward, part, given, dropped)


def _saved_text(item: Saved) -> str:
    return f"{'inputs' if item.from_input else 'results'}[{item.index}]"


def _received(ctx: NodeContext, node: AutogradNode) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the node's results that inputs have received, by slot, where the user still has the inputs unchanged."""
    for slot, at in node.receivers.items():
        alias, version, ref = ctx.written[at]
        tensor = ref()
        if tensor is not None and alias._version == version:
            yield slot, tensor


def _eager_slots(part: NodePart) -> Iterator[tuple[int, int]]:
    """Yield the slots that eager mode saves for a node, and their positions in `NodePart.saved_tensors`."""
    for position, one in enumerate(part.saved_tensors):
        if not one.from_input and one.index in part.shape.eager_saved.slots:
            yield one.index, position


def _eager_results(part: NodePart) -> Iterator[tuple[int, int]]:
    """Yield those of them that are results of the node itself."""
    return ((slot, position) for slot, position in _eager_slots(part) if slot in part.shape.results)


def _given(text: FunctionText, result: int | Hidden) -> str:
    if not isinstance(result, Hidden):
        return f"results[{result}]"
    empty = text.bind("empty_strided", torch.empty_strided)
    options = f"dtype={text.literal(result.dtype)}, device={text.literal(result.device)}"
    return f"{empty}({text.literal(result.shape)}, {text.literal((0,) * len(result.shape))}, {options})"


class _Differentiable:
    """The gradients of node `index` with histories: by a derivative graph where there is one, or by a replay."""

    def __init__(self, second: SecondOrder, index: int, node: AutogradNode) -> None:
        ends = tuple(node.user_tensors)
        self._second, self._index, self._node = second, index, node
        self._graphs = DerivativeGraphs(
            second, index, node.part, node.backward, ends, node.known, node.compile, node.on_error
        )
        self._asked = Asked(node.part.shape.operands)
        self._slots, self._results = dict(_eager_slots(node.part)), dict(_eager_results(node.part))

    def gradients(self, ctx: NodeContext, saved: Sequence[Any], tangents: Sequence[torch.Tensor | None]) -> Any:
        """Return the gradients, without histories if those are not recorded. Precondition: there is no obstacle."""
        node, operands = self._node, len(self._node.part.shape.operands)
        results = {slot: saved[position] for slot, position in self._results.items()}
        if node.receivers:
            results.update(_received(ctx, node))
        present = Present(
            results,
            {slot: saved[position] for slot, position in self._slots.items()} | results,
            {at: ctx.written[at][0] for at in node.watched},
            {at: saved[position] for at, position in node.part.stand_ins.items()},
            saved[: len(node.part.saved)],
        )
        user_tensors = ctx.user_tensors if node.user_tensors else {}
        call = ctx.rerun, user_tensors, present, tangents, self._asked.by(ctx.next_functions[:operands])
        grads = self._graphs.gradients(*call) if torch.is_grad_enabled() else None
        return self._second.gradients(self._index, *call) if grads is None else grads


def apply_of(
    forward: FunctionText, node: AutogradNode, index: int, given: int, second: SecondOrder | str
) -> Callable[..., Any]:
    """Return the function that creates the node: the C++ half of `Function.apply` (guards exclude functorch here).

    `given`: the number of arguments after the operands, which have no gradients.
    """
    rest = (None,) * given
    run = node.backward
    refusals = {at: one.refusal for at, one in enumerate(node.part.shape.operands) if one.refusal is not None}
    used = len(node.part.saved)
    differentiable = None if isinstance(second, str) else _Differentiable(second, index, node)

    def numbers_of(ctx: NodeContext) -> list[Any]:
        return [*ctx.numbers] if node.part.numbers else []

    def backward(ctx: NodeContext, *tangents: torch.Tensor | None) -> Any:
        refuse(refusals, ctx)
        if node.part.reentrant and not unstable.is_checkpoint_valid():
            CheckpointFunction.backward(ctx)  # type: ignore[no-untyped-call]  # raises torch's error
        saved = list(ctx.saved_tensors)  # raises where one was mutated or freed
        if node.watched:
            check_versions([ctx.written[at][:2] for at in node.watched])
        create_graph = torch.is_grad_enabled()
        absent = node.part.shape.asks_absent and any(tangent is None for tangent in tangents)
        once = not unstable.get_current_graph_task_keep_graph()
        if create_graph and not node.part.reads:
            return (*run.evaluate(numbers_of(ctx), tangents), *rest)  # linear in the tangents
        why = second if isinstance(second, str) else None
        if (create_graph or absent) and isinstance(second, SecondOrder) and differentiable is not None:
            why = second.obstacle(ctx.rerun, index, node.part.stand_ins)
            if why is None:
                grads = differentiable.gradients(ctx, saved, tangents)
                if once:
                    ctx.rerun = ctx.user_tensors = ctx.written = None
                return (*grads, *rest)
        if absent:
            raise AbsentGradientsError(why or "it cannot be replayed")
        del saved[used:]  # saved only so that autograd checks its version
        saved += [*(ctx.written[at][0] for at in node.part.late_inputs), *numbers_of(ctx)]
        if create_graph and why is not None:
            led = second.leading(ctx.rerun) if isinstance(second, SecondOrder) else ctx.rerun
            came = [tangent for tangent in tangents if tangent is not None]
            return (*refuse_derivative(run(saved, tangents), why, [*led, *came]), *rest)
        # Unless the graph is retained: the list is then the only holder, and the backward program frees
        # each tensor after its last use.
        ctx.maybe_clear_saved_tensors()
        if once:
            ctx.rerun = ctx.user_tensors = ctx.written = None
        return (*run(saved, tangents), *rest)

    def backward_without_saved(ctx: NodeContext, *tangents: torch.Tensor | None) -> Any:
        refuse(refusals, ctx)
        # May run any number of times: `ctx.saved_tensors` raises the second time.
        return (*(run.evaluate if torch.is_grad_enabled() else run)(numbers_of(ctx), tangents), *rest)

    eager_saved = node.part.shape.eager_saved.anything or node.part.reads
    members = {
        "forward": staticmethod(forward.build()),
        "backward": staticmethod(backward if eager_saved else backward_without_saved),
    }

    def evaluate_backward(saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> Any:
        return run.evaluate([*saved[:used]], tangents)  # without the watched ones

    # An `EvaluatesBackward`, where saved tensors are all that the pass reads and checks.
    asked = refusals or node.part.shape.asks_absent
    loops = any(one.target in SHOWN_BY_FAKES for one in run.graph.nodes)  # no tracer may see these one by one
    if not (node.part.numbers or node.part.late_inputs or node.watched or asked or loops):
        members["evaluate_backward"] = staticmethod(evaluate_backward)
    cls: Any = _FUNCTION_META("CompiledGraphNode", (torch.autograd.Function,), members)
    made = {name: value for name, value in vars(cls._backward_cls).items() if name not in ("__dict__", "__weakref__")}
    cls._backward_cls = type(cls._backward_cls.__name__, (_NODE,), made)
    _install(cls, node, given)
    apply: Callable[..., Any] = super(torch.autograd.Function, cls).apply
    return apply
