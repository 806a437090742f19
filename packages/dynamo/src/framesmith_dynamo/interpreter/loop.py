"""The interpreter loop: runs frames instruction by instruction, and routes exceptions of the traced program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, cast

from framesmith_dynamo.breaks import DATA_DEPENDENT, GraphBreak, register_break
from framesmith_dynamo.interpreter import abandoned, handlers, inlining
from framesmith_dynamo.interpreter.decoded import decoded, loop_instructions
from framesmith_dynamo.interpreter.frame import Frame
from framesmith_dynamo.tensor_calls.ordered_effects import EFFECT_BETWEEN
from framesmith_dynamo.torch_switches import torch_names
from framesmith_dynamo.trace_state import RestartTrace, SpeculationLog, TraceState
from framesmith_dynamo.values import namespaces
from framesmith_dynamo.values.base import TOO_LONG, TracedRaise, Value
from framesmith_dynamo.values.functions.cells import CellValue, FoundCellValue
from framesmith_dynamo.values.objects.exceptions import ExceptionValue
from framesmith_dynamo.values.wrap import load_tables
from framesmith_guards import (
    AttrSource,
    ClosureSource,
    FunctionSource,
    ItemSource,
    LocalSource,
    location_of,
    note_location,
)
from framesmith_guards.torch_adapter import GuardOnDataDependentSymNode
from framesmith_sideeffects import ChangedAcrossCall, MutationRefused, UsedAcrossCall

if TYPE_CHECKING:
    from framesmith_bytecode import Instr
    from framesmith_dynamo.admission.costly_callees import CostlyCallees
    from framesmith_dynamo.graph.symbols import ShapePolicy
    from framesmith_frames import FrameInfo


CACHED_OBJECT_CHANGED = register_break(
    "cached-object-changed",
    what="an object created by a cached function is changed",
    why="it is also in the cache, and the function has not been called yet",
    hint="copy it before, or return an immutable object",
)


class EscapedException(Exception):
    """The traced program raises out of the outermost frame, which runs eagerly instead."""

    def __init__(self, raised: TracedRaise) -> None:
        location = location_of(raised)
        super().__init__(f"{raised.value.python_type().__name__} is raised at {location.where if location else ''}")
        self.value = raised.value
        self.user_location = location


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the outermost frame's trace: a value to return, or an instruction that breaks.

    `is_new`: no earlier attempt has found the break.
    """

    value: Value | None = None
    reason: GraphBreak | None = None
    is_new: bool = False


def route(frame: Frame, raised: TracedRaise) -> None:
    """Continue at the handler of the running instruction; the exception leaves the frame if there is none."""
    if isinstance(raised.value, ExceptionValue) and not _raises_again(frame.code.instrs[frame.pc - 1]):
        raised.value.traceback = object()  # with a further entry
    protection = frame.code.protections[frame.pc - 1]
    if protection is None:
        if frame.state.suspended_generators:
            abandoned.unwind(frame, raised.value)
        try:
            raise raised
        finally:
            del raised  # its traceback holds this frame, and all callers
    del frame.stack[protection.depth :]
    if protection.lasti:
        frame.push(frame.constant(frame.pc - 1))
    frame.push(raised.value)
    frame.pc = protection.target
    if frame.state.suspended_generators:
        abandoned.close_abandoned(frame)


def _raises_again(instr: Instr) -> bool:
    """Whether an instruction raises an exception with the traceback that it has."""
    return instr.op == "RERAISE" or (instr.op == "RAISE_VARARGS" and instr.arg == 0)


def run_frame(frame: Frame, error: Value | None = None) -> Value:
    """Run an inlined frame until it returns or yields; raise `error` at its current instruction first, if given."""
    running, suspended = frame.state.running, frame.state.suspended_generators
    frame.outer = running[-1].location() if running else None
    running.append(frame)
    try:
        if error is not None:
            route(frame, TracedRaise(error))
        while not frame.stop:
            try:
                _run_to_stop(frame)
            except TracedRaise as raised:
                route(frame, raised)
        if suspended and not frame.is_suspended:
            abandoned.drop_variables(frame)
    except Exception as failed:
        note_location(failed, frame.location())
        raise
    finally:
        running.pop()
    assert frame.result is not None
    return frame.result


def _run_to_stop(frame: Frame) -> None:
    """Run instructions until the frame stops or one raises."""
    handlers, instrs, suspended = frame.code.handlers, frame.code.instrs, frame.state.suspended_generators
    facts = frame.state.facts
    while not frame.stop:
        facts.step()
        index = frame.pc
        frame.pc = index + 1
        frame.operands = tuple(frame.stack)
        handlers[index](frame, instrs[index])
        if suspended:
            abandoned.close_abandoned(frame)


def run_outermost(frame: Frame, log: SpeculationLog) -> Ending:
    """Run the outermost frame to its end, or to the instruction that an earlier attempt found to break.

    Raises RestartTrace when an instruction breaks, EscapedException when the program raises, GraphBreak for a trace
    that is too long.
    """
    came: list[tuple[int, int]] = []
    frame.state.running.append(frame)
    while not frame.stop:
        if len(came) == log.break_at:
            for condition in () if log.reason is None else log.reason.conditions:
                frame.guard(*condition)
            return Ending(reason=log.reason)
        came.append((frame.pc, frame.state.builder.operations))
        stack = frame.operands = tuple(frame.stack)
        try:
            _step(frame)
        except TracedRaise as raised:
            _route_outermost(frame, raised)
        except GraphBreak as broken:
            if broken.kind is TOO_LONG:  # the code after a graph would be in the same loop
                note_location(broken, frame.location())
                raise
            if _rewind(frame, stack, came, broken):
                log.end_at(len(came) - 1, broken, _error_on_graph_break(frame))
                return Ending(reason=broken, is_new=True)
            _plan_ending(frame, log, came, broken)
        except GuardOnDataDependentSymNode as error:
            _plan_ending(frame, log, came, GraphBreak(DATA_DEPENDENT, f"a decision on unbacked data: {error.cond}"))
        except UsedAcrossCall as error:
            log.follows_calls = True
            raise RestartTrace from error
        except MutationRefused as error:
            kind = EFFECT_BETWEEN if isinstance(error, ChangedAcrossCall) else CACHED_OBJECT_CHANGED
            _plan_ending(frame, log, came, GraphBreak(kind, str(error)))
        except RecursionError as error:
            _plan_ending(
                frame, log, came, GraphBreak(inlining.TOO_DEEP, f"the interpreter's own stack is full: {error}")
            )
    return Ending(value=frame.result)


def _step(frame: Frame) -> None:
    """Run one instruction, whose operands the frame holds, and the generator closes that it causes."""
    frame.state.facts.step()
    index = frame.pc
    frame.pc = index + 1
    frame.code.handlers[index](frame, frame.code.instrs[index])
    if frame.state.suspended_generators:
        abandoned.close_abandoned(frame)
        if frame.stop:
            abandoned.drop_variables(frame)


def _plan_ending(frame: Frame, log: SpeculationLog, came: Sequence[tuple[int, int]], broken: GraphBreak) -> NoReturn:
    """End the next attempt before the last of the instructions run so far, or before the loop that contains it.

    `came` holds each instruction with the number of operations before it.
    """
    note_location(broken, frame.location())
    log.end_at(_end_of(frame, came), broken, _error_on_graph_break(frame))
    raise RestartTrace from broken


def _end_of(frame: Frame, came: Sequence[tuple[int, int]]) -> int:
    """Return how many of the instructions are traced: none of a `for` loop that breaks in its first iteration.

    It runs eagerly from the second iteration on. With the first in a graph, its callees would be compiled twice.
    """
    last = len(came) - 1
    around = loop_instructions(frame.code, came[last][0])
    begun = next((at for at, (index, _) in enumerate(came) if index in around), last)
    head, before = came[begun]
    is_first_round = frame.code.instrs[head].op == "FOR_ITER" and sum(index == head for index, _ in came) == 1
    return begun if is_first_round and frame.state.builder.has_inlined(before, came[last][1]) else last


def _rewind(frame: Frame, stack: Sequence[Value | None], came: Sequence[tuple[int, int]], broken: GraphBreak) -> bool:
    """Return to an instruction of the frame itself that broke before it had any effect; else False.

    `stack` is the stack before it. The trace need not restart then: for instance in a step with `loss.backward()`.
    """
    note_location(broken, frame.location())
    if not broken.before_effects or broken.in_callee or _end_of(frame, came) != len(came) - 1:
        return False
    frame.pc, _ = came[-1]
    frame.stack[:] = stack
    return True


def _error_on_graph_break(frame: Frame) -> bool:
    """Whether the program has declared graph breaks errors by now: `torch._dynamo.error_on_graph_break`."""
    found = torch_names.owner_module(torch_names.ERROR_ON_BREAK)
    if found is None:
        return False
    said = namespaces.load(frame, vars(found), torch_names.ERROR_ON_BREAK.name)
    return said is not None and bool(said.as_constant())


def _route_outermost(frame: Frame, raised: TracedRaise) -> None:
    try:
        route(frame, raised)
    except TracedRaise:
        note_location(raised, frame.location())
        raise EscapedException(raised) from raised


def outermost_frame(info: FrameInfo, log: SpeculationLog, callees: CostlyCallees, policy: ShapePolicy) -> Frame:
    """The frame to trace, its arguments wrapped as they are loaded."""
    load_tables()
    handlers.load()
    code = decoded(info.code)
    state = TraceState(info.code, info.globals, log, callees, run_frame, policy)
    frame = OutermostFrame(state, code, info.globals, {}, {}, None)
    frame.bind(info.arguments, cast(FunctionType, info.function))
    return frame


class LazyVariables(dict[str, Value]):
    """Variables of the outermost frame; an argument is wrapped, and guarded, when it is first read."""

    __slots__ = ("pending", "wrap")

    def __init__(self, pending: dict[str, Any], wrap: Callable[[str, Any], Value]) -> None:
        super().__init__()
        self.pending = pending
        self.wrap = wrap

    def get(self, name: str, default: Any = None) -> Any:
        """The variable's value, or the default when it is unbound."""
        found = super().get(name)
        if found is None and name in self.pending:
            found = self[name] = self.wrap(name, self.pending.pop(name))
        return default if found is None else found

    def pop(self, name: str, default: Any = None) -> Any:
        """Unbind and give a variable."""
        found = self.get(name)
        super().pop(name, None)
        return default if found is None else found

    def __setitem__(self, name: str, value: Value) -> None:
        self.pending.pop(name, None)
        super().__setitem__(name, value)

    def clear(self) -> None:
        """Forget all, also what was never read."""
        self.pending.clear()
        super().clear()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.pending


class OutermostFrame(Frame):
    """The frame being compiled: its arguments and free variables exist, and are found at sources."""

    __slots__ = ("free_cells",)

    def bind(self, arguments: tuple[Any, ...], function: FunctionType) -> None:
        """Take over the arguments, in `co_varnames` order, and the closure of the call."""
        pending = dict(zip(self.code.argument_names, arguments, strict=True))
        self.locals = LazyVariables(pending, lambda name, obj: self.wrap(obj, LocalSource(name)))
        self.free_cells = dict(zip(self.code.bytecode.freevars, function.__closure__ or (), strict=True))
        for name in self.code.bytecode.cellvars:
            contents = self.locals.pop(name) if name in self.locals else None
            cell = self.cells[name] = CellValue(contents, local_name=name)
            self.journal.track_new(cell)

    def unread_arguments(self) -> Collection[str]:
        return self.locals.pending if isinstance(self.locals, LazyVariables) else ()

    def moved_cells(self) -> dict[str, CellValue]:
        return {name: cell for name, cell in self.cells.items() if cell.local_name != name}

    def cell(self, name: str) -> CellValue:
        """The cell of a variable; free variables get theirs on first use."""
        known = self.cells.get(name)
        if known is None:
            known = self.cells[name] = self._free_cell(name, self.free_cells[name])
        return known

    def _free_cell(self, name: str, cell: CellType) -> CellValue:
        index = self.code.bytecode.freevars.index(name)
        source = ItemSource(AttrSource(FunctionSource(), "__closure__"), index)
        met = self.state.by_identity.get(id(cell))
        if met is not None:
            self.guard(source, "DUPLICATE_INPUT", met[2])
            value = cast(CellValue, met[1])
            value.local_name = name
            return value
        value = FoundCellValue(cell, ClosureSource(name), local_name=name)
        self.journal.track_existing(value, cell)
        self.state.by_identity[id(cell)] = (cell, value, source)
        return value
