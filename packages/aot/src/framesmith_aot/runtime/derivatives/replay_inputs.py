"""The parts of a call that are retained for an eager replay, and their restoration."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx

from framesmith_aot.runtime.codegen import FunctionText
from framesmith_aot.runtime.derivatives.dependence import accepts_undef, needed
from framesmith_aot.runtime.histories import history_text, own_copy
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.joint import Binding, JointGraph
from framesmith_aot.trace.metadata import InputMeta
from framesmith_aot.trace.output_groups import NodeShape
from framesmith_aten.failures import composite_may_fail
from framesmith_aten.graphs.numbers import is_number_node
from framesmith_aten.meta import MUTATED_INPUT, PHASE, Key
from framesmith_aten.operators import is_random, op_name
from framesmith_aten.symbolic import has_symbols
from framesmith_guards.contexts import ambient

#: Placeholders of a torch-level graph: gradients go there though they may depend on no element of it.
LEADS: Final[Key[bool]] = Key("leads")

#: Calls that turn autocast on.
ENTERS_AUTOCAST = frozenset({unstable.enter_autocast})


@dataclass(frozen=True)
class Undef:
    """An input whose contents do not matter to an eager replay: a call retains nothing of it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def allocate(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class ReplayInput:
    """One input of an eager replay.

    `needed`: some result with gradients depends on it. `copied`: a call retains a copy, as the graph, or the code after
    it, may mutate the input. `alias_only`: a call retains no more than an alias. `versioned`: it has a version counter
    (inference tensors have none).
    """

    meta: InputMeta
    is_number: bool
    needed: bool
    copied: bool
    alias_only: bool
    versioned: bool
    undef: Undef | None

    def expression(self, text: FunctionText, name: str, history: str, followed: bool) -> str:
        """Return the expression for what a call retains: contents and history where eager mode does not save the input.

        `history` names the tensor whose history it has; `followed`: its version is checked.
        """
        if self.is_number:
            return name
        if self.undef is not None:
            return "None"
        if self.copied:
            return f"{text.bind('own_copy', own_copy)}({history})"
        if followed and self.meta.has_node:
            return history_text(text, history)
        return f"{name}.detach()" if self.alias_only else name

    def restored(self, retained: Any) -> Any:
        return retained if self.undef is None else self.undef.allocate()

    def alias(self, value: torch.Tensor, casting: bool) -> torch.Tensor:
        """Return the input of a replay, with a node of its own, and memory of its own if it is written to."""
        requires_grad = self.meta.requires_grad
        if self.is_number:
            return value
        with torch.enable_grad():
            if self.copied:
                return own_copy(value)
            if self.meta.mutated:
                return own_copy(value.detach().requires_grad_(requires_grad))
            if not requires_grad or not (value.requires_grad or self.meta.is_leaf):
                return value.detach().requires_grad_(requires_grad)  # it may have been detached or rebound since
            if casting and self.meta.is_leaf:
                return value.detach().requires_grad_()  # autocast caches its cast: the history is redirected later
            with unfrozen(value):
                return value.view_as(value)


@dataclass(frozen=True)
class ReplayNode:
    """One autograd node: its position among the output groups, the inputs that its operands' gradients depend on."""

    shape: NodeShape
    group: int
    depends_on: frozenset[int]


@dataclass(frozen=True)
class ReplayModes:
    """The modes that a graph ran under, and the generators that it draws from.

    `casting`: autocast is on somewhere. `random`: it draws from the CPU's generator, and from those of CUDA `devices`.
    """

    state: ambient.Ambient
    dtype: torch.dtype
    casting: bool
    random: bool
    devices: tuple[int, ...]

    def states_text(self, text: FunctionText) -> str:
        return f"{text.bind('generator_states', _generator_states)}({self.devices})" if self.random else "()"

    @contextmanager
    def active(self, states: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, these modes are on, and generators go on from `states`."""
        with ambient.preserved(), self.random_numbers_from(states), default_dtype(self.dtype):
            ambient.write(replace(self.state, nesting=ambient.read().nesting))
            yield
            if self.casting and not ambient.read().nesting:
                torch.clear_autocast_cache()

    @contextmanager
    def random_numbers_from(self, states: Sequence[torch.Tensor], *, drawn: bool = True) -> Iterator[None]:
        """Inside, the generators go on from `states`; afterwards, from where they were.

        Where no numbers are `drawn` the generators stay as they are, and calls inside take note of `states` alone.
        """
        if not states:
            yield
            return
        if not drawn:
            before, _here.states = _here.states, states
            try:
                yield
            finally:
                _here.states = before
            return
        # Other threads that draw from these generators meanwhile get the same numbers twice.
        with _generators, torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(states[0])
            for device, state in zip(self.devices, states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


class _Here(threading.local):
    """The states of the generators that this thread's calls take note of; None: those that they have."""

    states: Sequence[torch.Tensor] | None = None


_here = _Here()


def _generator_states(devices: Sequence[int]) -> Sequence[torch.Tensor]:
    """Return the states of the generators, the CPU's and those of CUDA `devices`, that a replay begins with."""
    if _here.states is not None:
        return _here.states
    return (torch.default_generator.get_state(), *[torch.cuda.get_rng_state(device) for device in devices])


#: One thread at a time restores generators.
_generators = threading.RLock()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Inside, `dtype` is torch's default dtype."""
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
    """Inside, a leaf requires gradients as when its history began, though `requires_grad` was turned off since."""
    if leaf.requires_grad:
        yield
        return
    leaf.requires_grad_()
    try:
        yield
    finally:
        leaf.requires_grad_(False)


def replay_inputs(
    gm: fx.GraphModule, binding: Binding, joint: JointGraph, examples: Sequence[Any]
) -> list[ReplayInput]:
    placeholders = gm.graph.find_nodes(op="placeholder")
    leading = {binding.placeholders[at] for at, node in enumerate(placeholders) if LEADS.get(node)}
    inputs_needed = needed(joint) | leading
    eager_saved = {index for node in joint.nodes for index in node.shape.eager_saved.inputs}
    mutated_later = {binding.placeholders[at] for at, node in enumerate(placeholders) if MUTATED_INPUT.get(node)}
    copied = ({*joint.meta.mutated} | (mutated_later - eager_saved)) & inputs_needed
    undef = dict(_undef(gm, joint, examples, inputs_needed))
    inputs = []
    for at, (node, meta) in enumerate(zip(joint.inputs, joint.meta.inputs, strict=True)):
        # Holding these would make a reference cycle, or keep memory alive that eager mode frees.
        rebound = meta.copy is not None and not meta.copy.no_grad
        user_owned = not meta.requires_grad and at not in eager_saved and not meta.mutated
        is_number = is_number_node(node)
        inputs.append(
            ReplayInput(
                meta,
                is_number,
                needed=at in inputs_needed,
                copied=at in copied,
                alias_only=rebound or at not in inputs_needed or user_owned,
                versioned=is_number or not examples[at].is_inference(),
                undef=undef.get(at),
            )
        )
    return inputs


def _undef(
    gm: fx.GraphModule, joint: JointGraph, examples: Sequence[Any], inputs_needed: Collection[int]
) -> Iterator[tuple[int, Undef]]:
    """Yield the inputs of which a call keeps nothing: no result with gradients depends on them, no call fails by them.

    Of inputs with symbolic sizes only the call knows the layout.
    """
    if any(composite_may_fail(op_name(node.target)) for node in gm.graph.nodes if node.op == "call_function"):
        return  # it checks data in C++, which the trace does not show
    for at in sorted(accepts_undef(joint) - {*inputs_needed}):
        value = examples[at]
        if not isinstance(value, torch.Tensor) or joint.meta.inputs[at].requires_grad or has_symbols(value):
            continue
        if value.layout is torch.strided and not value.is_quantized:
            yield at, Undef((*value.shape,), value.stride(), value.dtype, value.device)


def replay_modes(gm: fx.GraphModule, joint: JointGraph) -> ReplayModes:
    values = [node.meta["val"] for node in joint.inputs if not is_number_node(node)]
    cuda = {value.device for value in values if value.device.type == "cuda"}
    state = ambient.read()
    return ReplayModes(
        state,
        torch.get_default_dtype(),
        casting=state.any_autocast or any(node.target in ENTERS_AUTOCAST for node in gm.graph.nodes),
        random=any(is_random(node.target) for node in forward_calls(joint)),
        devices=tuple(sorted(device.index or 0 for device in cuda)),
    )


def forward_calls(joint: JointGraph) -> list[fx.Node]:
    return [node for node in joint.graph.nodes if node.op == "call_function" and PHASE.get(node) == "forward"]
