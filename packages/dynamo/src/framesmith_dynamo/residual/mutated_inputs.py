"""Mutated-input analysis: the graph inputs that the code after a graph break may write to.

Second derivatives need inputs as the graph found them (see `framesmith_aten.meta.MUTATED_INPUT`); of marked inputs a
copy is saved at each call. An abstract interpretation reads the frame's remaining code and the functions that it
defines. Writes by other functions that it calls, and through objects, are not analysed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.layouts import storage_id
from framesmith_aten.meta import MUTATED_INPUT
from framesmith_aten.operators import changes_metadata, is_mutable, is_view, overloads
from framesmith_bytecode import ITERATOR_SLOTS, OPS, Instr, Label, pops, pushes
from framesmith_dynamo.interpreter.decoded import DecodedCode, decoded
from framesmith_dynamo.interpreter.method_slots import MethodSlot
from framesmith_dynamo.values.tensors.tensor_object import TensorObject
from framesmith_dynamo.values.tensors.tensor_tables import GRAPH_ATTRIBUTES

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import TensorRef
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.values.base import Value

#: Builtins whose results contain the items of their arguments.
ALIASING_BUILTINS: Final = frozenset({"enumerate", "iter", "list", "next", "reversed", "tuple", "zip"})


def mark_mutated_inputs(frame: Frame) -> None:
    """Mark the inputs of the frame's graph that it may write to from the current instruction on."""
    if any(ref.fake.requires_grad for ref in frame.state.builder.inputs):
        for ref in _mutated_inputs(frame):
            MUTATED_INPUT.set(ref.node, True)


def _mutated_inputs(frame: Frame) -> Iterator[TensorRef]:
    code = frame.code
    names_of_slots = [f"stack {at}" for at in range(len(frame.stack))]
    stack = {slot: value for slot, value in zip(names_of_slots, frame.stack, strict=True) if value is not None}
    names = written_names(code, frame.pc, names_of_slots)
    names |= {name for made in _functions_made(code) for name in _written_outside(made)}
    values = [stack.get(name) or frame.locals.get(name) or frame.cells.get(name) for name in names]
    values += [slot.owner for slot in frame.stack if isinstance(slot, MethodSlot) and _writes(slot.name)]
    shown = {storage_id(fake) for value in values if value is not None for fake in _tensors(value)}
    inputs = [ref for ref in frame.state.builder.inputs if ref.fake.layout is torch.strided] if shown else []
    memory = {_memory(ref) for ref in inputs if storage_id(ref.fake) in shown}
    return (ref for ref in inputs if _memory(ref) in memory)


def _functions_made(code: DecodedCode) -> Iterator[CodeType]:
    """Return the code of functions defined anywhere in the code: they may run later than they were defined."""
    return (instr.arg for instr in code.instrs if isinstance(instr.arg, CodeType))


def _written_outside(made: CodeType) -> set[str]:
    """Return the free variables whose tensors the function, or one inside it, writes to."""
    if not made.co_freevars:
        return set()
    code = decoded(made)
    inside = (name for one in _functions_made(code) for name in _written_outside(one))
    return {*written_names(code), *inside} & {*made.co_freevars}


def written_names(code: DecodedCode, start: int = 0, stack: Sequence[str] = ()) -> set[str]:
    """Return the variables whose tensors, or views of them, are written to from instruction `start` on.

    `stack` names the stack slots there, which count as variables.
    """
    depths, behind = code.analyses.stack_states.before, code.analyses.kept_items(code.items[start])
    if not any(_may_write(instr) for item, instr in zip(code.items, code.instrs, strict=True) if item in behind):
        return set()
    reading = _Interpreter()
    #: The states that reach an instruction by jumps.
    arriving = {start: _State([_Slot(frozenset({name})) for name in stack], {})}
    rounds = 2 if any(code.targets[label] <= at for at, label in _jumps(code)) else 1
    for _ in range(rounds):  # an iteration of a loop starts from the state that the previous one has left
        before: _State | None = None
        for at, (item, instr) in enumerate(zip(code.items, code.instrs, strict=True)):
            depth = depths[item]
            if item not in behind or depth is None:
                before = None
                continue
            known = before if before is not None and at not in arriving else _joined(before, arriving.get(at), depth)
            reading.known = known
            reading.read(instr.op, instr.arg)
            row = OPS[instr.op]
            if row.flow in ("jump", "branch"):
                target = code.targets[instr.arg]
                arriving[target] = _joined(known, arriving.get(target), depths[code.items[target]] or 0)
            before = known if row.flow in ("next", "branch") else None
    return reading.found


def _jumps(code: DecodedCode) -> Iterator[tuple[int, Label]]:
    """Return the indices of jumps, and their targets."""
    return ((at, instr.arg) for at, instr in enumerate(code.instrs) if isinstance(instr.arg, Label))


def _may_write(instr: Instr) -> bool:
    """Whether an instruction writes to a tensor, or loads a function that does."""
    match instr.op:
        case "LOAD_ATTR" | "LOAD_METHOD" | "LOAD_GLOBAL" | "LOAD_NAME":
            return _writes(instr.arg)
        case "BINARY_OP":
            return bool(instr.arg.endswith("="))
        case "CALL":
            return "out" in instr.arg.kwnames or "inplace" in instr.arg.kwnames
        case op:
            return op in ("STORE_SUBSCR", "STORE_SLICE")


@dataclass(frozen=True)
class _Slot:
    """The abstract value of a stack slot.

    It `shows` the tensors of these variables, or holds them; `function` is the library function that it is; `is_false`
    whether it is False.
    """

    shows: frozenset[str] = frozenset()
    function: str | None = None
    is_false: bool = False


_UNKNOWN: Final = _Slot()


@dataclass
class _State:
    """The abstract state at an instruction: the stack, and the initial variables whose tensors each variable shows."""

    stack: list[_Slot]
    shown: dict[str, frozenset[str]]


def _joined(one: _State | None, other: _State | None, depth: int) -> _State:
    """Return the join of two states, with a stack of this depth."""
    ways = [way for way in (one, other) if way is not None]
    stacks = [[*way.stack[:depth], *[_UNKNOWN] * (depth - len(way.stack))] for way in ways]
    if len(ways) < 2:
        return _State(stacks[0], dict(ways[0].shown)) if ways else _State([_UNKNOWN] * depth, {})
    merged = [slot if slot == twin else _Slot(slot.shows | twin.shows) for slot, twin in zip(*stacks, strict=True)]
    names = {name for way in ways for name in way.shown}
    return _State(merged, {name: _shown_as(ways[0], name) | _shown_as(ways[1], name) for name in names})


def _shown_as(known: _State, name: str) -> frozenset[str]:
    """Return the variables whose tensors a variable shows: itself, until it is assigned."""
    return known.shown.get(name, frozenset({name}))


@dataclass
class _Interpreter:
    """The abstract interpreter of straight-line code: the state `known`, and the variables `found` to be written to."""

    known: _State = field(default_factory=lambda: _State([], {}))
    found: set[str] = field(default_factory=set)

    @property
    def stack(self) -> list[_Slot]:
        return self.known.stack

    def read(self, op: str, arg: Any) -> None:
        """Interpret one instruction."""
        rule = _RULES.get(op)
        if rule is not None:
            rule(self, arg)
        else:
            self.pop(pops(op, arg))
            self.stack.extend([_UNKNOWN] * pushes(op, arg))

    def pop(self, count: int) -> list[_Slot]:
        """Pop slots, the deepest first."""
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def write(self, slots: Iterable[_Slot]) -> None:
        """Record writes to the tensors that these slots show."""
        self.found |= _shown_by(slots)

    def called(self, function: str | None, arguments: Sequence[_Slot]) -> frozenset[str]:
        """Record the writes of a library function, and return its abstract result."""
        if function is None:
            return frozenset()
        if _writes(function):
            self.write(arguments[:1])
        if function in ALIASING_BUILTINS:
            return _shown_by(arguments)
        return _shown_by(arguments[:1]) if _shows(function) else frozenset()


def _shown_by(slots: Iterable[_Slot]) -> frozenset[str]:
    return frozenset[str]().union(*(slot.shows for slot in slots))


def _load(reading: _Interpreter, name: str) -> None:
    reading.stack.append(_Slot(_shown_as(reading.known, name)))


def _load_library(reading: _Interpreter, name: str) -> None:
    reading.stack.append(_Slot(function=name))


def _load_constant(reading: _Interpreter, value: Any) -> None:
    reading.stack.append(_Slot(is_false=value is False))


def _store(reading: _Interpreter, name: str) -> None:
    (value,) = reading.pop(1)
    reading.known.shown[name] = value.shows


def _copy(reading: _Interpreter, depth: int) -> None:
    reading.stack.append(reading.stack[-depth])


def _swap(reading: _Interpreter, depth: int) -> None:
    stack = reading.stack
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


def _attribute(reading: _Interpreter, owner: _Slot, name: str) -> _Slot:
    if owner.function is not None:
        return _Slot(function=name)
    if _writes(name):
        reading.write([owner])
    return _Slot(owner.shows) if name in GRAPH_ATTRIBUTES or _shows(name) else _UNKNOWN


def _load_attribute(reading: _Interpreter, name: str) -> None:
    reading.stack.extend([_attribute(reading, owner, name) for owner in reading.pop(1)])


def _load_method(reading: _Interpreter, name: str) -> None:
    _load_attribute(reading, name)
    reading.stack.append(_UNKNOWN)


def _call(reading: _Interpreter, shape: Any) -> None:
    arguments = reading.pop(shape.argc)
    named = dict(zip(shape.kwnames, arguments[shape.argc - len(shape.kwnames) :], strict=True))
    if "out" in named:
        reading.write([named["out"]])
    if "inplace" in named and not named["inplace"].is_false:
        reading.write(arguments[:1])
    _result(reading, arguments)


def _call_with_all(reading: _Interpreter, with_keywords: bool) -> None:
    _result(reading, reading.pop(1 + with_keywords))


def _result(reading: _Interpreter, arguments: Sequence[_Slot]) -> None:
    callable_slots = reading.pop(2)
    function = next((slot.function for slot in callable_slots if slot.function is not None), None)
    reading.stack.append(_Slot(_shown_by(callable_slots) | reading.called(function, arguments)))


def _subscript(popped: int) -> Callable[[_Interpreter, Any], None]:
    """The subscript's result is a view of the operand."""

    def rule(reading: _Interpreter, _: Any) -> None:
        container = reading.pop(popped)[0]
        reading.stack.append(_Slot(container.shows))

    return rule


def _store_subscript(popped: int) -> Callable[[_Interpreter, Any], None]:
    """The value lies below the subscript and the container."""

    def rule(reading: _Interpreter, _: Any) -> None:
        reading.write(reading.pop(popped)[1:2])

    return rule


def _binary(reading: _Interpreter, symbol: str) -> None:
    left, _ = reading.pop(2)
    in_place = symbol.endswith("=")
    if in_place:
        reading.write([left])
    reading.stack.append(_Slot(left.shows) if in_place else _UNKNOWN)


def _iterate(reading: _Interpreter, _: Any) -> None:
    reading.stack.append(_Slot(reading.stack[-ITERATOR_SLOTS].shows))


def _get_iterator(reading: _Interpreter, _: Any) -> None:
    reading.stack.extend([_UNKNOWN] * (ITERATOR_SLOTS - 1))


def _unpack(reading: _Interpreter, count: int) -> None:
    reading.stack.extend(reading.pop(1) * count)


def _build(reading: _Interpreter, count: int) -> None:
    reading.stack.append(_Slot(_shown_by(reading.pop(count))))


def _add_to(reading: _Interpreter, below: int) -> None:
    """Add values to the container so many slots below."""
    (value,) = reading.pop(1)
    reading.stack[-below] = _Slot(_shown_by([reading.stack[-below], value]))


def _nothing(reading: _Interpreter, _: Any) -> None:
    """The instruction leaves all tensors as they are."""


_RULES: Final[Mapping[str, Callable[[_Interpreter, Any], None]]] = {
    "LOAD_FAST": _load,
    "LOAD_FAST_CHECK": _load,
    "LOAD_FAST_AND_CLEAR": _load,
    "LOAD_DEREF": _load,
    "LOAD_GLOBAL": _load_library,
    "LOAD_NAME": _load_library,
    "LOAD_CONST": _load_constant,
    "STORE_FAST": _store,
    "STORE_DEREF": _store,
    "COPY": _copy,
    "SWAP": _swap,
    "LOAD_ATTR": _load_attribute,
    "LOAD_METHOD": _load_method,
    "CALL": _call,
    "CALL_FUNCTION_EX": _call_with_all,
    "BINARY_SUBSCR": _subscript(2),
    "BINARY_SLICE": _subscript(3),
    "STORE_SUBSCR": _store_subscript(3),
    "STORE_SLICE": _store_subscript(4),
    "BINARY_OP": _binary,
    "GET_ITER": _get_iterator,
    "LIST_TO_TUPLE": _nothing,
    "FOR_ITER": _iterate,
    "UNPACK_SEQUENCE": _unpack,
    "UNPACK_EX": lambda reading, parts: _unpack(reading, sum(parts) + 1),
    "BUILD_LIST": _build,
    "BUILD_TUPLE": _build,
    "BUILD_SET": _build,
    "LIST_APPEND": _add_to,
    "LIST_EXTEND": _add_to,
    "SET_ADD": _add_to,
    "SET_UPDATE": _add_to,
}


@functools.cache
def _writes(name: str) -> bool:
    """Whether some operator of this name writes to the elements of its first argument."""
    return name.endswith("_") and any(is_mutable(op) and not changes_metadata(op) for op in overloads(name))


@functools.cache
def _shows(name: str) -> bool:
    """Whether some operator of this name returns a view."""
    return any(map(is_view, overloads(name)))


def _tensors(value: Value) -> Iterator[torch.Tensor]:
    """Return the fakes of a tensor, or of the tensors inside a container or cell."""
    for one in (value, *value.referents()):
        for held in (one, *(() if one is value else one.referents())):
            if isinstance(held, TensorObject) and held.fake.layout is torch.strided:
                yield held.fake


def _memory(ref: TensorRef) -> Any:
    """Return the identity of an input's memory."""
    return storage_id(ref.fake if ref.real is None else ref.real)
