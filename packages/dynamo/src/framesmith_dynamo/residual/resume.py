"""After a graph break: the breaking instruction runs for real, and a continuation function goes on behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from framesmith_bytecode import OPS, Codegen, Continuation, Instr, Label, Parameter, observes_locals, pops, pushes
from framesmith_dynamo.breaks import READS_OWN_LOCALS, GraphBreak
from framesmith_dynamo.interpreter.generator import LIVE_GENERATOR
from framesmith_dynamo.interpreter.handlers.contexts import ExitValue
from framesmith_dynamo.interpreter.method_slots import CALLABLE_SLOTS, MethodSlot
from framesmith_dynamo.residual.blocks import check_blocks, contexts_of, push_exit
from framesmith_dynamo.residual.continuations import continuation_at
from framesmith_dynamo.values.tensors.torch_context import TorchContextValue

if TYPE_CHECKING:
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.residual.output import Residual
    from framesmith_dynamo.values.base import Value


Built = Literal["list", "set", "map"]


@dataclass(frozen=True, slots=True)
class Slot:
    """How one slot of the value stack comes back.

    NULL (all None), a temporary, a value pushed then, a method looked up then, or the exit of an open block, whose
    manager `block` is (held in the temporary, if it has one). `built`: what kind of container the breaking instruction
    puts something into there; nothing else holds it, and it is filled again where the instruction can see its kind.
    """

    temporary: str | None = None
    value: Value | None = None
    method: str | None = None
    block: Value | None = None
    built: Built | None = None


@dataclass(frozen=True, slots=True)
class Arm:
    """One way on behind the breaking instruction: which stack slots are NULL there, how many were there before it.

    Then either a continuation is called, or, when hardly anything is left to do, the `tail` runs on the spot.
    """

    nulls: tuple[bool, ...]
    below: int
    continuation: Continuation | None
    tail: tuple[Instr, ...] = ()


#: Instructions that put something into a container under construction: its kind, and how many values they pop.
BUILT: Final[dict[str, tuple[Built, int]]] = {
    "LIST_APPEND": ("list", 1),
    "LIST_EXTEND": ("list", 1),
    "SET_ADD": ("set", 1),
    "SET_UPDATE": ("set", 1),
    "MAP_ADD": ("map", 2),
    "DICT_UPDATE": ("map", 1),
    "DICT_MERGE": ("map", 1),
}
#: How a container under construction is filled.
FILLED: Final[dict[Built, str]] = {"list": "LIST_EXTEND", "set": "SET_UPDATE", "map": "DICT_UPDATE"}
#: Instructions whose results may hold NULL, and those that run in their place: what they push is then known.
INSTEAD = {"LOAD_METHOD": "LOAD_ATTR", "LOAD_SUPER_METHOD": "LOAD_SUPER_ATTR"}


#: What `next` gives at the end of an iterator.
END = object()
#: Instructions too cheap to call a continuation for, when they are all that is left.
CHEAP = frozenset({"LOAD_CONST", "LOAD_FAST", "NOP", "POP_TOP", "RETURN_VALUE"})
LONGEST_TAIL = 8


def emit_break(residual: Residual, reason: GraphBreak) -> None:
    """Generate the end of residual code at a break. Raises GraphBreak when the frame cannot be continued here."""
    frame = residual.frame
    index = frame.pc
    if observes_locals(frame.code.bytecode.instructions) or (reason.kind is READS_OWN_LOCALS and not reason.in_callee):
        raise GraphBreak(READS_OWN_LOCALS, str(reason))
    for generator in frame.state.suspended:  # also one that is not needed: it will be closed, we would not know when
        raise GraphBreak(LIVE_GENERATOR, generator.describe())
    instr = frame.code.instrs[index]
    ways = arms(residual.frame, instr, index)
    if residual.state.is_empty() and all(way.continuation is None for way in ways):
        raise reason  # nothing before, nothing behind: there is nothing to compile
    caught = handler_arm(frame, index)
    slots, variables = save(residual, needed([*ways, *([] if caught is None else [caught])]), reason)
    residual.change(grad_mode=not contexts_of(frame.stack))
    below = len(slots) - pops(instr.op, instr.arg)
    outside = len(slots) if caught is None else caught.below
    if instr.op in BUILT:
        kind, above = BUILT[instr.op]
        built = len(slots) - above - instr.arg
        slots[built] = dataclasses.replace(slots[built], built=kind)
    restore_stack(residual, slots[:outside], below)
    with protection(residual, caught):
        restore_stack(residual, slots[outside:], below - outside)
        residual.forget_variables(variables.values())
        label = Label() if len(ways) == 2 else None
        emit(
            residual.codegen,
            Instr(INSTEAD.get(instr.op, instr.op), instr.arg if label is None else label, instr.position),
        )
    if ways:
        go_on(residual, ways[0], variables)
    if label is not None:
        residual.codegen.mark(label)
        go_on(residual, ways[1], variables)
    if caught is not None:
        emit_handler(residual, caught, variables)


def arms(frame: Frame, instr: Instr, index: int) -> list[Arm]:
    """Where the instruction leads: behind it, and to its label if it branches."""
    row = OPS[instr.op]
    if row.flow in ("return", "raise"):
        return []
    below = null_slots(frame.stack)[: len(frame.stack) - pops(instr.op, instr.arg)]
    pushed = CALLABLE_SLOTS if instr.op in INSTEAD else (False,) * pushes(instr.op, instr.arg)
    found = []
    if row.flow != "jump":
        found.append(arm(frame, below, pushed, index, index + 1))
    if row.flow != "next":
        found.append(arm(frame, below, (False,) * row.jump_pushes, index, frame.code.targets[instr.arg]))
    return found


def handler_arm(frame: Frame, index: int) -> Arm | None:
    """The way to the handler of an exception of the breaking instruction, if it is in a block."""
    protection = frame.code.protections[index]
    if protection is None:
        return None
    below = null_slots(frame.stack)[: protection.depth]
    return arm(frame, below, (False,) * (1 + protection.lasti), index, protection.target)


@contextmanager
def protection(residual: Residual, caught: Arm | None) -> Iterator[None]:
    """The region of the breaking instruction, if it is in a block. Looking up the method it calls is a part of it."""
    if caught is None:
        yield
        return
    residual.handler = Label("caught")
    with residual.codegen.protected(residual.handler, depth=caught.below):
        yield


def emit(codegen: Codegen, instr: Instr) -> None:
    """Emit the breaking instruction."""
    codegen.position = instr.position
    if instr.op == "CALL_FUNCTION_EX":  # its dict comes from a variable, and must be one made in the same code
        codegen.call_ex(instr.arg)
    elif instr.op == "FOR_ITER":  # its iterator likewise
        emit_for_iter(codegen, instr.arg)
    else:
        codegen.extend([instr])


def emit_for_iter(codegen: Codegen, exhausted: Label) -> None:
    """FOR_ITER over any object: `next` with a default that tells the end."""
    going_on = Label()
    iterator = codegen.new_temp("iterator")
    codegen.store(iterator)
    codegen.load(iterator)
    codegen.push_callable(lambda: codegen.load_const(next))
    codegen.load(iterator)
    codegen.load_const(END)
    codegen.call(2)
    codegen.forget(iterator)
    codegen.dup()
    codegen.load_const(END)
    codegen.emit("IS_OP", False)
    codegen.emit("POP_JUMP_IF_FALSE", going_on)
    codegen.pop()
    codegen.pop()
    codegen.emit("JUMP", exhausted)
    codegen.mark(going_on)


def emit_handler(residual: Residual, caught: Arm, variables: dict[str, str]) -> None:
    """Where an exception of the breaking instruction comes: its handler goes on in a continuation.

    The offset that some handlers want is that of the continuation's first instruction, which stands for the same line.
    """
    codegen = residual.codegen
    assert residual.handler is not None
    codegen.mark(residual.handler)
    if len(caught.nulls) - caught.below == 2:
        codegen.load_const(0)
        codegen.emit("SWAP", 2)
    go_on(residual, caught, variables)


def null_slots(stack: Sequence[Value | None]) -> tuple[bool, ...]:
    """Which slots are NULL in residual code. A method waiting for its call is looked up there: a callable and NULL."""
    nulls = [value is None for value in stack]
    for slot, value in enumerate(stack):
        if isinstance(value, MethodSlot):
            nulls[slot : slot + 2] = CALLABLE_SLOTS
    return tuple(nulls)


def arm(frame: Frame, below: tuple[bool, ...], pushed: tuple[bool, ...], index: int, target: int) -> Arm:
    """The way from the breaking instruction `index` to `target`: slots left alone, slots pushed (is NULL, each)."""
    nulls = below + pushed
    bound = [name for name in frame.code.bytecode.varnames if name in frame.locals]
    tail = cheap_tail(frame.code.instrs, target, bound)
    if tail and not any(nulls):
        return Arm(nulls, len(below), None, tail)
    slots = [slot for slot, is_null in enumerate(nulls) if is_null]
    return Arm(nulls, len(below), continuation_at(frame.code, target, slots, bound, index))


def cheap_tail(instrs: Sequence[Instr], start: int, bound: Sequence[str]) -> tuple[Instr, ...]:
    """The instructions from `start` to a return, if they are few and cheap; else nothing."""
    for count, instr in enumerate(instrs[start : start + LONGEST_TAIL], 1):
        if instr.op not in CHEAP or (instr.op == "LOAD_FAST" and instr.arg not in bound):
            break
        if instr.op == "RETURN_VALUE":
            return tuple(instrs[start : start + count])
    return ()


def needed(ways: Sequence[Arm]) -> list[str]:
    """The locals that some continuation takes, or some tail reads."""
    parameters = [p for way in ways if way.continuation is not None for p in way.continuation.parameters]
    names = [str(p.source) for p in parameters if p.kind == "local"]
    names += [instr.arg for way in ways for instr in way.tail if instr.op == "LOAD_FAST"]
    return list(dict.fromkeys(names))


def save(residual: Residual, names: Sequence[str], reason: GraphBreak) -> tuple[list[Slot], dict[str, str]]:
    """Read the stack and the named variables into temporaries, before anything changes.

    Arguments the trace never looked at stay where they are. Raises GraphBreak when an open block cannot be continued.
    """
    frame = residual.frame
    untouched = [name for name in names if name in frame.unread_arguments()]
    local_values = {name: frame.locals[name] for name in names if name not in untouched}
    stack_values = [value for value in frame.stack if value is not None]
    own_cells = [frame.cells[name] for name in frame.code.bytecode.cellvars]
    if frame.code.protections[frame.pc] is not None:
        check_blocks(residual.state, frame.stack, [*stack_values, *local_values.values()], reason)
    residual.begin([*stack_values, *local_values.values(), *own_cells])
    slots = _save_stack(residual)
    saved = residual.save(list(local_values.values()))
    return slots, dict(zip(local_values, saved, strict=True)) | {name: name for name in untouched}


def _save_stack(residual: Residual) -> list[Slot]:
    slots: list[Slot] = []
    for value in residual.frame.stack:
        if value is None:
            slots.append(Slot())
        elif isinstance(value, MethodSlot):
            slots.append(Slot(method=value.name))
        elif isinstance(value, ExitValue):
            entered_anew = isinstance(value.manager, TorchContextValue)
            slots.append(Slot(None if entered_anew else residual.save([value.manager])[0], block=value.manager))
        elif value.is_constant() and value.source is None:
            slots.append(Slot(value=value))
        else:
            slots.append(Slot(temporary=residual.save([value])[0]))
    return slots


def restore_stack(residual: Residual, slots: Sequence[Slot], below: int) -> None:
    """Put the value stack back as the breaking instruction wants it; NULL in the `below` slots is None."""
    codegen = residual.codegen
    method: str | None = None
    for position, slot in enumerate(slots):
        if slot.method is not None:
            method = slot.method
        elif method is not None:
            restore_method(residual, slot, method, waits=position < below)
            method = None
        elif slot.temporary is None and slot.value is None and slot.block is None:
            codegen.load_const(None) if position < below else codegen.push_null()
        else:
            restore_slot(residual, slot)


def restore_slot(residual: Residual, slot: Slot) -> None:
    """Push a value of the stack."""
    codegen = residual.codegen
    if slot.built is not None:
        codegen.build(slot.built, 0)
    if slot.block is not None:
        push_exit(codegen, slot.block, slot.temporary)
    elif slot.temporary is not None:
        codegen.load(slot.temporary)
    elif slot.value is not None:
        codegen(slot.value)
    if slot.built is not None:
        codegen.emit(FILLED[slot.built], 1)


def restore_method(residual: Residual, owner: Slot, name: str, *, waits: bool) -> None:
    """Push the two slots of a method: for a call now, or, when it `waits`, looked up and with a None for its NULL."""
    codegen = residual.codegen
    if not waits:
        restore_slot(residual, owner)
        codegen.load_method(name)
        return
    for is_null in CALLABLE_SLOTS:
        if is_null:
            codegen.load_const(None)
        else:
            restore_slot(residual, owner)
            codegen.load_attr(name)


def go_on(residual: Residual, way: Arm, variables: dict[str, str]) -> None:
    """Call the continuation with the stack and the live variables and return what it returns; or run the tail."""
    codegen = residual.codegen
    continuation = way.continuation
    if continuation is None:
        for instr in way.tail:
            codegen.emit(instr.op, variables[instr.arg] if instr.op == "LOAD_FAST" else instr.arg)
        return
    stack = [codegen.new_temp("stack") for _ in way.nulls]
    for slot, is_null in reversed(list(enumerate(way.nulls))):
        if not is_null:
            codegen.store(stack[slot])
        elif slot < way.below:
            codegen.pop()  # a placeholder: see restore_stack
    codegen.push_callable(lambda: codegen.make_function(continuation.code, continuation.freevars))
    for parameter in continuation.parameters:
        codegen.load(argument(parameter, stack, variables))
    residual.forget_variables()
    codegen.call(len(continuation.parameters))
    codegen.return_value()


def argument(parameter: Parameter, stack: Sequence[str], variables: dict[str, str]) -> str:
    """The variable of the residual code that holds an argument of a continuation."""
    if isinstance(parameter.source, int):
        return stack[parameter.source]
    return variables[parameter.source] if parameter.kind == "local" else parameter.source
