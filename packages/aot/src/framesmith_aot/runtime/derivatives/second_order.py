"""Second derivatives by eager replay of the torch-level graph.

Note [Second order]: a compiled backward pass is not itself differentiable. With `create_graph`, the torch-level graph
runs again in eager mode on the inputs of the call, in the same modes and with the same random numbers, and autograd
computes the gradients of the output group that is asked for. That costs another forward pass for each output group, and
only then. A call retains its inputs as long as autograd retains the graph; inputs whose contents do not matter, such as
running statistics, are allocated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge

from framesmith_aot.errors import AbsentGradientsWarning, DoubleBackwardError
from framesmith_aot.runtime.codegen import FunctionText, tuple_text
from framesmith_aot.runtime.derivatives.dependence import gradient_inputs
from framesmith_aot.runtime.derivatives.eager_replay import EagerReplay, gradients_through, have_same_groups, sources_of
from framesmith_aot.runtime.derivatives.replay_inputs import (
    ReplayInput,
    ReplayModes,
    ReplayNode,
    forward_calls,
    replay_inputs,
    replay_modes,
)
from framesmith_aot.runtime.histories import Grads, edges_of, history_of, history_text, redirect_history
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import functional
from framesmith_aot.trace.joint import Binding, JointGraph
from framesmith_aot.trace.metadata import GraphMeta, InputMeta, Origin
from framesmith_aot.trace.output_groups import (
    End,
    Ends,
    Hidden,
    NodeShape,
    OutputGroup,
    Source,
    edge_of,
    joined,
    order_of,
    output_groups,
)
from framesmith_aot.trace.saved import MODIFIED_IN_PLACE
from framesmith_aten.graphs.autograd_calls import with_data
from framesmith_aten.layouts import overlaps_itself
from framesmith_aten.operators import is_custom
from framesmith_aten.symbolic import has_symbols
from framesmith_guards import warn_user
from framesmith_guards.torch_adapter import FakeTensorMode

#: The parts of a call that are retained for a replay: its inputs (None: see `Undef`), by position a tensor
#: with the version counter and the version it had, and the generators' states before the call.
Rerun = tuple[tuple[torch.Tensor | None, ...], Mapping[int, tuple[torch.Tensor, int]], tuple[torch.Tensor, ...]]

#: Tensors that the user holds and a node reads: mutated inputs, and outputs. They are aliases with the history at the
#: call: the user may give the tensor another, even through this node.
UserTensors = Mapping[End, torch.Tensor]


@dataclass(frozen=True)
class Present:
    """The tensors that eager mode saves for a node, as they are when its pass runs: `.data` may have changed them.

    `results`: its own, by slot; `contents`: of all saved slots; `late_inputs`: the mutated inputs; `stand_ins`: copies
    or casts from which inputs are restored that were mutated since (see `NodePart`). `saved`: what the compiled graph
    saves.
    """

    results: Mapping[int, torch.Tensor]
    contents: Mapping[int, torch.Tensor]
    late_inputs: Mapping[int, torch.Tensor]
    stand_ins: Mapping[int, torch.Tensor]
    saved: Sequence[torch.Tensor]


@dataclass(frozen=True)
class SecondOrder:
    """Replays a graph in eager mode for the derivatives of its backward pass.

    `fake_mode` is that of the trace; `symbolic` are its numbers, and its fakes with symbolic sizes, by "input" or
    "slot" and position. `joined`: see `JointGraph`.
    """

    module: fx.GraphModule
    binding: Binding
    meta: GraphMeta
    inputs: Sequence[ReplayInput]
    nodes: Sequence[ReplayNode]
    modes: ReplayModes
    fake_mode: FakeTensorMode
    symbolic: Mapping[tuple[str, int], Any]
    joined: Sequence[frozenset[int]]

    def rerun_expression(
        self, text: FunctionText, names: Sequence[str], before: Mapping[int, str], watched: Collection[int]
    ) -> str:
        """Return the expression, evaluated before the call, for a `Rerun`.

        `before` names the tensors that hold the history of some inputs; `watched` are the inputs that autograd itself
        checks. The name `inputs` is bound to the tuple of all inputs.
        """
        followed = [
            at
            for at, one in enumerate(self.inputs)
            if one.needed and one.versioned and not (one.copied or one.is_number or at in watched)
        ]
        values = [
            one.expression(text, name, before.get(at, name), at in followed)
            for at, (one, name) in enumerate(zip(self.inputs, names, strict=True))
        ]
        retained = "inputs" if values == [*names] else tuple_text(values)
        counters = [f"{names[at]}.detach()" if values[at] != names[at] else names[at] for at in followed]
        versions = [f"{at}: ({one}, {names[at]}._version)" for at, one in zip(followed, counters, strict=True)]
        return f"({retained}, {{{', '.join(versions)}}}, {self.modes.states_text(text)})"

    def read_by(self, node: NodeShape) -> dict[End, Source]:
        """Return the operands that `node` reads, itself or through hidden results, by their `UserTensors` key."""
        found: dict[End, Source] = {}
        for source in node.sources:
            if isinstance(source, End):
                if source.kind == "output":
                    found[source] = source
                continue
            maker = self.nodes[source.node].shape
            slot = maker.results[source.position]
            if isinstance(slot, Hidden):
                found |= self.read_by(maker)
                continue
            origin = self._origin(slot)
            if origin.kind == "input" and self.meta.inputs[origin.index].writer is not None:
                found[End("input", origin.index)] = source
            elif origin.kind == "output":
                found[End("output", origin.index)] = source
        return found

    def _origin(self, slot: int) -> Origin:
        """Return the origin of a slot with gradients; `why_not_replayable` has checked that there is one."""
        origin = self.meta.slots[slot].origin
        assert origin is not None
        return origin

    def gradients(
        self,
        index: int,
        rerun: Rerun,
        user_tensors: UserTensors,
        present: Present,
        tangents: Sequence[torch.Tensor | None],
        wanted: Sequence[bool],
    ) -> Grads:
        """Return the gradients of the `wanted` operands of autograd node `index`, with their history if it is recorded.

        The history leads through `user_tensors` and the results in `present`. Precondition: no `obstacle`.
        """
        if not torch.is_grad_enabled():
            warn_user(AbsentGradientsWarning())
        inputs, versions, states = rerun
        values = [one.restored(value) for one, value in zip(self.inputs, inputs, strict=True)]
        remade = mutated_since(versions) & {*present.stand_ins}
        restored = {at: _restored(values[at], present.stand_ins[at]) for at in remade}
        ends, roots, groups, views = self._run(values, states, user_tensors, restored, present)
        seeds = [None if tangent is None else history_of(tangent) for tangent in tangents]
        group, operands = groups[index], self.nodes[index].shape.sources
        sources = dict(zip(sources_of(group, groups), group.into, strict=True))
        edges = [sources[operand] for operand, is_wanted in zip(operands, wanted, strict=True) if is_wanted]
        of = dict(zip(group.into, gradients_through(group, ends, seeds, edges), strict=True))
        grads = tuple([of[sources[operand]] for operand in operands])
        if not torch.is_grad_enabled():
            return tuple([None if grad is None else grad.detach() for grad in grads])
        if not (present.results or views or self.modes.casting or restored):
            return grads
        instead = {edge_of(roots[slot]): result for slot, result in present.results.items()}
        instead.update((edge, values[end.position]) for edge, end in ends.items() if end.kind == "input")
        instead.update((edge_of(tensor), tensor) for tensor in user_tensors.values())
        instead.update(views)
        return redirect_history(grads, instead | edges_of(seeds, tangents))

    def obstacle(self, rerun: Rerun, index: int, stand_ins: Collection[int]) -> str | None:
        """Return why the call cannot be replayed for node `index` (an input was mutated or freed since), or None.

        Eager mode does not save those inputs, and so does not check them.
        """
        values, versions, _ = rerun
        mutated = mutated_since(versions)
        if not mutated and not any(map(_may_be_freed, values)):
            return None
        for at in sorted((mutated - {*stand_ins}) & self.nodes[index].depends_on):
            return f"an input of shape {list(versions[at][0].shape)} was changed in place since the call"
        alive = [value for at, value in enumerate(values) if value is not None and at not in mutated & {*stand_ins}]
        freed = [value for value in alive if _is_freed(value)]
        return f"the memory of an input of shape {list(freed[0].shape)} was freed since the call" if freed else None

    def leading(self, rerun: Rerun) -> list[torch.Tensor]:
        """Return the retained inputs that have a history."""
        pairs = zip(self.inputs, rerun[0], strict=True)
        tensors = [value for one, value in pairs if value is not None and not one.is_number]
        return [value for value in tensors if value.requires_grad]

    def _run(
        self,
        values: Sequence[torch.Tensor],
        states: Sequence[torch.Tensor],
        user_tensors: UserTensors,
        restored: Mapping[int, torch.Tensor],
        present: Present,
    ) -> tuple[Ends, Mapping[int, torch.Tensor], list[OutputGroup], Mapping[GradientEdge, torch.Tensor]]:
        """Replay the graph: return its ends, the tensors of slots with gradients, its output groups, and views.

        Histories lead to `user_tensors`, but for views that are written to through other views: these are
        returned by their edges in the replay.
        """
        inputs = [
            restored[at].requires_grad_(one.meta.requires_grad)
            if at in restored
            else one.alias(value, self.modes.casting)
            for at, (one, value) in enumerate(zip(self.inputs, values, strict=True))
        ]
        tensors = [(at, value) for at, value in enumerate(inputs) if not self.inputs[at].is_number]
        ends = {edge_of(value): End("input", at) for at, value in tensors if value.requires_grad}
        ends.update((edge_of(tensor), End("user", at)) for at, tensor in enumerate(user_tensors.values()))
        made: dict[str, torch.Tensor] = {}
        changed: dict[str, tuple[int | str, torch.Tensor]] = {}
        views: dict[int, torch.Tensor] = {}
        for (kind, at), tensor in user_tensors.items():
            one = self.meta.inputs[at] if kind == "input" else self.meta.outputs[at]
            maker = at if isinstance(one, InputMeta) else one.maker
            if one.writer is not None and maker is not None:
                changed[one.writer] = maker, tensor
            elif isinstance(maker, str):
                made[maker] = tensor
            else:
                views[at] = tensor
        replay = EagerReplay(self.module, self.binding.attributes, inputs, made, changed)
        with self.modes.active(states):
            outputs = replay.run(*[inputs[at] for at in self.binding.placeholders])
        for at, content in present.late_inputs.items():
            _overwrite(replay.inputs[at], content)
        roots, groups = self.regrouped(ends, inputs, outputs, replay.leaves, present.contents)
        return ends, roots, groups, {edge_of(outputs[at]): tensor for at, tensor in views.items()}

    def regrouped(
        self,
        ends: dict[GradientEdge, End],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[Any],
        leaves: Sequence[torch.Tensor],
        contents: Mapping[int, torch.Tensor],
    ) -> tuple[Mapping[int, torch.Tensor], list[OutputGroup]]:
        """Return the tensors of slots with gradients, and the output groups of a run that gave these tensors.

        Adds to `ends` those of the run. `contents`: what slots hold by now.
        """
        ends.update((edge_of(leaf), End("dropped", at)) for at, leaf in enumerate(leaves))
        slots = {slot: one.origin.find(inputs, outputs) for slot, one in enumerate(self.meta.slots) if one.origin}
        with_history = {slot for node in self.nodes for slot in node.shape.results}
        roots = {slot: tensor for slot, tensor in slots.items() if slot in with_history}
        for slot, content in contents.items():
            if slot in slots:
                _overwrite(slots[slot], content)
        recorded = self.meta.recorded_views
        ends.update((edge_of(outputs[at]), End("output", at)) for at in recorded)
        bases = {End("output", at): slots for at, slots in recorded.items()}
        groups = output_groups(roots, ends, bases, self.meta.read_together)
        if self.joined:
            groups = joined(groups, self.joined, ends)
            groups = [groups[at] for at in order_of(groups, bases)]
        if len(groups) == len(self.nodes):
            groups = [groups[node.group] for node in self.nodes]
        if not have_same_groups([node.shape for node in self.nodes], groups):
            raise DoubleBackwardError("an eager replay recorded another graph")
        return roots, groups


def mutated_since(versions: Mapping[int, tuple[torch.Tensor, int]]) -> set[int]:
    """Return the inputs whose versions are others than at the call."""
    return {at for at, (tensor, version) in versions.items() if tensor._version != version}


def _restored(value: torch.Tensor, stand_in: torch.Tensor) -> torch.Tensor:
    """Return an input with its values at the call, from its stand-in, with its strides."""
    with torch.no_grad(), unstable.DisableAutocast():
        if overlaps_itself(value):  # an element may have several indices
            return stand_in.to(value.dtype)
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(stand_in)


def _overwrite(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Write other contents into a tensor, untracked by autograd, as `.data` does."""
    if functional.is_functional(tensor):
        functional.replace_value(tensor, functional.current_value(content))
    elif tensor.shape == content.shape and not overlaps_itself(
        tensor
    ):  # or eager mode saves a tensor it was expanded from
        with unstable.DisableAutocast():
            tensor.data.copy_(content.detach())


def check_versions(expected: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Raise RuntimeError, as autograd does, for tensors mutated since they had these versions."""
    for tensor, version in expected:
        if tensor._version != version:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been {MODIFIED_IN_PLACE}: a tensor of shape "
                f"{list(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
            )


def _may_be_freed(value: Any) -> bool:
    """Whether it is a tensor without an address: with no elements, or with a storage that was resized to 0 since."""
    return isinstance(value, torch.Tensor) and not value.data_ptr()


def _is_freed(value: Any) -> bool:
    """Whether it is a tensor whose storage was resized to 0 since."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return bool(value.numel()) and not value.untyped_storage().nbytes()


def why_not_replayable(gm: fx.GraphModule, joint: JointGraph) -> str | None:
    """Return why the graph `gm`, traced as `joint`, cannot be replayed for second derivatives, or None."""
    if any(slot.differentiable and slot.origin is None for slot in joint.meta.slots):
        return "an eager replay does not show one of its results"
    if any(is_custom(node.target) for node in [*gm.graph.nodes, *forward_calls(joint)]):
        return "it calls a custom operator, which may have side effects"
    if any(node.target is with_data for node in gm.graph.nodes):
        return "an input has other memory since, by `tensor.data = ...`"
    return None


def second_order(gm: fx.GraphModule, binding: Binding, joint: JointGraph, examples: Sequence[Any]) -> SecondOrder:
    """Return the replay of `gm`, which was traced as `joint` for inputs like `examples`."""
    nodes = [
        ReplayNode(one.shape, one.group, inputs_of)
        for one, inputs_of in zip(joint.nodes, gradient_inputs(joint), strict=True)
    ]
    inputs = replay_inputs(gm, binding, joint, examples)
    symbolic = dict(_symbolic(joint))
    return SecondOrder(
        gm, binding, joint.meta, inputs, nodes, replay_modes(gm, joint), joint.fake_mode, symbolic, joint.joined
    )


def _symbolic(joint: JointGraph) -> Iterator[tuple[tuple[str, int], Any]]:
    """Yield `SecondOrder.symbolic`."""
    for kind, nodes in (("input", joint.inputs), ("slot", joint.slots)):
        for at, node in enumerate(nodes):
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor) or has_symbols(value):
                yield (kind, at), value


def leading_to_inputs(text: FunctionText, meta: GraphMeta, inputs: Sequence[str], before: Mapping[int, str]) -> str:
    """Return the expression, evaluated before the call, for tensors with the histories of the inputs.

    An input with a history, or one that gets one, is replaced by an untracked alias: the input would hold the graph.
    `before` names the tensors that hold the history of some inputs.
    """
    names = []
    for at, one in enumerate(meta.inputs):
        if one.requires_grad:
            as_it_is = one.is_leaf and (one.copy is None or one.copy.no_grad)
            names.append(inputs[at] if as_it_is else history_text(text, before.get(at, inputs[at])))
    return tuple_text(names)
