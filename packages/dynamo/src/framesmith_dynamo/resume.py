"""After a graph break: the breaking instruction runs for real, and a continuation function goes on behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from framesmith_bytecode import Instr, Label
from framesmith_bytecode.ops import OPS, pops, pushes

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.continuations import Continuation, continue_at, live_variables
from framesmith_dynamo.method_slots import MethodSlot

if TYPE_CHECKING:
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
    """One way on behind the breaking instruction: the instruction reached and the stack depth there."""

    target: int
    depth: int


def emit_break(residual: Residual, reason: GraphBreak) -> None:
    """Generate the end of residual code at a break. Raises GraphBreak when the frame cannot be continued here."""
    frame = residual.frame
    index = frame.pc
    if frame.code.protections[index] is not None:
        raise GraphBreak(BREAK_IN_BLOCK, str(reason))
    instr = frame.code.instrs[index]
    ways = arms(residual, instr, index)
    names = live_variables(frame.code, [way.target for way in ways])
    given = [name for name in names if name in frame.locals]
    slots, variables = save(residual, given)
    residual.change()
    restore_stack(residual, slots)
    label = Label() if len(ways) == 2 else None
    residual.codegen.emit(instr.op, instr.arg if label is None else label)
    go_on(residual, ways[0], variables)
    if label is not None:
        residual.codegen.mark(label)
        go_on(residual, ways[1], variables)


def arms(residual: Residual, instr: Instr, index: int) -> list[Arm]:
    """Where the instruction leads: behind it, and to its label if it branches."""
    frame = residual.frame
    depth = len(frame.stack)
    row = OPS[instr.op]
    after = depth - pops(instr.op, instr.arg)
    if row.flow == "next":
        return [Arm(index + 1, after + pushes(instr.op, instr.arg))]
    if row.flow == "branch":
        return [Arm(index + 1, after + pushes(instr.op, instr.arg)), Arm(frame.code.targets[instr.arg], after + row.jump_pushes)]
    if row.flow == "jump":
        return [Arm(frame.code.targets[instr.arg], depth)]
    return []


def save(residual: Residual, names: Sequence[str]) -> tuple[list[Slot], dict[str, str]]:
    """Read the stack and the named variables into temporaries, before anything changes."""
    frame = residual.frame
    untouched = [name for name in names if name in getattr(frame.locals, "pending", {})]
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


def go_on(residual: Residual, arm: Arm, variables: dict[str, str]) -> None:
    """Call the continuation with the stack and the live variables, and return what it returns."""
    frame, codegen = residual.frame, residual.codegen
    if frame.code.instrs[arm.target].op == "RETURN_VALUE" and arm.depth == 1:
        codegen.return_value()
        return
    needed = [name for name in live_variables(frame.code, [arm.target]) if name in variables]
    target = continue_at(Continuation(frame.code, arm.target, arm.depth, tuple(needed), _nulls(residual, arm)))
    temporaries = [codegen.new_temp("stack") for _ in range(target.stack_arguments)]
    for name in reversed(temporaries):
        codegen.store(name)
    codegen.push_callable(lambda: codegen.make_function(target.code, target.code.co_freevars))
    for name in (*temporaries, *(variables[name] for name in needed)):
        codegen.load(name)
    codegen.call(len(temporaries) + len(needed))
    codegen.return_value()


def _nulls(residual: Residual, arm: Arm) -> tuple[int, ...]:
    """Which stack slots below the breaking instruction's operands are NULL."""
    return tuple(i for i, value in enumerate(residual.frame.stack[: arm.depth]) if value is None)
