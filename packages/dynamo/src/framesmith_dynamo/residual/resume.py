"""After a graph break: the breaking instruction runs for real, and a continuation function goes on behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Final, Literal

from framesmith_bytecode import OPS, Instr, Label, hand_over, pops, pushes
from framesmith_dynamo.breaks import READS_OWN_LOCALS, GraphBreak
from framesmith_dynamo.interpreter.generator import LIVE_GENERATOR
from framesmith_dynamo.interpreter.handlers.contexts import ExitValue
from framesmith_dynamo.interpreter.method_slots import CALLABLE_SLOTS, MethodSlot, callable_slots
from framesmith_dynamo.residual.blocks import check_blocks, contexts_of, push_exit
from framesmith_dynamo.residual.continuations import continuation_at
from framesmith_dynamo.residual.mutated_inputs import mark_mutated_inputs
from framesmith_dynamo.residual.profitability import is_unprofitable
from framesmith_dynamo.residual.straight_line import straight_line_code_at
from framesmith_dynamo.values.torch_api.contexts import TorchContextValue

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen, Continuation, Parameter, Reconstructable
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.residual.codegen import Residual
    from framesmith_dynamo.values.base import Value


Built = Literal["list", "set", "map"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way on behind the breaking instruction: how many stack slots were there before it, and what runs on the spot.

    Then a continuation is called, which finds these stack slots NULL, if anything is left to do.
    """

    nulls: tuple[bool, ...]
    below: int
    continuation: Continuation | None
    inlined_tail: tuple[Instr, ...] = ()


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


def emit_break(residual: Residual, reason: GraphBreak) -> None:
    """Generate the end of residual code at a break. Raises GraphBreak when the frame cannot be continued here."""
    frame, codegen = residual.frame, residual.codegen
    index = frame.pc
    if frame.code.analyses.observes_locals or (reason.kind is READS_OWN_LOCALS and not reason.in_callee):
        raise GraphBreak(READS_OWN_LOCALS, str(reason))
    for generator in frame.state.suspended:  # also one that is not needed: it will be closed, we would not know when
        raise GraphBreak(LIVE_GENERATOR, generator.describe())
    instr = frame.code.instrs[index]
    ways = arms(residual.frame, instr, index)
    if residual.state.is_empty() and all(way.continuation is None for way in ways):
        raise reason  # nothing before, nothing behind: there is nothing to compile
    if is_unprofitable(frame.code, residual.state.builder.graph, index):
        raise reason
    caught = handler_arm(frame, index)
    slots, variables = save(residual, needed([*ways, *([] if caught is None else [caught])]), reason)
    residual.change(grad_mode=not contexts_of(frame.stack))
    mark_mutated_inputs(frame)
    outside = len(slots) if caught is None else caught.below
    if instr.op in BUILT:
        kind, above = BUILT[instr.op]
        built = len(slots) - above - instr.arg
        slots[built] = RebuiltContainer(kind, slots[built])
    codegen.restore_stack(slots[:outside])
    with protection(residual, caught):
        codegen.restore_stack(slots[outside:])
        codegen.forget_all(keep=variables.values())
        label = Label() if len(ways) == 2 else None
        emit(codegen, Instr(instr.op, instr.arg if label is None else label, instr.position))
    if ways:
        go_on(residual, ways[0], variables)
    if label is not None:
        codegen.mark(label)
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
    elif instr.op in INSTEAD:
        codegen.emit(INSTEAD[instr.op], instr.arg)
        codegen.callable_on_stack()
    else:
        codegen.extend([instr])


def emit_for_iter(codegen: Codegen, exhausted: Label) -> None:
    """FOR_ITER over any object: `next` with a default that tells the end."""
    going_on = Label()
    iterator = codegen.new_temp("iterator")
    codegen.store(iterator)
    codegen.load(iterator)
    codegen.push_function(next)
    codegen.load(iterator)
    codegen.load_const(END)
    codegen.call(2)
    codegen.forget(iterator)
    codegen.dup()
    codegen.load_const(END)
    codegen.emit("IS_OP", False)
    codegen.branch(going_on, on="false")
    codegen.pop()
    codegen.pop()
    codegen.jump(exhausted)
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
        codegen.swap()
    go_on(residual, caught, variables)


def null_slots(stack: Sequence[Value | None]) -> tuple[bool, ...]:
    """Which slots are NULL in residual code."""
    return tuple(slot is None for slot in stack_slots(stack))


def arm(frame: Frame, below: tuple[bool, ...], pushed: tuple[bool, ...], index: int, target: int) -> Arm:
    """The way from the breaking instruction `index` to `target`: slots left alone, slots pushed (is NULL, each)."""
    nulls = below + pushed
    bound = [name for name in frame.code.bytecode.varnames if name in frame.locals]
    stretch = straight_line_code_at(frame, target, nulls, bound)
    if stretch.end is None:
        return Arm(nulls, len(below), None, stretch.instrs)
    slots = [slot for slot, is_null in enumerate(stretch.nulls) if is_null]
    continuation = continuation_at(frame.code, stretch.end, slots, bound, index)
    return Arm(stretch.nulls, len(below), continuation, stretch.instrs)


def needed(ways: Sequence[Arm]) -> list[str]:
    """The locals that continuations take or code on the spot reads, and the free variables of the continuations."""
    continuations = [way.continuation for way in ways if way.continuation is not None]
    names = [str(p.source) for one in continuations for p in one.parameters if p.kind == "local"]
    names += [name for one in continuations for name in one.freevars]
    names += [instr.arg for way in ways for instr in way.inlined_tail if instr.op == "LOAD_FAST"]
    return list(dict.fromkeys(names))


def save(
    residual: Residual, names: Sequence[str], reason: GraphBreak
) -> tuple[list[Reconstructable | None], dict[str, str]]:
    """Read the stack and the named variables into temporaries, before anything changes.

    Gives the slots of the stack, to be pushed when everything has changed, and the variable that holds each local.
    Arguments the trace never looked at stay where they are. Raises GraphBreak when an open block cannot be continued.
    """
    frame, codegen = residual.frame, residual.codegen
    untouched = [name for name in names if name in frame.unread_arguments()]
    local_values = {name: frame.locals[name] for name in names if name not in untouched and not frame.has_cell(name)}
    stack_values = [value for value in frame.stack if value is not None]
    moved_cells = {name: cell for name, cell in frame.moved_cells().items() if name in names}
    own_cells = [frame.cells[name] for name in frame.code.bytecode.cellvars]
    if frame.code.protections[frame.pc] is not None:
        check_blocks(residual.state, frame.stack, [*stack_values, *local_values.values()], reason)
    residual.begin([*stack_values, *local_values.values(), *own_cells, *moved_cells.values()])
    slots = stack_slots(frame.stack)
    for value in kept(frame.stack):
        codegen.keep(value)
    variables = {name: codegen.keep(value) for name, value in (local_values | moved_cells).items()}
    return slots, variables | {name: name for name in untouched}


def stack_slots(stack: Sequence[Value | None]) -> list[Reconstructable | None]:
    """What to push for each slot. A method waiting for its call is looked up then: a callable and NULL."""
    slots: list[Reconstructable | None] = [OpenBlock(v) if isinstance(v, ExitValue) else v for v in stack]
    for slot, value in enumerate(stack):
        if isinstance(value, MethodSlot):
            slots[slot : slot + 2] = callable_slots(value)
    return slots


def kept(stack: Iterable[Value | None]) -> Iterator[Value]:
    """The values that the slots of the stack are made of and that may change, or be others, after the replay."""
    for value in stack:
        if isinstance(value, ExitValue):
            if not isinstance(value.manager, TorchContextValue):
                yield value.manager
        elif value is not None and not isinstance(value, MethodSlot) and not is_literal(value):
            yield value


def is_literal(value: Value) -> bool:
    """Whether residual code has the object itself among its constants."""
    return value.is_constant() and value.source is None and not any(True for _ in value.referents())


class OpenBlock:
    """The exit of an open `with` block."""

    __slots__ = ("manager",)

    def __init__(self, block: ExitValue) -> None:
        self.manager = block.manager

    def reconstruct(self, codegen: Codegen) -> None:
        push_exit(codegen, self.manager)


class RebuiltContainer:
    """A container under construction: nothing but the stack holds it, so one made anew where its kind shows will do."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: Built, content: Reconstructable | None) -> None:
        assert content is not None
        self.kind = kind
        self.content = content

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.build(self.kind, 0)
        codegen(self.content)
        codegen.emit(FILLED[self.kind], 1)


def go_on(residual: Residual, way: Arm, variables: dict[str, str]) -> None:
    """Run what is to run on the spot; call the continuation, if any, with the stack and the live variables."""
    codegen = residual.codegen
    continuation = way.continuation
    position = codegen.position
    for instr in way.inlined_tail:
        codegen.position = instr.position
        codegen.emit(instr.op, variables[instr.arg] if instr.op == "LOAD_FAST" else instr.arg)
    codegen.position = position
    if continuation is None:
        return
    stack = [codegen.new_temp("stack") for _ in way.nulls]
    codegen.spill_stack(stack)
    hand_over(
        codegen,
        continuation,
        lambda parameter: codegen.load(argument(parameter, stack, variables)),
        leave=codegen.forget_all,
        make=function_maker(codegen, continuation, variables),
    )
    codegen.return_value()


def function_maker(
    codegen: Codegen, continuation: Continuation, variables: dict[str, str]
) -> Callable[[], object] | None:
    """What pushes the function of a continuation within a comprehension whose variable is a cell; else None.

    The residual code has the cell of the function's own variable of that name in its place.
    """
    if variables.keys().isdisjoint(continuation.freevars):
        return None

    def push() -> None:
        codegen.push_function(FunctionType)
        codegen.load_const(continuation.code)
        codegen.push_call(globals)
        codegen.load_const(None)
        codegen.load_const(None)
        for name in continuation.freevars:
            if name in variables:
                codegen.load(variables[name])
            else:
                codegen.load_closure(name)
        codegen.build("tuple", len(continuation.freevars))
        codegen.call(5)

    return push


def argument(parameter: Parameter, stack: Sequence[str], variables: dict[str, str]) -> str:
    """The variable of the residual code that holds an argument of a continuation."""
    if isinstance(parameter.source, int):
        return stack[parameter.source]
    return variables[parameter.source] if parameter.kind == "local" else parameter.source
