"""Which inputs of a graph the code behind a graph break may write to, as far as that code itself shows it.

Second derivatives need inputs as the graph found them (see `framesmith_aten.contract.REWRITTEN`). Only the frame that
goes on is read, with the functions that it makes: what others that it calls write to stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.contract import REWRITTEN
from framesmith_aten.layouts import storage_id
from framesmith_aten.operators import is_mutable, is_view, overloads
from framesmith_bytecode import Instr, pops, pushes
from framesmith_dynamo.interpreter.decoded import DecodedCode, decoded
from framesmith_dynamo.interpreter.method_slots import MethodSlot
from framesmith_dynamo.values.tensors.tensor_object import TensorObject
from framesmith_dynamo.values.tensors.tensor_tables import GRAPH_ATTRIBUTES

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import TensorRef
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.values.base import Value


def mark_rewritten(frame: Frame) -> None:
    """Mark the inputs of the frame's graph that it may write to from its present instruction on."""
    for ref in _rewritten(frame):
        ref.node.meta[REWRITTEN] = True


def _rewritten(frame: Frame) -> Iterator[TensorRef]:
    code = frame.code
    behind = code.analyses.kept_items(code.items[frame.pc])
    names = written_names(
        instr if item in behind else None for item, instr in zip(code.items, code.instrs, strict=True)
    )
    names |= {name for made in _functions_made(code) for name in _written_outside(made)}
    values = [frame.locals.get(name) or frame.cells.get(name) for name in names]
    values += [slot.owner for slot in frame.stack if isinstance(slot, MethodSlot) and _writes(slot.name)]
    shown = {storage_id(fake) for value in values if value is not None for fake in _tensors(value)}
    inputs = [ref for ref in frame.state.builder.inputs if ref.fake.layout is torch.strided] if shown else []
    memory = {_memory(ref) for ref in inputs if storage_id(ref.fake) in shown}
    return (ref for ref in inputs if _memory(ref) in memory)


def _functions_made(code: DecodedCode) -> Iterator[CodeType]:
    """The code of the functions that it makes, at any place: they may run later than they were made."""
    return (instr.arg for instr in code.instrs if isinstance(instr.arg, CodeType))


def _written_outside(made: CodeType) -> set[str]:
    """The variables of the code around it whose tensors this one, or code inside it, writes to."""
    if not made.co_freevars:
        return set()
    code = decoded(made)
    inside = (name for one in _functions_made(code) for name in _written_outside(one))
    return {*written_names(code.instrs), *inside} & {*made.co_freevars}


def written_names(instrs: Iterable[Instr | None]) -> set[str]:
    """The variables whose tensors, or views of them, are written to by some of these instructions.

    None stands for those that do not run.
    """
    reading = _Reading()
    for instr in instrs:
        if instr is None:
            reading.stack.clear()
        else:
            reading.read(instr)
    return reading.written()


@dataclass(frozen=True)
class _Slot:
    """What is known of a stack slot: the variables whose tensors it shows or holds, and whether it is what writes."""

    shows: frozenset[str] = frozenset()
    writes: bool = False


_UNKNOWN: Final = _Slot()


@dataclass
class _Reading:
    """A reading of instructions in their order. What a jump brings along counts as unknown."""

    stack: list[_Slot] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    #: For each variable those that it may show.
    shown: dict[str, set[str]] = field(default_factory=dict)

    def read(self, instr: Instr) -> None:
        """Go on by one instruction."""
        rule = _RULES.get(instr.op)
        if rule is not None:
            rule(self, instr.arg)
        else:
            self.pop(pops(instr.op, instr.arg))
            self.stack += [_UNKNOWN] * pushes(instr.op, instr.arg)

    def pop(self, count: int) -> list[_Slot]:
        """The topmost slots, the deepest first."""
        missing = max(count - len(self.stack), 0)
        taken = [_UNKNOWN] * missing + self.stack[len(self.stack) - count + missing :]
        del self.stack[len(self.stack) - count + missing :]
        return taken

    def write(self, slots: Iterable[_Slot]) -> None:
        """Note that what these slots show is written to."""
        self.found |= _shown_by(slots)

    def written(self) -> set[str]:
        """The variables that are written to, by their own names or by those of views of them."""
        names, news = set(self.found), [*self.found]
        while news:
            more = self.shown.get(news.pop(), set()) - names
            names |= more
            news += more
        return names


def _shown_by(slots: Iterable[_Slot]) -> frozenset[str]:
    return frozenset[str]().union(*(slot.shows for slot in slots))


def _load(reading: _Reading, name: str) -> None:
    reading.stack.append(_Slot(frozenset({name})))


def _store(reading: _Reading, name: str) -> None:
    (value,) = reading.pop(1)
    reading.shown.setdefault(name, set()).update(value.shows)


def _copy(reading: _Reading, depth: int) -> None:
    slots = reading.pop(depth)
    reading.stack += [*slots, slots[0]]


def _swap(reading: _Reading, depth: int) -> None:
    first, *between, last = reading.pop(depth)
    reading.stack += [last, *between, first]


def _load_attribute(reading: _Reading, name: str) -> None:
    (owner,) = reading.pop(1)
    reading.stack.append(_Slot(owner.shows if name in GRAPH_ATTRIBUTES else frozenset(), _writes(name)))


def _load_method(reading: _Reading, name: str) -> None:
    (owner,) = reading.pop(1)
    writes = _writes(name)
    if writes:
        reading.write([owner])
    # Of what is no variable it may be a function of a module's.
    reading.stack += [_Slot(owner.shows if _shows(name) else frozenset(), writes and not owner.shows), _UNKNOWN]


def _call(reading: _Reading, shape: Any) -> None:
    arguments = reading.pop(shape.argc)
    called = reading.pop(2)
    if any(slot.writes for slot in called) or "inplace" in shape.kwnames:
        reading.write(arguments[:1])
    named = dict(zip(shape.kwnames, arguments[shape.argc - len(shape.kwnames) :], strict=True))
    reading.write([named["out"]] if "out" in named else [])
    reading.stack.append(_Slot(_shown_by(called)))


def _subscript(popped: int) -> Callable[[_Reading, Any], None]:
    """Of what lies under the subscript, a view."""

    def rule(reading: _Reading, _: Any) -> None:
        container = reading.pop(popped)[0]
        reading.stack.append(_Slot(container.shows))

    return rule


def _store_subscript(popped: int) -> Callable[[_Reading, Any], None]:
    """Below what lies under the subscript is the value."""

    def rule(reading: _Reading, _: Any) -> None:
        reading.write(reading.pop(popped)[1:2])

    return rule


def _binary(reading: _Reading, symbol: str) -> None:
    left, _ = reading.pop(2)
    in_place = symbol.endswith("=")
    if in_place:
        reading.write([left])
    reading.stack.append(_Slot(left.shows) if in_place else _UNKNOWN)


def _iterate(reading: _Reading, _: Any) -> None:
    (iterator,) = reading.pop(1)
    reading.stack += [iterator, iterator]


def _unpack(reading: _Reading, count: int) -> None:
    reading.stack += reading.pop(1) * count


def _build(reading: _Reading, count: int) -> None:
    reading.stack.append(_Slot(_shown_by(reading.pop(count))))


_RULES: Final[dict[str, Callable[[_Reading, Any], None]]] = {
    "LOAD_FAST": _load,
    "LOAD_FAST_CHECK": _load,
    "LOAD_DEREF": _load,
    "STORE_FAST": _store,
    "STORE_DEREF": _store,
    "COPY": _copy,
    "SWAP": _swap,
    "LOAD_ATTR": _load_attribute,
    "LOAD_METHOD": _load_method,
    "CALL": _call,
    "BINARY_SUBSCR": _subscript(2),
    "BINARY_SLICE": _subscript(3),
    "STORE_SUBSCR": _store_subscript(3),
    "STORE_SLICE": _store_subscript(4),
    "BINARY_OP": _binary,
    "GET_ITER": lambda reading, _: None,
    "FOR_ITER": _iterate,
    "UNPACK_SEQUENCE": _unpack,
    "BUILD_LIST": _build,
    "BUILD_TUPLE": _build,
}


def _writes(name: str) -> bool:
    """Whether some operator of this name writes to its first argument."""
    return name.endswith("_") and any(map(is_mutable, overloads(name)))


def _shows(name: str) -> bool:
    """Whether some operator of this name gives a view."""
    return any(map(is_view, overloads(name)))


def _tensors(value: Value) -> Iterator[torch.Tensor]:
    """The fakes of a tensor, or of those that a container or a cell holds."""
    for one in (value, *value.referents()):
        if isinstance(one, TensorObject) and one.fake.layout is torch.strided:
            yield one.fake


def _memory(ref: TensorRef) -> Any:
    """What identifies the memory of an input."""
    return storage_id(ref.fake if ref.real is None else ref.real)
