"""First derivatives by a compiled graph that autograd can differentiate again.

Note [Derivative graphs]: the gradients of an autograd node are a function of the call's inputs, of the results that
eager mode saves, and of the tangents. With `create_graph` this function is traced like any program: the torch-level
graph, then autograd's pass through the node's output group. It is compiled once for each set of tangents and operands,
and its autograd nodes hold the second derivatives. Nothing runs under autograd itself, but a graph of its own may be
differentiated a third time, in the same way. Where that is not possible the call is replayed: Note [Second order].
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from framesmith_aot.errors import AotUnsupported, SecondDerivativeWarning
from framesmith_aot.partition.split import NodePart
from framesmith_aot.partition.value_keys import ValueKey, read_known_values
from framesmith_aot.runtime.backward import BackwardPass, is_batched, refusing_new_guards
from framesmith_aot.runtime.derivatives.eager_replay import gradients_through, sources_of
from framesmith_aot.runtime.derivatives.replay_inputs import LEADS, default_dtype
from framesmith_aot.runtime.derivatives.second_order import Present, Rerun, SecondOrder, UserTensors, mutated_since
from framesmith_aot.runtime.histories import Grads, own_copy, redirect_history, with_history_of
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.joint import JointGraph
from framesmith_aot.trace.metadata import Slot
from framesmith_aot.trace.output_groups import End, edge_of
from framesmith_aot.trace.replacements.table import HELD_AS_CALLS
from framesmith_aten.checks.plain_tensors import with_bits_of
from framesmith_aten.contract import OnError
from framesmith_aten.graphs.autograd_calls import new_leaf
from framesmith_aten.graphs.autograd_functions import Settings, applied
from framesmith_aten.graphs.modules import new_lazy_module
from framesmith_aten.meta import CHECKPOINT
from framesmith_aten.operators import is_random
from framesmith_aten.symbolic import equal, has_symbols
from framesmith_guards import warn_user
from framesmith_guards.contexts import ambient
from framesmith_guards.torch_adapter import FakeTensor

CompileDerivative = Callable[[fx.GraphModule, Sequence[Any], Callable[[JointGraph], None], bool], Callable[..., Any]]
"""Compiles a torch-level graph for inputs like some. The third argument changes the joint graph before the partition;
the last one says whether output groups are joined (`sets_to_join`)."""


class Request(NamedTuple):
    """A kind of pass through a node: its tangents that are `absent`, or have a history, and the `wanted` operands.

    `hooked`: some input has hooks. A pass from some of the gradients then may not come by others' inputs.
    """

    absent: tuple[bool, ...]
    with_history: tuple[bool, ...]
    wanted: tuple[bool, ...]
    hooked: bool


@dataclass(frozen=True)
class _Derivative:
    """A compiled graph, and for each operand of the node the position of its gradient among the results.

    `draws`: it draws random numbers.
    """

    function: Callable[..., Any]
    positions: tuple[int | None, ...]
    draws: bool


class DerivativeGraphs:
    """The derivative graphs of autograd node `index`, by request; a string says why there is none."""

    def __init__(
        self,
        second: SecondOrder,
        index: int,
        part: NodePart,
        backward: BackwardPass,
        ends: Sequence[End],
        known: Mapping[int, ValueKey],
        compile: CompileDerivative,
        on_error: OnError | None,
    ) -> None:
        self._second = second
        self._index = index
        self._part = part
        self._backward = backward
        self._ends = ends
        self._leading = [at for at, one in enumerate(second.inputs) if one.meta.requires_grad]
        self._undef = [(at, one.undef) for at, one in enumerate(second.inputs) if one.undef is not None]
        others = (at for at, one in enumerate(second.inputs) if not (one.is_number or one.meta.requires_grad))
        self._others = [at for at in others if second.inputs[at].undef is None]
        self._saved = [at for at, one in enumerate(part.saved) if not one.from_input]
        self._keys = [known[part.saved[at].index] for at in self._saved]
        self._compile = compile
        self._on_error = on_error
        self._known: dict[Request, _Derivative | str] = {}
        self._lock = threading.Lock()

    def gradients(
        self,
        rerun: Rerun,
        user_tensors: UserTensors,
        present: Present,
        tangents: Sequence[torch.Tensor | None],
        wanted: Sequence[bool],
    ) -> Grads | None:
        """Return the gradients of the `wanted` operands with their histories; None where no graph gives them."""
        values, versions, states = rerun
        second = self._second
        if is_batched(tangents) or mutated_since(versions):
            warn_user(SecondDerivativeWarning("it is batched, or an input was changed in place since the call"))
            return None
        came = self._backward.expected(tangents)
        request = Request(
            tuple([tangent is None for tangent in tangents]),
            tuple([tangent.requires_grad for tangent in came]),
            tuple(wanted),
            any(_is_hooked(values[at]) for at in self._leading),
        )
        operands = [*self._inputs(values), *user_tensors.values()]
        operands += [_content(tensor, slot in present.results) for slot, tensor in sorted(present.contents.items())]
        operands += came
        operands += [present.saved[at] for at in self._saved]
        found = self._known.get(request)
        if found is None:
            with self._lock:
                found = self._known.get(request) or self._compiled(request, present, operands)
                self._known[request] = found
        if isinstance(found, str):
            warn_user(SecondDerivativeWarning(found))
            return None
        if states or unstable.is_any_autocast_enabled():
            with unstable.DisableAutocast(), second.modes.random_numbers_from(states, drawn=found.draws):
                results = found.function(*operands)
        else:
            results = found.function(*operands)
        return tuple([None if at is None else results[at] for at in found.positions])

    def _inputs(self, values: Sequence[Any]) -> list[Any]:
        """Return the inputs with the histories that they had at the call; they may have been detached or frozen."""
        found = [*values]
        for at, undef in self._undef:
            found[at] = undef.allocate()
        for at in self._leading:
            if not found[at].requires_grad:
                found[at] = self._second.inputs[at].alias(found[at], casting=False)
        for at in self._others:
            if found[at].requires_grad:
                found[at] = found[at].detach()
        return found

    def _compiled(self, request: Request, present: Present, operands: Sequence[Any]) -> _Derivative | str:
        second = self._second
        slots, own = sorted(present.contents), set(present.results)
        why = _why_not(second, self._part, self._ends, present)
        if why is not None:
            return why
        positions = self._backward.positions_without(request.absent)
        asked = [at is not None and wanted for at, wanted in zip(positions, request.wanted, strict=True)]
        numbers = itertools.count()
        found = tuple([next(numbers) if one else None for one in asked])
        if not any(asked):
            return _Derivative(lambda *_: (), found, draws=False)
        graph = _Tracing(second, self._index, request, self._ends, slots, own, asked, len(self._saved)).module()
        first = len(second.inputs) + len(self._ends)
        given: dict[int, ValueKey | None] = dict.fromkeys(range(first, first + len(slots)))
        given.update(zip(range(len(operands) - len(self._keys), len(operands)), self._keys, strict=True))
        draws = True

        def simplify(joint: JointGraph) -> None:
            nonlocal draws
            read_known_values(joint, given)
            draws = any(is_random(node.target) for node in joint.graph.nodes)

        joining = (False,) if request.hooked else (True, False)
        why = ""
        try:
            examples = [*self._examples(request, slots, own, operands)]
            for join_groups in joining:
                with _modes_of(second), refusing_new_guards(second.fake_mode.shape_env):
                    try:
                        function = self._compile(graph, examples, simplify, join_groups)
                        return _Derivative(function, found, draws)
                    except AotUnsupported as error:
                        why = str(error)
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error("a graph (second derivatives)", error)
            why = f"{type(error).__name__}: {error}"
        return why

    def _examples(
        self, request: Request, slots: Sequence[int], own: set[int], operands: Sequence[Any]
    ) -> Iterator[Any]:
        """Yield fakes of the operands; with the symbols of the call, where it has some."""
        second, values = self._second, iter(operands)
        for at, one in enumerate(second.inputs):
            value = second.symbolic.get(("input", at), next(values))
            yield value if one.is_number else _fake(second, value, one.meta.requires_grad, one.meta.is_leaf)
        for _, at in self._ends:
            role = second.meta.outputs[at].role
            key = ("slot", role.index) if isinstance(role, Slot) else ("output", at)
            yield _fake(second, second.symbolic.get(key, next(values)), True, False)
        for slot in slots:
            yield _fake(second, second.symbolic.get(("slot", slot), next(values)), slot in own, False)
        saved, tangents = self._backward.examples()
        came = [one for one, absent in zip(tangents, request.absent, strict=True) if not absent]
        for known, has_history in zip(came, request.with_history, strict=True):
            value = next(values)
            yield _fake(second, value if known is None else known, has_history, False)
        for at in self._saved:
            value = next(values)
            yield _fake(second, value if saved[at] is None else saved[at], False, True)


def _is_hooked(value: Any) -> bool:
    return bool(value is not None and (value._backward_hooks or value._post_accumulate_grad_hooks))


def _content(tensor: torch.Tensor, own: bool) -> torch.Tensor:
    return tensor if own else tensor.detach()


def _fake(second: SecondOrder, value: torch.Tensor, requires_grad: bool, is_leaf: bool) -> torch.Tensor:
    """Return a new fake like a tensor; one that is no leaf is the result of an operator."""
    mode = second.fake_mode
    known: torch.Tensor = (
        value if isinstance(value, FakeTensor) else mode.from_tensor(value.detach(), static_shapes=True)
    )
    with mode, torch.enable_grad():
        if has_symbols(known) and equal(known.storage_offset(), 0):  # the memory of a captured input has a known size
            frame = torch.empty_strided(known.shape, known.stride(), dtype=known.dtype, device=known.device)
            known = with_bits_of(frame, known)
        fake = known.detach().requires_grad_(requires_grad)
        return fake.view_as(fake) if requires_grad and not is_leaf else fake


@contextmanager
def _modes_of(second: SecondOrder) -> Iterator[None]:
    """Inside, the modes of the call are on."""
    with ambient.preserved() as before, default_dtype(second.modes.dtype):
        ambient.write(replace(second.modes.state, nesting=before.nesting))
        yield


def _why_not(second: SecondOrder, part: NodePart, ends: Sequence[End], present: Present) -> str | None:
    """Return why the node's gradients are not traced as a program, or None."""
    meta = second.meta
    if not second.modes.state.grad or meta.grad_mode_after is not None:
        return "its grad mode changes"
    if any(one.mutated and (one.requires_grad or one.writer is not None) for one in meta.inputs):
        return "it changes an input with gradients in place"
    if any(second.inputs[at].needed for at in present.late_inputs):
        return "it changes an input in place that its gradients depend on"
    if part.shape.asks_absent:
        return "a torch.autograd.Function in it asks which gradients are absent"
    for end in ends:
        one = None if end.kind == "input" else meta.outputs[end.position]
        if one is None or one.writer is not None or one.maker is None:
            return "a result that others are computed from is changed in place"
        if second.symbolic and not isinstance(one.role, Slot):
            return "a view with symbolic sizes is a result that others are computed from"
    calls = [node for module in _modules(second.module) for node in module.graph.nodes if node.op != "placeholder"]
    if any(CHECKPOINT.on(node) for node in calls):
        return "it has a checkpoint"
    if any(node.target is applied and Settings(*node.args[1]).once for node in calls):
        return "a torch.autograd.Function in it is differentiable once"
    if any(node.target in HELD_AS_CALLS for node in calls if node.op == "call_function"):
        return "it has control flow, a shared body, or a recurrent layer"
    return None


def _modules(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    return (one for one in module.modules() if isinstance(one, fx.GraphModule))


@dataclass(frozen=True)
class _Tracing:
    """The program of a derivative graph.

    `ends` are the keys of `UserTensors`, `slots` those with contents, of which a node's `own` have histories; `asked`:
    whether there is a gradient to compute, by operand; `saved` is the number of tensors that the call saved.
    """

    second: SecondOrder
    index: int
    request: Request
    ends: Sequence[End]
    slots: Sequence[int]
    own: set[int]
    asked: Sequence[bool]
    saved: int

    def module(self) -> fx.GraphModule:
        """Return the torch-level graph: that of the call, and one node for the pass through the output group.

        Its operands are the call's inputs, the user's tensors, contents of slots, the tangents that are present, and
        what the call saved, which it does not read itself: see `read_known_values`.
        """
        second, graph = self.second, fx.Graph()
        inputs = [graph.placeholder(f"input_{at}") for at in range(len(second.inputs))]
        held = [graph.placeholder(f"held_{number}") for number in range(len(self.ends))]
        contents = [graph.placeholder(f"content_{slot}") for slot in self.slots]
        tangents = [graph.placeholder(f"tangent_{number}") for number in range(len(self.request.with_history))]
        for node in (*held, *contents, *tangents):
            LEADS.set(node, True)
        for number in range(self.saved):
            graph.placeholder(f"saved_{number}")
        started = [
            graph.call_function(own_copy, (node,)) if one.meta.mutated else node
            for one, node in zip(second.inputs, inputs, strict=True)
        ]
        outputs, leaves = self._copy_calls(graph, started, held)
        made = graph.call_function(self.gradients, (inputs, started, outputs, leaves, held, contents, tangents))
        graph.output(tuple(graph.call_function(_item, (made, at)) for at in range(sum(self.asked))))
        return new_lazy_module(second.module, graph)

    def _copy_calls(self, graph: fx.Graph, started: Sequence[fx.Node], held: Sequence[fx.Node]) -> tuple[Any, Any]:
        """Copy the call's graph; return its outputs, and the leaves that it makes."""
        binding, meta = self.second.binding, self.second.meta
        placeholders = iter(binding.placeholders)
        instead = {meta.outputs[at].maker: node for (_, at), node in zip(self.ends, held, strict=True)}
        env: dict[fx.Node, fx.Node] = {}
        leaves: list[fx.Node] = []
        outputs: Any = ()
        for node in self.second.module.graph.nodes:
            if node.op == "placeholder":
                env[node] = started[next(placeholders)]
            elif node.op == "get_attr" and node.target in binding.attributes:
                env[node] = started[binding.attributes[node.target]]
            elif node.op == "output":
                outputs = fx.node.map_arg(node.args[0], env.__getitem__)
            else:
                env[node] = graph.node_copy(node, env.__getitem__)
                if node.target is new_leaf:
                    leaves.append(env[node])
                if node.name in instead:
                    env[node] = graph.call_function(with_history_of, (env[node], instead[node.name]))
        return outputs, leaves

    def gradients(
        self,
        inputs: Sequence[Any],
        started: Sequence[Any],
        outputs: Sequence[Any],
        leaves: Sequence[torch.Tensor],
        held: Sequence[torch.Tensor],
        contents: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the gradients asked for of the group's operands, with histories."""
        with torch.enable_grad(), unstable.DisableAutocast():
            second, came = self.second, iter(tangents)
            tensors = [(at, one) for at, one in enumerate(inputs) if not second.inputs[at].is_number]
            ends = {edge_of(one): End("input", at) for at, one in tensors if one.requires_grad}
            ends.update((edge_of(tensor), End("user", at)) for at, tensor in enumerate(held))
            given = dict(zip(self.slots, contents, strict=True))
            roots, groups = second.regrouped(ends, started, outputs, leaves, given)
            group, operands = groups[self.index], second.nodes[self.index].shape.sources
            seeds = [None if absent else next(came) for absent in self.request.absent]
            sources = dict(zip(sources_of(group, groups), group.into, strict=True))
            edges = [sources[one] for one, is_asked in zip(operands, self.asked, strict=True) if is_asked]
            found = dict(zip(group.into, gradients_through(group, ends, seeds, edges), strict=True))
            grads = tuple([found[edge] for edge in edges])
            own = {edge_of(roots[slot]): given[slot] for slot in self.own}
            if own:
                led = [*inputs, *held, *tangents]
                own.update((edge_of(one), one) for one in led if isinstance(one, torch.Tensor) and one.requires_grad)
                grads = redirect_history(grads, own)
        found_all = tuple([grad for grad in grads if grad is not None])
        if len(found_all) < len(grads):
            raise AotUnsupported("second-derivative", "a gradient", "autograd gives none where it gave one before")
        return found_all


def _item(values: Sequence[Any], at: int) -> Any:
    return values[at]
