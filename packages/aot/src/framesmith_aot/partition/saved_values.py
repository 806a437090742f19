"""Listings of what a training step saves for its backward pass and what it recomputes, by tensor, with reasons.

A partitioned step hands values from its forward graph to its backward graphs. In a graph that holds the backward pass
inside, they are the values of the forward part that the backward part reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch import fx

from framesmith_aot.partition.mincut import INFINITE
from framesmith_aot.partition.split import NodePart, Partition, Saved, repeat_price
from framesmith_aot.trace.joint import JointGraph
from framesmith_aten.graphs.nodes import is_pure, tensor_bytes, view_root, view_source
from framesmith_aten.graphs.numbers import is_number_node
from framesmith_aten.graphs.step_parts import calls_by_part, part_of
from framesmith_aten.meta import CHECKPOINT_PATH, DERIVATIVE_OF, PHASE, RECOMPUTED, SAVED_IN, StepPart
from framesmith_aten.operators import is_factory, is_random, op_name
from framesmith_guards import Location
from framesmith_guards.torch_adapter import OpOverload

#: The origin of a saved tensor. Inputs and results take no memory by being saved while the caller holds them.
Kind = Literal["input", "result", "intermediate"]

#: The beginning of names of files that were never written: a call of a module of a library begins in one.
GENERATED: Final = "<framesmith"

INPUT: Final = "an input, which its caller holds"
RESULT: Final = "a result, which the caller gets"
WATCHED: Final = "eager mode saves it: a later change of it has to raise"
LATE: Final = "its contents when the backward pass runs, as in eager mode"


@dataclass(frozen=True)
class Value:
    """A tensor of a graph: its node's name, its layout, the operator that makes it, and the user's line for that."""

    name: str
    shape: tuple[int | torch.SymInt, ...]
    dtype: torch.dtype
    bytes: int
    operator: str
    line: Location | None

    @classmethod
    def of(cls, node: fx.Node, name: str = "") -> Value:
        """Return the record of a node's tensor."""
        val: torch.Tensor = node.meta["val"]
        operator = op_name(node.target) if node.op == "call_function" else ""
        line = user_line(node.meta.get("stack_trace") or DERIVATIVE_OF.get(node) or "")
        return cls(name or node.name, tuple(val.shape), val.dtype, tensor_bytes(val), operator, line)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.name}: {dtype}[{', '.join(map(str, self.shape))}], {self.bytes:,} B"


@dataclass(frozen=True)
class Reader:
    """An operator of the backward pass, and the user's line whose derivative it belongs to.

    `through`: the operators that are recomputed between the saved tensor and it.
    """

    operator: str
    line: Location | None
    through: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for readers that read the same in a listing."""
        place = None if self.line is None else (self.line.filename, self.line.lineno)
        return self.operator, place, self.through


def distinct(readers: Iterable[Reader]) -> tuple[Reader, ...]:
    """Return readers, those that read the same once."""
    return tuple({one.key: one for one in readers}.values())


@dataclass(frozen=True)
class SavedValue:
    """A tensor saved for the backward pass: its kind, why it is saved and not recomputed, and what reads it."""

    value: Value
    kind: Kind
    why: str
    readers: tuple[Reader, ...]


@dataclass(frozen=True)
class RecomputedValue:
    """A tensor of the forward pass that the backward pass computes again, and on whose account."""

    value: Value
    why: str


@dataclass(frozen=True)
class Memory:
    """The tensors that a step saves for its backward pass, and those that it recomputes there."""

    saved: Sequence[SavedValue]
    recomputed: Sequence[RecomputedValue]

    @property
    def bytes(self) -> int:
        """The bytes of all saved tensors."""
        return sum(one.value.bytes for one in self.saved)

    @property
    def added_bytes(self) -> int:
        """The bytes of those that nobody but the backward pass needs."""
        return sum(one.value.bytes for one in self.saved if one.kind == "intermediate")


@dataclass(frozen=True)
class Traced:
    """A traced graph, its `parts` if it gives gradients, the `names` of its inputs, and the seconds that this took."""

    joint: JointGraph
    parts: Partition | None
    names: Sequence[str]
    trace_seconds: Mapping[StepPart, float]
    partition_seconds: float

    def memory(self) -> Memory:
        """Return what is saved for the backward pass and what is recomputed; nothing where there is none."""
        if self.parts is None:
            calls = calls_by_part(self.joint.graph)
            return Memory([*_read_by_backward(self.joint, self.names)] if calls["forward"] else [], [])
        listing = _Listing(self.joint, self.parts.forward, self.names)
        for part in self.parts.parts:
            listing.add(part)
        return Memory([*listing.saved.values()], [*listing.recomputed.values()])


def user_line(stack_trace: str) -> Location | None:
    """Return the user's line in the stack of an operation, a library's where the user's is not in it, or None."""
    at = Location.parse(stack_trace)
    found = None if at is None else at.in_user_code
    return at if found is not None and found.filename.startswith(GENERATED) else found


@dataclass
class _Listing:
    """Collects the saved and recomputed values of a step; each once, though several autograd nodes may save it."""

    joint: JointGraph
    forward: fx.Graph
    names: Sequence[str]
    saved: dict[Saved, SavedValue] = field(default_factory=dict)
    recomputed: dict[str, RecomputedValue] = field(default_factory=dict)

    def add(self, part: NodePart) -> None:
        """Add what the backward graph of one autograd node takes and recomputes."""
        placeholders = part.graph.find_nodes(op="placeholder")
        copies = {position: at for at, position in part.stand_ins.items()}
        for position, (saved, node) in enumerate(zip(part.saved, placeholders, strict=False)):
            self._save(saved, readers_of(node), copies.get(position))
        late = placeholders[len(part.saved) : len(part.saved) + len(part.late_inputs)]
        for at, node in zip(part.late_inputs, late, strict=True):
            value = Value.of(node, self.names[at])
            self.saved[Saved(True, at)] = SavedValue(value, "input", LATE, readers_of(node))
        for saved in part.watched:
            if saved not in self.saved:
                self._save(saved, (), None)
        for node in part.graph.nodes:
            why = why_recomputed(node)
            if why is not None:
                self.recomputed.setdefault(node.name, RecomputedValue(Value.of(node), why))

    def _node(self, saved: Saved) -> fx.Node:
        """Return the node of the forward graph that is or makes a saved value."""
        if saved.from_input:
            return self.joint.inputs[saved.index]
        results: Any = self.forward.output_node().args[0]
        made: fx.Node = results[saved.index]
        return made

    def _is_slot(self, saved: Saved) -> bool:
        return not saved.from_input and saved.index < len(self.joint.slots)

    def _save(self, saved: Saved, readers: tuple[Reader, ...], copy_of: int | None) -> None:
        known, node = self.saved.get(saved), self._node(saved)
        if known is not None:
            merged = distinct((*known.readers, *readers))
            self.saved[saved] = SavedValue(known.value, known.kind, known.why, merged)
            return
        kind: Kind = "input" if saved.from_input else "result" if self._is_slot(saved) else "intermediate"
        value = Value.of(node, self.names[saved.index] if saved.from_input else "")
        if not readers:
            why = WATCHED
        elif kind != "intermediate":
            why = INPUT if kind == "input" else RESULT
        else:
            why = why_saved(node) if copy_of is None else f"a copy or cast of {self.names[copy_of]}"
        self.saved[saved] = SavedValue(value, kind, why, readers)


def why_saved(node: fx.Node) -> str:
    """Return why a value that the forward pass computes is saved, and not recomputed."""
    name, path = op_name(node.target), CHECKPOINT_PATH.get(node)
    if name == "generator_state":
        return "the generator's state, from which masks are drawn again"
    if path is not None and path[-1] in (SAVED_IN.get(node) or ()):
        return (
            "it leaves a segment of the memory budget"
            if path[-1] < 0
            else "its checkpoint saves it, by its policy or as a mask"
        )
    if path is not None:
        return "it is read outside of its checkpoint" if path[-1] > 0 else "it leaves a segment of the memory budget"
    if isinstance(node.target, OpOverload) and is_random(node.target):
        return "its random numbers are drawn once"
    price = repeat_price(node)
    if price < INFINITE:
        return (
            "it is smaller than what it would be computed from"
            if price == 0
            else "reading it costs less than computing it"
        )
    return f"{name} is costly to run again" if is_pure(node) else f"{name} must not run twice"


def why_recomputed(node: fx.Node) -> str | None:
    """Return on whose account a node of a backward graph computes a value of the forward pass again, or None."""
    val = node.meta.get("val")
    if node.op != "call_function" or is_number_node(node) or not isinstance(val, torch.Tensor):
        return None
    if view_source(node) is not None or is_factory(node.target):
        return None
    if RECOMPUTED.on(node):
        number = CHECKPOINT_PATH.of(node)[-1]
        return f"checkpoint {number}" if number > 0 else f"the memory budget, segment {-number}"
    return "cheaper to compute than to save" if PHASE.get(node) == "forward" else None


def readers_of(saved: fx.Node) -> tuple[Reader, ...]:
    """Return the operators of derivatives that read a saved value, also through what is recomputed of it."""
    found: list[Reader] = []
    pending: list[tuple[fx.Node, tuple[str, ...]]] = [(user, ()) for user in saved.users]
    seen: set[fx.Node] = set()
    while pending:
        node, through = pending.pop(0)
        if node in seen or node.op == "output":
            continue
        seen.add(node)
        if RECOMPUTED.on(node) or PHASE.get(node) == "forward" or view_source(node) is saved:
            passed = through if why_recomputed(node) is None else (*through, op_name(node.target))
            pending += [(user, passed) for user in node.users]
        else:
            found.append(Reader(op_name(node.target), user_line(DERIVATIVE_OF.get(node) or ""), through))
    return distinct(found)


def _read_by_backward(joint: JointGraph, names: Sequence[str]) -> Iterator[SavedValue]:
    """Yield the values of the forward part of a whole step that its backward part reads."""
    readers: dict[fx.Node, list[Reader]] = {}
    for node in joint.graph.nodes:
        if node.op != "call_function" or part_of(node) != "backward":
            continue
        for operand in node.all_input_nodes:
            root = view_root(operand)
            if part_of(root) == "forward" and isinstance(root.meta.get("val"), torch.Tensor):
                line = user_line(DERIVATIVE_OF.get(node) or "")
                readers.setdefault(root, []).append(Reader(op_name(node.target), line))
    inputs = {node: at for at, node in enumerate(joint.inputs)}
    results = {view_root(node) for node in joint.slots}
    for node, found in readers.items():
        kind: Kind = "input" if node in inputs else "result" if node in results else "intermediate"
        why = {"input": INPUT, "result": RESULT, "intermediate": "the backward part of the graph reads it"}[kind]
        name = names[inputs[node]] if node in inputs else ""
        yield SavedValue(Value.of(node, name), kind, why, distinct(found))
