"""Code after a graph break: the breaking instruction runs, and a continuation (resume function) is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Final, Literal

from framesmith_bytecode import EXIT_SLOTS, ITERATOR_SLOTS, OPS, UNBOUND, Instr, Label, hand_over, pops, pushes
from framesmith_dynamo.breaks import READS_OWN_LOCALS, GraphBreak
from framesmith_dynamo.interpreter.generator import LIVE_GENERATOR
from framesmith_dynamo.interpreter.method_slots import CALLABLE_SLOTS, MethodSlot, callable_slots
from framesmith_dynamo.residual.blocks import check_blocks, contexts_of, push_exit
from framesmith_dynamo.residual.continuations import NO_CONTINUATION, continuation_at
from framesmith_dynamo.residual.mutated_inputs import mark_mutated_inputs
from framesmith_dynamo.residual.profitability import is_unprofitable
from framesmith_dynamo.residual.straight_line import straight_line_code_at
from framesmith_dynamo.values.exits import ExitValue
from framesmith_dynamo.values.torch_api.contexts import TorchContextValue

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen, Continuation, Parameter, Reconstructable
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.residual.codegen import Residual
    from framesmith_dynamo.values.base import Value


Built = Literal["list", "set", "map", "tuple"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One successor of the breaking instruction: the stack slots below its operands, and the code inlined after it.

    Then a continuation, if anything is left to do, is called; it finds the slots `nulls` NULL.
    """

    nulls: tuple[bool, ...]
    below: int
    continuation: Continuation | None
    inlined_tail: tuple[Instr, ...] = ()


#: Instructions that add to a container under construction: its kind, and how many values they pop.
CONTAINER_BUILDERS: Final[dict[str, tuple[Built, int]]] = {
    "LIST_APPEND": ("list", 1),
    "LIST_EXTEND": ("list", 1),
    "SET_ADD": ("set", 1),
    "SET_UPDATE": ("set", 1),
    "MAP_ADD": ("map", 2),
    "DICT_UPDATE": ("map", 1),
    "DICT_MERGE": ("map", 1),
}
#: Instructions that take their last operand for a tuple unseen.
TUPLE_READERS: Final = frozenset({"MATCH_CLASS", "MATCH_KEYS"})
#: The instruction that fills a container of each kind.
EXTENDERS: Final[dict[Built, str]] = {
    "list": "LIST_EXTEND",
    "set": "SET_UPDATE",
    "map": "DICT_UPDATE",
    "tuple": "LIST_EXTEND",
}
#: Instructions whose results may hold NULL, and their replacements, whose results do not.
WITHOUT_NULL = {"LOAD_METHOD": "LOAD_ATTR", "LOAD_SUPER_METHOD": "LOAD_SUPER_ATTR"}
#: Instructions that CPython lets have only operands made in the same code.
SAME_CODE: Final = frozenset({"CALL_INTRINSIC_1", "CALL_INTRINSIC_2"})
#: The slots of an iterator that residual code finds NULL.
ITERATOR_NULLS: Final = (False, True)[:ITERATOR_SLOTS]
#: The slots that residual code finds NULL after an instruction that leaves a callable for a later call.
PUSHED_NULLS: Final[dict[str, tuple[bool, ...]]] = {
    **dict.fromkeys(WITHOUT_NULL, CALLABLE_SLOTS),
    "GET_ITER": ITERATOR_NULLS,
    "FOR_ITER": (*ITERATOR_NULLS, False),
    "BEFORE_WITH": (*(CALLABLE_SLOTS if EXIT_SLOTS == 2 else (False,)), False),
}


#: The default of `next` at the end of an iterator.
END = object()


def emit_break(residual: Residual, reason: GraphBreak) -> None:
    """Generate the end of residual code at a break. Raises GraphBreak when the frame cannot be continued here."""
    frame, codegen = residual.frame, residual.codegen
    index = frame.pc
    if frame.code.analyses.observes_locals or (reason.kind is READS_OWN_LOCALS and not reason.in_callee):
        raise GraphBreak(READS_OWN_LOCALS, str(reason))
    for generator in frame.state.suspended_generators:  # even an unused one: its close would come at an unknown time
        raise GraphBreak(LIVE_GENERATOR, generator.describe())
    instr = frame.code.instrs[index]
    if instr.op in SAME_CODE:
        raise GraphBreak(
            NO_CONTINUATION, f"the operands of {instr.arg} cannot come from variables; the break: {reason}"
        )
    ways = arms(residual.frame, instr, index)
    if residual.state.is_empty() and all(way.continuation is None for way in ways):
        raise reason  # nothing before and nothing after: there is nothing to compile
    if is_unprofitable(frame.code, residual.state.builder.graph, index):
        raise reason
    caught = handler_arm(frame, index)
    slots, variables = save(residual, live_variables([*ways, *([] if caught is None else [caught])]), reason)
    residual.change(grad_mode=not contexts_of(frame.stack))
    mark_mutated_inputs(frame)
    outside = len(slots) if caught is None else caught.below
    if instr.op in CONTAINER_BUILDERS:
        kind, above = CONTAINER_BUILDERS[instr.op]
        built = len(slots) - above - instr.arg
        slots[built] = RebuiltContainer(kind, slots[built])
    elif instr.op in TUPLE_READERS:
        slots[-1] = RebuiltContainer("tuple", slots[-1])
    codegen.restore_stack(slots[:outside])
    with protection(residual, caught):
        codegen.restore_stack(slots[outside:])
        codegen.forget_all(keep=variables.values())
        label = Label() if len(ways) == 2 else None
        emit(codegen, Instr(instr.op, instr.arg if label is None else label, instr.position))
    if ways:
        emit_continuation_call(residual, ways[0], variables)
    if label is not None:
        codegen.mark(label)
        emit_continuation_call(residual, ways[1], variables)
    if caught is not None:
        emit_handler(residual, caught, variables)


def arms(frame: Frame, instr: Instr, index: int) -> list[Arm]:
    """Return the successors of the instruction: the next one, and its label if it branches."""
    row = OPS[instr.op]
    if row.flow in ("return", "raise"):
        return []
    below = null_slots(frame.stack)[: len(frame.stack) - pops(instr.op, instr.arg)]
    pushed = PUSHED_NULLS.get(instr.op) or (False,) * pushes(instr.op, instr.arg)
    found = []
    if row.flow != "jump":
        found.append(arm(frame, below, pushed, index, index + 1))
    if row.flow != "next":
        found.append(arm(frame, below, (False,) * row.jump_pushes, index, frame.code.targets[instr.arg]))
    return found


def handler_arm(frame: Frame, index: int) -> Arm | None:
    """Return the successor for an exception of the breaking instruction, if it is in a block."""
    protection = frame.code.protections[index]
    if protection is None:
        return None
    below = null_slots(frame.stack)[: protection.depth]
    return arm(frame, below, (False,) * (1 + protection.lasti), index, protection.target)


@contextmanager
def protection(residual: Residual, caught: Arm | None) -> Iterator[None]:
    """Emit the exception region of the breaking instruction, if it is in a block; it includes the method's look-up."""
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
    elif instr.op == "FOR_ITER":  # so does its iterator
        emit_for_iter(codegen, instr.arg)
    elif instr.op == "GET_ITER" and ITERATOR_SLOTS == 2:  # the second slot would hold what no variable can
        emit_get_iter(codegen)
    elif instr.op in WITHOUT_NULL:
        codegen.emit(WITHOUT_NULL[instr.op], instr.arg)
        codegen.callable_on_stack()
    else:
        codegen.extend([instr])
        if instr.op == "BEFORE_WITH" and EXIT_SLOTS == 2:
            emit_exit_without_self(codegen)


def emit_exit_without_self(codegen: Codegen) -> None:
    """Replace the exit and its self, or NULL, under the entered value by a bound exit and NULL."""
    leave, owner, entered = (codegen.new_temp(name) for name in ("exit", "owner", "entered"))
    unbound, done = Label(), Label()
    codegen.spill_stack([leave, owner, entered])
    codegen.push_function(bind_exit)
    codegen.load(leave)
    with codegen.protected(unbound):
        codegen.emit("LOAD_FAST_CHECK", owner)
    codegen.jump(done)
    codegen.mark(unbound)
    codegen.emit("PUSH_EXC_INFO")
    codegen.pop()
    codegen.emit("POP_EXCEPT")
    codegen.load_const(UNBOUND)
    codegen.mark(done)
    codegen.call(2)
    codegen.callable_on_stack()
    codegen.load(entered)
    for name in (leave, owner, entered):
        codegen.forget(name)


def bind_exit(leave: Callable[..., object], owner: object) -> Callable[..., object]:
    """Called by compiled code: return the exit, as a method of its self if there is one."""
    return leave if owner is UNBOUND else MethodType(leave, owner)


def emit_for_iter(codegen: Codegen, exhausted: Label) -> None:
    """FOR_ITER over any object: `next` with a default that marks the end."""
    going_on = Label()
    iterator = codegen.new_temp("iterator")
    if ITERATOR_SLOTS == 2:
        codegen.pop()
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
    if ITERATOR_SLOTS == 2:
        codegen.push_null()
        codegen.swap()


def emit_get_iter(codegen: Codegen) -> None:
    """GET_ITER of any object: `iter`, and a NULL that may be stored."""
    held = codegen.new_temp("iterator")
    codegen.store(held)
    codegen.push_function(iter)
    codegen.load(held)
    codegen.call(1)
    codegen.store(held)
    codegen.load(held)
    codegen.push_null()
    codegen.forget(held)


def emit_handler(residual: Residual, caught: Arm, variables: dict[str, str]) -> None:
    """Emit the handler of exceptions of the breaking instruction, which continues in a continuation.

    The offset that some handlers read is that of the continuation's first instruction, which has the same line.
    """
    codegen = residual.codegen
    assert residual.handler is not None
    codegen.mark(residual.handler)
    if len(caught.nulls) - caught.below == 2:
        codegen.load_const(0)
        codegen.swap()
    emit_continuation_call(residual, caught, variables)


def null_slots(stack: Sequence[Value | None]) -> tuple[bool, ...]:
    """Return which slots are NULL in residual code."""
    return tuple(slot is None for slot in stack_slots(stack))


def arm(frame: Frame, below: tuple[bool, ...], pushed: tuple[bool, ...], index: int, target: int) -> Arm:
    """Return the successor from instruction `index` to `target`: slots below, slots pushed (is NULL, each)."""
    nulls = below + pushed
    bound = [name for name in frame.code.bytecode.varnames if name in frame.locals]
    stretch = straight_line_code_at(frame, target, nulls, bound)
    if stretch.end is None:
        return Arm(nulls, len(below), None, stretch.instrs)
    slots = [slot for slot, is_null in enumerate(stretch.nulls) if is_null]
    continuation = continuation_at(frame.code, stretch.end, slots, bound, index)
    return Arm(stretch.nulls, len(below), continuation, stretch.instrs)


def live_variables(ways: Sequence[Arm]) -> list[str]:
    """Return the live locals of continuations and inlined code, and the free variables of continuations."""
    continuations = [way.continuation for way in ways if way.continuation is not None]
    names = [str(p.source) for one in continuations for p in one.parameters if p.kind == "local"]
    names += [name for one in continuations for name in one.freevars]
    names += [instr.arg for way in ways for instr in way.inlined_tail if instr.op == "LOAD_FAST"]
    return list(dict.fromkeys(names))


def save(
    residual: Residual, names: Sequence[str], reason: GraphBreak
) -> tuple[list[Reconstructable | None], dict[str, str]]:
    """Read the stack and the named variables into temporaries, before anything changes.

    Returns the slots of the stack, to be pushed when everything has changed, and the variable that holds each local.
    Arguments never read by the trace stay in their locals. Raises GraphBreak when an open block cannot be continued.
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
    for value in changeable_values(frame.stack):
        codegen.keep(value)
    variables = {name: codegen.keep(value) for name, value in (local_values | moved_cells).items()}
    return slots, variables | {name: name for name in untouched}


def stack_slots(stack: Sequence[Value | None]) -> list[Reconstructable | None]:
    """Return the values to push for each slot. A pending method call becomes a callable and NULL."""
    slots: list[Reconstructable | None] = [OpenBlock(v) if isinstance(v, ExitValue) else v for v in stack]
    for slot, value in enumerate(stack):
        if isinstance(value, MethodSlot):
            slots[slot : slot + 2] = callable_slots(value)
    return slots


def changeable_values(stack: Iterable[Value | None]) -> Iterator[Value]:
    """Return the values of the stack slots that the replay may change or replace."""
    for value in stack:
        if isinstance(value, ExitValue):
            if not isinstance(value.manager, TorchContextValue):
                yield value.manager
        elif value is not None and not isinstance(value, MethodSlot) and not is_literal(value):
            yield value


def is_literal(value: Value) -> bool:
    """Whether the object itself is a constant of residual code."""
    return value.is_constant() and value.source is None and not any(True for _ in value.referents())


class OpenBlock:
    """The exit of an open `with` block."""

    __slots__ = ("manager",)

    def __init__(self, block: ExitValue) -> None:
        self.manager = block.manager

    def reconstruct(self, codegen: Codegen) -> None:
        push_exit(codegen, self.manager)


class RebuiltContainer:
    """A container that only the stack refers to, so that a new one can replace it."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: Built, content: Reconstructable | None) -> None:
        assert content is not None
        self.kind = kind
        self.content = content

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.build("list" if self.kind == "tuple" else self.kind, 0)
        codegen(self.content)
        codegen.emit(EXTENDERS[self.kind], 1)
        if self.kind == "tuple":
            codegen.emit("LIST_TO_TUPLE")


def emit_continuation_call(residual: Residual, way: Arm, variables: dict[str, str]) -> None:
    """Emit the inlined code; call the continuation, if any, with the stack and the live variables."""
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
    """Return an emitter of the continuation's function, in a comprehension whose variable is a cell; else None.

    Residual code has the cell of the function's own variable of that name instead.
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
    """Return the variable of the residual code that holds an argument of a continuation."""
    if isinstance(parameter.source, int):
        return stack[parameter.source]
    return variables[parameter.source] if parameter.kind == "local" else parameter.source
