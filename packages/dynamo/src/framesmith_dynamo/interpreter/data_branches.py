"""Branches on tensors' data that need no end of the graph: arms that only write to tensors, and arms that only raise.

Note [Branches on data]: where each arm of a branch does nothing but write to tensors, both are traced, one after the
other, and each tensor gets the values of the arm that the condition chooses. The tensors are kept before, and set back
behind the first arm. Whatever else differs between the arms (variables, objects, gradients' histories, random numbers,
what may fail) ends the graph before the branch, as do arms that multiply matrices: both are computed at each call. A
arm that can only raise is not traced. The graph checks that it is not taken; if it is, the frame runs eagerly, and
raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.layouts import share_storage, storage_id
from framesmith_aten.meta import EXAMPLE, MODE_CHANGE
from framesmith_aten.nested import tensors_in
from framesmith_aten.recording import effects_of
from framesmith_dynamo.breaks import DATA_DEPENDENT_BRANCH, GraphBreak
from framesmith_dynamo.graph.builder import fake_of_node
from framesmith_dynamo.graph.subgraphs import last_node, nodes_after
from framesmith_dynamo.interpreter.branch_arms import Arms, arms_of
from framesmith_dynamo.tensor_calls.calls import tensor_value
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.trace_state import RestartTrace
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import TracedRaise, Value
from framesmith_dynamo.values.constants.symbolic import SymbolicNumber
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.truths import condition_of, is_data
from framesmith_dynamo.values.torch_api import number_tensors
from framesmith_guards.values.constants import typed_key
from framesmith_sideeffects import MutationRefused

if TYPE_CHECKING:
    from torch import fx

    from framesmith_bytecode import Instr
    from framesmith_dynamo.interpreter.frame import Frame


#: The key of the frame's result, which no variable has for a name.
_RESULT: Final = "return"


def jumps(frame: Frame, instr: Instr, when: bool) -> bool:
    """Whether a jump that is taken if the popped value is `when` is to be made.

    It is not where both arms were traced: the frame stands where they meet.
    """
    value = frame.pop()
    try:
        return value.bool_(frame) is when
    except GraphBreak as broken:
        if broken.kind is not DATA_DEPENDENT_BRANCH or not is_data(value):
            raise
        target = frame.code.targets[instr.arg]
        arms = arms_of(frame.code, frame.pc - 1, target)
        if arms is None:
            raise
        if arms.raises is not None:
            _check_not_taken(frame, value, when is (arms.raises != target), broken)
            return arms.raises != target
        if frame.facts.has_narrow_numbers:  # see Note [Numbers in tensors]
            frame.state.log.wide_numbers = True
            raise RestartTrace from broken
        _Choice(frame, arms).make(value, target, when, broken)
        return False


def _check_not_taken(frame: Frame, value: Value, wanted: bool, broken: GraphBreak) -> None:
    """Let the graph check that a truth is as `wanted`: otherwise the program raises."""
    number = condition_of(frame, value).call_method(frame, "to", (frame.constant(torch.int64),), {})
    found = operations.compare(frame, "==", number.call_method(frame, "item", (), {}), frame.constant(int(wanted)))
    assert isinstance(found, SymbolicNumber)
    if not frame.must_hold(found.number, f"the program raises: {broken.detail}"):
        raise broken


class _Refused(Exception):
    """The arms of a branch differ in more than what they write to tensors."""


class _Choice:
    """The trace of both arms of a branch, of which data choose one."""

    def __init__(self, frame: Frame, arms: Arms) -> None:
        self.frame = frame
        self.arms = arms
        self.builder = frame.builder
        #: The values of tensors before the branch.
        self.kept: dict[fx.Node, Value] = {}

    def make(self, value: Value, target: int, when: bool, broken: GraphBreak) -> None:
        """Trace both arms; afterwards the frame stands where they meet. Raises `broken` where that is impossible."""
        try:
            self._trace(value, target, when)
        except (_Refused, MutationRefused, TracedRaise, GraphBreak) as error:
            raise broken from error

    def _trace(self, value: Value, target: int, when: bool) -> None:
        frame = self.frame
        for name in self.arms.stores:
            frame.locals.get(name)  # an argument that was not read yet is read now
        before, after = self._held(), frame.pc
        condition = condition_of(frame, value)
        start = last_node(self.builder)
        one, first = self._arm(target)
        self._keep(one, start)
        with self._without_grad(bool(one)):
            after_one = self._values(one)
            self._write(one, self.kept)
        self._set_back(before)
        other, second = self._arm(after)
        written = [*dict.fromkeys((*one, *other))]
        self._merge(condition, written, *((first, second) if when else (second, first)))
        self._keep([node for node in other if node not in self.kept], start)
        with self._without_grad(bool(written)):
            after_other = self._values(written)
            self._write(written, self.kept)
            self._write(one, after_one)  # of tensors that share memory, each may have been written to in one arm
            for node in written:
                tensor = self._tensor(node)
                pair = (tensor, after_other[node]) if when else (after_other[node], tensor)
                chosen = frame.call_torch(torch.where, (self._beside(condition, tensor), *pair), {})
                frame.call_torch("copy_", (tensor, chosen), {})

    # One arm

    def _arm(self, start: int) -> tuple[list[fx.Node], Mapping[Any, Value | None]]:
        """Trace an arm, and return the older tensors that it writes to and what the frame holds at its end."""
        frame, state = self.frame, self.frame.state
        facts, handlers, instrs = state.facts, frame.code.handlers, frame.code.instrs
        begin, stamp = last_node(self.builder), self._stamp()
        known = [(value, value.ref) for value in state.tensors.values() if isinstance(value, TensorValue)]
        frame.pc = start
        with state.journal.nested("an arm of a branch on a tensor's data"):
            while not frame.stop and frame.pc != self.arms.join:
                facts.step()
                index = frame.pc
                frame.pc = index + 1
                frame.operands = tuple(frame.stack)
                handlers[index](frame, instrs[index])
        if (
            frame.stop is not (self.arms.join is None)
            or self._stamp() != stamp
            or any(value.ref is not ref for value, ref in known)
        ):
            raise _Refused
        nodes = [node for node in nodes_after(begin) if node.op != "placeholder"]
        for node in nodes:
            _check_node(node)
        return self._written(nodes), self._held()

    def _stamp(self) -> tuple[object, ...]:
        """Return facts that an arm must leave as they are, beside the journal's objects."""
        state, facts, builder = self.frame.state, self.frame.state.facts, self.builder
        sets = (facts.hooked, facts.retains_grad, facts.hook_nodes, facts.entered_autocast, builder.state.opened)
        rest = (
            facts.has_ordered_effects,
            len(facts.read_after_graph),
            facts.runs_engine,
            state.handled,
            self.frame.handled,
            builder.assumptions,
        )
        return torch.is_grad_enabled(), builder.has_assumed, len(state.suspended_generators), *map(len, sets), *rest

    def _written(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the nodes of older tensors whose memory these nodes write to."""
        inside = {*nodes}
        older = dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in inside)
        changed = {storage_id(one) for node in nodes for one in effects_of(node).written}
        found = []
        for node in older:
            held = EXAMPLE.get(node)
            if not any(storage_id(one) in changed for one in tensors_in(held) if one.layout is torch.strided):
                continue
            if not isinstance(held, torch.Tensor) or held.grad_fn is not None or 0 in held.stride():
                raise _Refused
            if not self.frame.facts.runs_engine and any(map(_has_history, node.users)):
                raise _Refused  # autograd may have saved it: a change would be noticed, whichever arm is taken
            found.append(node)
        return found

    # The frame

    def _held(self) -> dict[Any, Value | None]:
        """Return the variables that the arms bind, the stack and the result, by name and by depth."""
        frame = self.frame
        names: dict[Any, Value | None] = {name: frame.locals.get(name) for name in self.arms.stores}
        return {_RESULT: frame.result, **names, **dict(enumerate(frame.stack))}

    def _set_back(self, held: Mapping[Any, Value | None]) -> None:
        self.frame.stack[:] = [value for key, value in held.items() if isinstance(key, int)]
        self.frame.result, self.frame.stop = held[_RESULT], False
        for name in self.arms.stores:
            self._bind(name, held[name])

    def _bind(self, name: str, value: Value | None) -> None:
        if value is None:
            self.frame.locals.pop(name, None)
        else:
            self.frame.locals[name] = value

    def _merge(
        self,
        condition: Value,
        written: Sequence[fx.Node],
        first: Mapping[Any, Value | None],
        second: Mapping[Any, Value | None],
    ) -> None:
        """Let the frame hold the same behind both arms, or numbers that the condition chooses.

        Variables that are no longer needed may differ.
        """
        code, join = self.frame.code, self.arms.join
        live = () if join is None else code.analyses.live.before(code.items[join])
        for key in (*first, *(key for key in second if key not in first)):
            one, other = first.get(key), second.get(key)
            if _is_same(one, other):
                continue
            if isinstance(key, str) and key not in (_RESULT, *live) and not code.analyses.observes_locals:
                self._bind(key, None)
            elif one is not None and other is not None and self._are_numbers((one, other), written):
                self._put(key, number_tensors.chosen(self.frame, condition, one, other))
            else:
                raise _Refused

    def _are_numbers(self, pair: Sequence[Value], written: Sequence[fx.Node]) -> bool:
        """Whether torch's code means numbers by these values, which no arm has written to."""
        if not number_tensors.is_expected(self.frame):
            return False
        changed = any(_shares_memory(value, written) for value in pair)
        return not changed and all(map(number_tensors.stands_for_number, pair))

    def _put(self, key: Any, value: Value) -> None:
        if key == _RESULT:
            self.frame.result = value
        elif isinstance(key, int):
            self.frame.stack[key] = value
        else:
            self._bind(key, value)

    # Tensors

    @contextmanager
    def _without_grad(self, needed: bool) -> Iterator[None]:
        was = needed and torch.is_grad_enabled()
        if was:
            self.frame.emit_state(unstable.set_grad_enabled, False)
        yield
        if was:
            self.frame.emit_state(unstable.set_grad_enabled, True)

    def _tensor(self, node: fx.Node) -> Value:
        return tensor_value(self.frame, fake_of_node(node), node)

    def _values(self, nodes: Sequence[fx.Node]) -> dict[fx.Node, Value]:
        """Return copies of tensors as they are now."""
        return {node: self.frame.call_torch("clone", (self._tensor(node),), {}) for node in nodes}

    def _write(self, nodes: Sequence[fx.Node], values: Mapping[fx.Node, Value]) -> None:
        for node in nodes:
            self.frame.call_torch("copy_", (self._tensor(node), values[node]), {})

    def _keep(self, nodes: Sequence[fx.Node], start: fx.Node) -> None:
        """Keep the values that tensors have right behind the node `start`."""
        begin = last_node(self.builder)
        with self._without_grad(bool(nodes)):
            self.kept |= self._values(nodes)
        for node in nodes_after(begin):
            if node.op != "placeholder":
                start.append(node)
                start = node

    def _beside(self, condition: Value, tensor: Value) -> Value:
        """Return the condition on the device of a tensor."""
        there = tensor.getattr_(self.frame, "device")
        if there.as_constant() == condition.getattr_(self.frame, "device").as_constant():
            return condition
        return condition.call_method(self.frame, "to", (there,), {})


def _check_node(node: fx.Node) -> None:
    """Raise _Refused for an operation that may not run if its arm is not taken."""
    effects = effects_of(node)
    if MODE_CHANGE.get(node):
        return
    if effects.random or effects.may_fail or effects.external or effects.custom or effects.contracts:
        raise _Refused
    if effects.reshaped or effects.restrided:
        raise _Refused
    if _has_history(node):
        raise _Refused


def _has_history(node: fx.Node) -> bool:
    return any(one.grad_fn is not None for one in tensors_in(EXAMPLE.get(node)))


def _shares_memory(value: Value, written: Sequence[fx.Node]) -> bool:
    return isinstance(value, TensorValue) and any(share_storage(value.fake, fake_of_node(node)) for node in written)


def _is_same(first: Value | None, second: Value | None) -> bool:
    if first is second or first is None or second is None:
        return first is second
    both = first.is_constant() and second.is_constant()
    return both and typed_key(first.as_constant()) == typed_key(second.as_constant())
