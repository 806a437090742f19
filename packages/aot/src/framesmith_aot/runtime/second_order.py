"""Derivatives of the backward pass: the torch-level graph is run again, where autograd sees it.

Note [Second order]: a compiled backward pass is not itself differentiable. Where its gradients are to have a history
(`create_graph`), the graph runs again as plain PyTorch on the inputs of the call, in the same modes and with the same
random numbers, and autograd computes the gradients of the region that is asked for. That costs another forward pass
for each region, and only then. The inputs are kept for it as long as autograd keeps the graph; those that may hold
anything then, as running statistics do, are made anew.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import GradientEdge

from framesmith_aot.errors import DoubleBackwardError, SecondDerivativeWarning
from framesmith_aot.runtime.codegen import FunctionText, tuple_text
from framesmith_aot.runtime.dependence import accepts_undef, behind, needed
from framesmith_aot.runtime.eager_replay import EagerReplay, gradients_through, have_same_groups, operands_of
from framesmith_aot.runtime.histories import Grads, edges_of, history_of, own_copy, redirect_history
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.joint import Binding, JointGraph
from framesmith_aot.trace.metadata import GraphMeta, Origin
from framesmith_aot.trace.output_groups import (
    Ends,
    Hidden,
    NodeShape,
    Operand,
    OutputGroup,
    edge_of,
    output_groups,
)
from framesmith_aot.trace.saved import MODIFIED_IN_PLACE
from framesmith_aten.failures import composite_may_fail
from framesmith_aten.graphs.numbers import is_number_node
from framesmith_aten.layouts import overlaps_itself
from framesmith_aten.meta import MUTATED_INPUT, PHASE
from framesmith_aten.operators import is_custom, is_random, op_name
from framesmith_aten.symbolic import has_symbols
from framesmith_guards import warn_user
from framesmith_guards.contexts import ambient

#: Calls with which a graph turns autocast on.
ENTERS_AUTOCAST = frozenset({unstable.enter_autocast})

#: What it takes to run a call again: its inputs (None: see `Blank`), by position what counts their versions and the
#: version they had, the generators' states before it.
Rerun = tuple[tuple[torch.Tensor | None, ...], Mapping[int, tuple[torch.Tensor, int]], tuple[torch.Tensor, ...]]

#: What a call gave the user and one of its nodes reads, by position: inputs that it changed, and n + that of outputs,
#: where there are n inputs. Aliases with the history at the call: the user may give the tensor another, even one that
#: leads through the node which holds this.
Held = Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Present:
    """What there is, when the pass of a node runs, of what eager mode keeps for it: `.data` may have changed it.

    `results`: the node's own, by slot; `contents` of all slots that are kept; what is `left` in inputs that the graph
    changes; `stand_ins`: of which inputs are made again that were changed in place since (see `NodePart`).
    """

    results: Mapping[int, torch.Tensor]
    contents: Mapping[int, torch.Tensor]
    left: Mapping[int, torch.Tensor]
    stand_ins: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Undef:
    """An input of which no call keeps anything: what it holds when the graph runs again does not matter."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def made(self) -> torch.Tensor:
        """Such a tensor."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class SecondOrder:
    """Runs a graph again for the derivatives of its backward pass.

    `views` are the positions of outputs that nodes read as they read inputs, and the slots they are views of.
    `order` is that of `JointGraph`. `placeholders` and `attributes` say which input each of the module's operands is,
    `origins` where the tensors of slots come from, `makers` and `writers` are those of `Collected`, `requires_grad`
    says what the inputs are, `is_leaf` which of them are leaves, `needed` which of them results with gradients depend
    on, `behind` which the gradients of each node depend on, `changed` which the graph writes to, `rewritten` which
    the code behind it may write to, `detached` of which only an alias is kept, `blank` of which nothing is,
    `unversioned` which count no versions, `numbers` which are no tensors, `modes` and `dtype` (the default) are what it
    ran under, `casting` whether autocast is on somewhere, `devices` whose generators it draws from beside the CPU's
    (`random`: whether it draws at all).
    """

    module: fx.GraphModule
    nodes: Sequence[NodeShape]
    views: Mapping[int, int | None]
    order: Sequence[int]
    placeholders: Sequence[int]
    attributes: Mapping[str, int]
    origins: Mapping[int, Origin]
    makers: Mapping[int, str]
    writers: Mapping[int, str]
    requires_grad: Sequence[bool]
    is_leaf: Sequence[bool]
    needed: frozenset[int]
    behind: Sequence[frozenset[int]]
    changed: frozenset[int]
    rewritten: frozenset[int]
    detached: frozenset[int]
    undef: Mapping[int, Undef]
    unversioned: frozenset[int]
    numbers: frozenset[int]
    modes: ambient.Ambient
    dtype: torch.dtype
    casting: bool
    random: bool
    devices: tuple[int, ...]

    def keep(
        self, text: FunctionText, inputs: Sequence[str], before: Mapping[int, str], watched: Collection[int]
    ) -> str:
        """The expression, evaluated before the call, for what it takes to run the call again: a `Rerun`.

        `before` names what has the history of some inputs, `watched` are those that autograd itself looks after. All
        are in a tuple bound to "inputs".
        """
        followed = sorted(self.needed - self.copied - self.unversioned - self.numbers - {*watched})
        values = [
            self._kept_expression(text, at, name, before.get(at, name), at in followed)
            for at, name in enumerate(inputs)
        ]
        kept = "inputs" if values == [*inputs] else tuple_text(values)
        counters = [f"{inputs[at]}.detach()" if values[at] != inputs[at] else inputs[at] for at in followed]
        versions = [f"{at}: ({one}, {inputs[at]}._version)" for at, one in zip(followed, counters, strict=True)]
        states = []
        if self.random:
            states.append(f"{text.bind('generator_state', torch.default_generator.get_state)}()")
            states += [f"{text.bind('cuda_state', torch.cuda.get_rng_state)}({device})" for device in self.devices]
        return f"({kept}, {{{', '.join(versions)}}}, {tuple_text(states)})"

    @functools.cached_property
    def with_history(self) -> frozenset[int]:
        """The slots with gradients."""
        return frozenset(slot for node in self.nodes for slot in node.results if isinstance(slot, int))

    @functools.cached_property
    def copied(self) -> frozenset[int]:
        """The inputs of which a call keeps what they were: they do not stay so, and results depend on them.

        Not of those that eager mode keeps, where others than the graph change them: there that is an error.
        """
        kept = {index for node in self.nodes for index in node.eager_saved.inputs}
        return (self.changed | (self.rewritten - kept)) & self.needed

    def _kept_expression(self, text: FunctionText, at: int, name: str, history: str, followed: bool) -> str:
        """What is kept of an input. Of one that eager mode does not keep, no more than its contents and its history."""
        if at in self.numbers:
            return name
        if at in self.undef:
            return "None"
        if at in self.copied:
            return f"{text.bind('own_copy', own_copy)}({history})"
        if followed and self.requires_grad[at] and not self.is_leaf[at]:
            return history_text(text, history)
        return f"{name}.detach()" if at in self.detached else name

    def read_by(self, node: NodeShape) -> dict[int, Operand]:
        """What the user holds of what `node` reads, itself or through what is hidden: operands, by `Held` position."""
        inputs = len(self.requires_grad)
        found: dict[int, Operand] = {}
        for operand in node.operands:
            if isinstance(operand, int):
                if operand >= inputs:
                    found[operand] = operand
                continue
            maker = self.nodes[operand[0]]
            slot = maker.results[operand[1]]
            if isinstance(slot, Hidden):
                found |= self.read_by(maker)
                continue
            origin = self.origins[slot]
            if origin.kind == "input" and origin.index in self.writers:
                found[origin.index] = operand
            elif origin.kind == "output":
                found[inputs + origin.index] = operand
        return found

    def gradients(
        self,
        rerun: Rerun,
        index: int,
        held: Held,
        present: Present,
        tangents: Sequence[torch.Tensor | None],
        wanted: Sequence[bool],
    ) -> Grads:
        """The gradients of those operands of autograd node `index` that are `wanted`, with their history.

        It passes what is `held`, and the results that are `present`; what was changed and has no stand-in stands in the
        way (see `obstacle`).
        """
        warn_user(SecondDerivativeWarning())
        kept, versions, states = rerun
        values = [self.undef[at].made() if value is None else value for at, value in enumerate(kept)]
        remade = _changed(versions) & {*present.stand_ins}
        restored = {at: _restored(values[at], present.stand_ins[at]) for at in remade}
        ends, roots, groups, views = self._run(values, states, held, restored, present)
        seeds = [None if tangent is None else history_of(tangent) for tangent in tangents]
        group, operands = groups[index], self.nodes[index].operands
        sources = dict(zip(operands_of(group, groups), group.into, strict=True))
        places = [sources[operand] for operand, is_wanted in zip(operands, wanted, strict=True) if is_wanted]
        of = dict(zip(group.into, gradients_through(group, ends, seeds, places), strict=True))
        grads = tuple([of[sources[operand]] for operand in operands])
        if not (present.results or views or self.casting or restored):
            return grads
        instead = {edge_of(roots[slot]): result for slot, result in present.results.items()}
        instead.update((edge, values[at]) for edge, at in ends.items() if 0 <= at < len(values))
        instead.update((edge_of(tensor), tensor) for tensor in held.values())
        instead.update(views)
        return redirect_history(grads, instead | edges_of(seeds, tangents))

    def obstacle(self, rerun: Rerun, index: int, stand_ins: Collection[int]) -> str | None:
        """What has happened to inputs since the call for which it cannot be run again for the node `index`, or None.

        Eager mode does not keep those inputs, and so does not ask what they are.
        """
        values, versions, _ = rerun
        changed = _changed(versions)
        for at in sorted((changed - {*stand_ins}) & self.behind[index]):
            return f"an input of shape {list(versions[at][0].shape)} was changed in place since the call"
        kept = [value for at, value in enumerate(values) if value is not None and at not in changed & {*stand_ins}]
        freed = [value for value in kept if _is_freed(value)]
        return f"the memory of an input of shape {list(freed[0].shape)} was freed since the call" if freed else None

    def leading(self, rerun: Rerun) -> list[torch.Tensor]:
        """What is kept of the inputs with a history."""
        tensors = [value for at, value in enumerate(rerun[0]) if value is not None and at not in self.numbers]
        return [value for value in tensors if value.requires_grad]

    def _run(
        self,
        values: Sequence[torch.Tensor],
        states: Sequence[torch.Tensor],
        held: Held,
        restored: Mapping[int, torch.Tensor],
        present: Present,
    ) -> tuple[Ends, Mapping[int, torch.Tensor], list[OutputGroup], Mapping[GradientEdge, torch.Tensor]]:
        """The ends, the tensors of slots and the regions of another run, which leads to what is `held`.

        Then what it does not lead to, since it is written to through views: the edges where it has it, and the held.
        """
        inputs = [
            restored[at].requires_grad_(self.requires_grad[at]) if at in restored else self._alias(at, value)
            for at, value in enumerate(values)
        ]
        count = len(inputs)
        ends = {edge_of(value): at for at, value in enumerate(inputs) if at not in self.numbers and value.requires_grad}
        ends.update((edge_of(tensor), -1 - at) for at, tensor in held.items())
        views = {at: tensor for at, tensor in held.items() if at >= count and at - count not in self.makers}
        made = {self.makers[at - count]: held[at] for at in held if at not in self.writers and at not in views}
        changed: dict[str, tuple[int | str, torch.Tensor]] = {
            self.writers[at]: (at if at < count else self.makers[at - count], tensor)
            for at, tensor in held.items()
            if at in self.writers
        }
        replay = EagerReplay(self.module, self.attributes, inputs, made, changed)
        with ambient.preserved(), self._random_numbers_from(states), default_dtype(self.dtype):
            ambient.write(replace(self.modes, nesting=ambient.read().nesting))
            outputs = replay.run(*[inputs[at] for at in self.placeholders])
            if self.casting and not ambient.read().nesting:
                torch.clear_autocast_cache()
        tensors = {slot: origin.find(inputs, outputs) for slot, origin in self.origins.items()}
        roots = {slot: tensor for slot, tensor in tensors.items() if slot in self.with_history}
        for slot, content in present.contents.items():
            if slot in tensors:
                _overwrite(tensors[slot], content)
        for at, content in present.left.items():
            _overwrite(replay.inputs[at], content)
        ends.update((edge_of(outputs[at]), count + at) for at in self.views)
        bases = {count + at: slot for at, slot in self.views.items() if slot is not None}
        groups = output_groups(roots, ends, bases)
        if len(groups) == len(self.order):
            groups = [groups[index] for index in self.order]
        if not have_same_groups(self.nodes, groups):
            raise DoubleBackwardError("the graph is another one when it is run again")
        return ends, roots, groups, {edge_of(outputs[at - count]): tensor for at, tensor in views.items()}

    def _alias(self, at: int, value: torch.Tensor) -> torch.Tensor:
        """An input of the second run: with a node of its own to stop at, and memory of its own if it is written to."""
        if at in self.numbers:
            return value
        with torch.enable_grad():
            if at in self.copied:
                return own_copy(value)
            if at in self.changed:
                return own_copy(value.detach().requires_grad_(self.requires_grad[at]))
            if not self.requires_grad[at] or not (value.requires_grad or self.is_leaf[at]):
                return value.detach().requires_grad_(self.requires_grad[at])  # whatever it has become since
            if self.casting and self.is_leaf[at]:
                return value.detach().requires_grad_()  # of which autocast remembers the cast: history is led elsewhere
            with unfrozen(value):
                return value.view_as(value)

    @contextmanager
    def _random_numbers_from(self, states: Sequence[torch.Tensor]) -> Iterator[None]:
        if not states:
            yield
            return
        # Other threads that draw from these generators meanwhile get the same numbers twice.
        with _generators, torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(states[0])
            for device, state in zip(self.devices, states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


#: Generators are set back by one thread at a time, or they would be left as another has set them.
_generators = threading.RLock()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What a tensor made of Python's floats is."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def unfrozen(leaf: torch.Tensor) -> Iterator[None]:
    """A leaf that required gradients when its history began does so again: it may have been frozen since."""
    if leaf.requires_grad:
        yield
        return
    leaf.requires_grad_()
    try:
        yield
    finally:
        leaf.requires_grad_(False)


def _changed(versions: Mapping[int, tuple[torch.Tensor, int]]) -> set[int]:
    """The inputs that have been changed since they had these versions."""
    return {at for at, (tensor, version) in versions.items() if tensor._version != version}


def _restored(value: torch.Tensor, stand_in: torch.Tensor) -> torch.Tensor:
    """What an input was, laid out as it is, made of what was computed of it."""
    with torch.no_grad(), unstable.DisableAutocast():
        if overlaps_itself(value):  # its elements are not to be written one by one
            return stand_in.to(value.dtype)
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(stand_in)


def _overwrite(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Gives a tensor other contents, of which autograd does not know: as `.data` changes what it keeps."""
    if tensor.shape == content.shape and not overlaps_itself(tensor):  # or it keeps what that was made of
        with unstable.DisableAutocast():
            tensor.data.copy_(content.detach())


def check_versions(expected: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Raises RuntimeError for tensors that have been changed since they had these versions, as autograd does."""
    for tensor, version in expected:
        if tensor._version != version:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been {MODIFIED_IN_PLACE}: a tensor of shape "
                f"{list(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
            )


def _is_freed(value: Any) -> bool:
    """Whether it is a tensor whose memory was given away since."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return bool(value.numel()) and not value.untyped_storage().nbytes()


def why_not_replayable(gm: fx.GraphModule, joint: JointGraph) -> str | None:
    """Why the graph `gm`, traced as `joint`, cannot be run again for second derivatives, or None."""
    if any(flows and slot not in joint.origins for slot, flows in enumerate(joint.meta.slots)):
        return "a result is not to be found when it is run again"
    if any(is_custom(node.target) for node in [*gm.graph.nodes, *_forward_calls(joint)]):
        return "it calls an operator of the user's, which may act outside of tensors"
    return None


def second_order(gm: fx.GraphModule, binding: Binding, joint: JointGraph, examples: Sequence[Any]) -> SecondOrder:
    """What runs `gm`, which was traced as `joint` for inputs like `examples`, again."""
    numbers = frozenset(at for at, node in enumerate(joint.inputs) if is_number_node(node))
    devices = (node.meta["val"].device for at, node in enumerate(joint.inputs) if at not in numbers)
    cuda = {device for device in devices if device.type == "cuda"}
    placeholders = gm.graph.find_nodes(op="placeholder")
    depended_on = needed(joint)
    return SecondOrder(
        gm,
        joint.nodes,
        joint.views,
        joint.order,
        binding.placeholders,
        binding.attributes,
        joint.origins,
        joint.makers,
        joint.writers,
        joint.meta.requires_grad,
        joint.meta.is_leaf,
        depended_on,
        behind(joint),
        frozenset(joint.meta.changed),
        frozenset(binding.placeholders[at] for at, node in enumerate(placeholders) if MUTATED_INPUT.get(node)),
        frozenset(_detached(joint, depended_on)),
        dict(_undef(gm, joint, examples, depended_on)),
        frozenset(at for at, example in enumerate(examples) if at not in numbers and example.is_inference()),
        numbers,
        ambient.read(),
        torch.get_default_dtype(),
        ambient.read().any_autocast or any(node.target in ENTERS_AUTOCAST for node in gm.graph.nodes),
        any(is_random(node.target) for node in _forward_calls(joint)),
        tuple(device.index or 0 for device in cuda),
    )


def _undef(
    gm: fx.GraphModule, joint: JointGraph, examples: Sequence[Any], needed: Collection[int]
) -> Iterator[tuple[int, Undef]]:
    """The inputs of which no call keeps anything: no result with gradients depends on them, and nothing fails for them.

    Of those of symbolic sizes only the call knows what they are like.
    """
    if any(composite_may_fail(op_name(node.target)) for node in gm.graph.nodes if node.op == "call_function"):
        return  # it checks data itself, which the trace does not show
    for at in sorted(accepts_undef(joint) - {*needed}):
        value = examples[at]
        if not isinstance(value, torch.Tensor) or joint.meta.requires_grad[at] or has_symbols(value):
            continue
        if value.layout is torch.strided and not value.is_quantized:
            yield at, Undef((*value.shape,), value.stride(), value.dtype, value.device)


def _detached(joint: JointGraph, needed: Collection[int]) -> Iterator[int]:
    """The inputs of which a call keeps no more than an alias: autograd's nodes would hold what holds them.

    They are those with which a history is recorded, those that no result with gradients depends on, and those that
    eager mode does not hold and the user may change.
    """
    held = {index for node in joint.nodes for index in node.eager_saved.inputs} | {*joint.meta.changed}
    yield from (copy.index for copy in joint.meta.copy_back if not copy.no_grad)
    yield from {*range(len(joint.inputs))} - {*needed}
    yield from (at for at, requires in enumerate(joint.meta.requires_grad) if not requires and at not in held)


def _forward_calls(joint: JointGraph) -> list[fx.Node]:
    return [node for node in joint.graph.nodes if node.op == "call_function" and PHASE.get(node) == "forward"]


def leading_to_inputs(text: FunctionText, meta: GraphMeta, inputs: Sequence[str], before: Mapping[int, str]) -> str:
    """The expression, evaluated before the call, for tensors whose history leads to that of the inputs.

    Of an input that has or gets one, it is an alias that autograd knows nothing of: the input would hold the graph.
    `before` names what has the history of some inputs.
    """
    rebound = {copy.index for copy in meta.copy_back if not copy.no_grad}
    wanted = [at for at, requires in enumerate(meta.requires_grad) if requires]
    as_they_are = {at for at in wanted if meta.is_leaf[at]} - rebound
    names = [inputs[at] if at in as_they_are else history_text(text, before.get(at, inputs[at])) for at in wanted]
    return tuple_text(names)


def history_text(text: FunctionText, name: str) -> str:
    """The expression for an alias with the history of a tensor, see `history_of`."""
    return f"{text.bind('history_of', history_of)}({name})"
