"""After a graph break: the breaking instruction runs for real, and a continuation function goes on behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from framesmith_bytecode import Continuation, Instr, Label, Parameter
from framesmith_bytecode.ops import OPS, pops, pushes

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.continuations import continuation_at
from framesmith_dynamo.method_slots import MethodSlot

if TYPE_CHECKING:
    from framesmith_dynamo.frame import Frame
    from framesmith_dynamo.output import Residual
    from framesmith_dynamo.values.base import Value

BREAK_IN_BLOCK = register_break(
    "break-in-block",
    what="the graph breaks inside a `with` or `try` block of the function",
    why="the rest of such a block cannot be continued in a function of its own",
    hint="move the breaking call out of the block, or the block into a function of its own",
)


@dataclass(frozen=True, slots=True)
class Slot:
    """How one slot of the value stack comes back: NULL (all None), a temporary, a value pushed then, or a method looked up then."""

    temporary: str | None = None
    value: Value | None = None
    method: str | None = None


@dataclass(frozen=True, slots=True)
class Arm:
    """One way on behind the breaking instruction: the stack depth there, and the continuation, or None to return the top at once."""

    depth: int
    continuation: Continuation | None


def emit_break(residual: Residual, reason: GraphBreak) -> None:
    """Generate the end of residual code at a break. Raises GraphBreak when the frame cannot be continued here."""
    frame = residual.frame
    index = frame.pc
    if frame.code.protections[index] is not None:
        raise GraphBreak(BREAK_IN_BLOCK, str(reason))
    instr = frame.code.instrs[index]
    ways = arms(residual.frame, instr, index)
    slots, variables = save(residual, needed(ways))
    residual.change()
    restore_stack(residual, slots)
    label = Label() if len(ways) == 2 else None
    residual.codegen.emit(instr.op, instr.arg if label is None else label)
    if ways:
        go_on(residual, ways[0], variables)
    if label is not None:
        residual.codegen.mark(label)
        go_on(residual, ways[1], variables)


def arms(frame: Frame, instr: Instr, index: int) -> list[Arm]:
    """Where the instruction leads: behind it, and to its label if it branches."""
    row = OPS[instr.op]
    if row.flow in ("return", "raise"):
        return []
    below = frame.stack[: len(frame.stack) - pops(instr.op, instr.arg)]
    found = []
    if row.flow != "jump":
        found.append(arm(frame, below, index, index + 1, pushes(instr.op, instr.arg)))
    if row.flow != "next":
        found.append(arm(frame, below, index, frame.code.targets[instr.arg], row.jump_pushes))
    return found


def arm(frame: Frame, below: Sequence[Value | None], index: int, target: int, pushed: int) -> Arm:
    """The way from the breaking instruction `index` to `target`: it leaves the stack `below` alone and pushes some values."""
    depth = len(below) + pushed
    if frame.code.instrs[target].op == "RETURN_VALUE" and depth == 1:
        return Arm(depth, None)
    nulls = [slot for slot, value in enumerate(below) if value is None]
    bound = [name for name in frame.code.bytecode.varnames if name in frame.locals]
    return Arm(depth, continuation_at(frame.code, target, nulls, bound, index))


def needed(ways: Sequence[Arm]) -> list[str]:
    """The locals some continuation takes."""
    parameters = [p for way in ways if way.continuation is not None for p in way.continuation.parameters]
    return list(dict.fromkeys(str(p.source) for p in parameters if p.kind == "local"))


def save(residual: Residual, names: Sequence[str]) -> tuple[list[Slot], dict[str, str]]:
    """Read the stack and the named variables into temporaries, before anything changes.

    Arguments the trace never looked at stay where they are.
    """
    frame = residual.frame
    untouched = [name for name in names if name in getattr(frame.locals, "pending", ())]
    local_values = {name: frame.locals[name] for name in names if name not in untouched}
    stack_values = [value for value in frame.stack if value is not None]
    own_cells = [frame.cells[name] for name in frame.code.bytecode.cellvars]
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
        elif value.is_constant() and value.source is None:
            slots.append(Slot(value=value))
        else:
            slots.append(Slot(temporary=residual.save([value])[0]))
    return slots


def restore_stack(residual: Residual, slots: Sequence[Slot]) -> None:
    """Put the value stack back as the breaking instruction expects it."""
    codegen = residual.codegen
    method: str | None = None
    for slot in slots:
        if slot.method is not None:
            method = slot.method
            continue
        if slot.temporary is not None:
            codegen.load(slot.temporary)
        elif slot.value is not None:
            codegen(slot.value)
        else:
            codegen.push_null()
        if method is not None:
            codegen.load_method(method)
            method = None


def go_on(residual: Residual, way: Arm, variables: dict[str, str]) -> None:
    """Call the continuation with the stack and the live variables, and return what it returns."""
    codegen = residual.codegen
    continuation = way.continuation
    if continuation is not None:
        stack = [codegen.new_temp("stack") for _ in range(way.depth)]
        for slot in reversed(range(way.depth)):
            codegen.store(stack[slot])  # a NULL slot too: POP_TOP takes no NULL, a store of it unbinds
        codegen.push_callable(lambda: codegen.make_function(continuation.code, continuation.freevars))
        for parameter in continuation.parameters:
            codegen.load(argument(parameter, stack, variables))
        codegen.call(len(continuation.parameters))
    codegen.return_value()


def argument(parameter: Parameter, stack: Sequence[str], variables: dict[str, str]) -> str:
    """The variable of the residual code that holds an argument of a continuation."""
    if isinstance(parameter.source, int):
        return stack[parameter.source]
    return variables[parameter.source] if parameter.kind == "local" else parameter.source
