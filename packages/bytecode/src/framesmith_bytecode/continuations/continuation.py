"""Continuation functions: code that resumes a function at one of its instructions.

Note [How a continuation is called]: a `Continuation` lists its `parameters` in order. The caller pushes a function
made of `code` (its closure: the cells named by `freevars`, in that order), then for each parameter
`("stack", i)` the i-th slot of the value stack (0 is the bottom), `("local", name)` the local, `("contents", name)`
what the cell holds, and calls it with that many positional arguments. Slots that certainly hold NULL are no
parameters. Where a parameter is marked `maybe_missing`, `UNBOUND` stands for a NULL slot or an unbound local. A stack
slot that holds a cell, saved by a comprehension, has a parameter too; it is passed as the cell. The name of a stack
slot's parameter says its kind to the verifier (`slots.carrier_name`, `variable_kind`): `.handled_0`, `.tuple3_1`.

Note [RESUME comes last]: the interpreter serves signals at RESUME, so a KeyboardInterrupt may arise there. The frame
must be complete by then, and the exception must go to the handler of the resume point, or a `with` block would not be
exited. So RESUME follows the instructions that rebuild the frame, in a region of its own; none before it can raise.
They have no line: a debugger that sets `f_lineno` could jump to them, and the arguments are gone by then.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Final, Literal, final

from framesmith_bytecode.analyses.slots import (
    EXCEPTION,
    INDEX,
    ITERATOR,
    LOOPED,
    NO_INDEX,
    NULL,
    OBJECT,
    OFFSET,
    Kind,
    carrier_name,
    cut,
    join_slots,
    push_all,
)
from framesmith_bytecode.analyses.spans import describe
from framesmith_bytecode.analyses.walk import cannot_raise, is_copy_of_top, is_none_test
from framesmith_bytecode.continuations.cached_analyses import Analyses, analysed
from framesmith_bytecode.continuations.own_cells import CellPlan, plan_cells, super_argument, why_no_cells
from framesmith_bytecode.cpython.opcodes import OPCODES
from framesmith_bytecode.model.bytecode import (
    Bytecode,
    Instr,
    Item,
    Label,
    Position,
    Region,
    expect_index,
    expect_names,
)
from framesmith_bytecode.writing.encode import encode

_FUNCTION: Final = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
_HAS_DOCSTRING: Final = 0x4000000  # CO_HAS_DOCSTRING, of 3.13
#: The part of a continuation's qualified name that follows the name of the original function.
_RESUMED: Final = ".<resumed at line "
_CAN_PUSH_RAW: Final = "LOAD_FAST_AND_CLEAR" in OPCODES


@final
class Unbound:
    """The type of `UNBOUND`, the argument for a NULL stack slot or an unbound local."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND: Final = Unbound()


class ContinuationError(ValueError):
    """There is no continuation at this index; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a continuation: the value that the caller passes, and its name inside, which says its kind."""

    kind: Literal["stack", "local", "contents"]
    source: int | str
    name: str
    maybe_missing: bool = False


@dataclass(frozen=True, slots=True)
class Continuation:
    """Code that resumes at item `index` of the function it was made from (see Note [How a continuation is called])."""

    code: CodeType
    bytecode: Bytecode
    index: int
    parameters: tuple[Parameter, ...]
    freevars: tuple[str, ...]


def why_no_continuation(function: Bytecode | Analyses, index: int, *, own_cells: bool = False) -> str | None:
    """The reason why `make_continuation` raises, or None."""
    return _why_not(analysed(function, "why_no_continuation"), index, own_cells)


def _why_not(known: Analyses, index: int, own_cells: bool) -> str | None:
    bytecode = known.bytecode
    expect_index(index, bytecode.instructions, "a continuation")
    if not 0 <= index < len(bytecode.instructions):
        count = len(bytecode.instructions)
        return f"index {index} is outside the {count} items; a continuation starts at one of 0 to {count - 1}"
    if bytecode.is_generator:
        return "generators and coroutines keep their own frame; they cannot be resumed by a plain call"
    if bytecode.flags & _FUNCTION != _FUNCTION:
        return "only functions can be resumed; class bodies and modules run in a namespace"
    if known.stack_states.before[index] is None:
        return f"{describe(bytecode.instructions, index)}: no path leads here"
    if not bytecode.cellvars and not bytecode.freevars:
        return None
    return why_no_cells(known, index, known.kept_items(index), own_cells)


@dataclass(slots=True)
class _Plan:
    known: Analyses
    index: int
    kinds: list[Kind]
    parameters: list[Parameter]
    kept: set[int]
    cells: CellPlan


def resume_index(items: Sequence[Item], index: int) -> int:
    """The item at which a continuation at item `index` starts.

    A test of a copy of the top for None also narrows the top itself, so the COPY before it is repeated.
    """
    return index - 1 if index and is_none_test(items[index]) and is_copy_of_top(items[index - 1]) else index


def _received(kind: Kind) -> Kind:
    """The kind of a slot as the caller passes it: an iterator is one that iter() has made, and has no index."""
    if kind & (INDEX | NO_INDEX):
        return NULL
    return ITERATOR if kind == LOOPED else kind & ~LOOPED | OBJECT if kind & LOOPED else kind


def _kinds_at(known: Analyses, index: int, null_slots: Collection[int] | None) -> list[Kind]:
    kinds = [_received(kind) for kind in known.stack_states.kinds(index)]
    if null_slots is None:
        return kinds
    given: object = null_slots
    if not isinstance(given, Collection) or not all(isinstance(slot, int) for slot in given):
        raise TypeError(f"null_slots must be stack positions (ints; 0 is the bottom), not {null_slots!r:.80}")
    if any(not 0 <= slot < len(kinds) for slot in null_slots):
        raise ContinuationError(
            f"{known.bytecode.name}: null slots {sorted(null_slots)} of a stack of depth {len(kinds)}"
        )
    paired = known.stack_states.kinds(index)
    return [
        NULL if slot in null_slots or paired[slot] & (INDEX | NO_INDEX) else kind & ~NULL or OBJECT
        for slot, kind in enumerate(kinds)
    ]


def _known_names(bytecode: Bytecode, bound: Collection[str]) -> Collection[str]:
    """`bound`, if all are variables: a misspelt local would silently start unbound."""
    known = [*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars]
    unknown = sorted({*expect_names(bound, "bound", "a collection of variable names")}.difference(known))
    if unknown:
        raise ContinuationError(f"{bytecode.name}: bound names {unknown}, which are no variables; known are {known}")
    return bound


def _fresh(base: str, taken: Collection[str]) -> str:
    name = base
    while name in taken:
        name += "_"
    return name


def _stack_parameters(kinds: list[Kind], taken: Collection[str]) -> Iterator[Parameter]:
    used = set(taken)
    for slot, kind in enumerate(kinds):
        if kind != NULL:
            name = carrier_name(kind & ~NULL, slot, used)
            used.add(name)
            yield Parameter("stack", slot, name, bool(kind & NULL))


def _local_parameters(
    known: Analyses, index: int, bound: Collection[str] | None, taken: Collection[str], all_locals: bool
) -> Iterator[Parameter]:
    bytecode, displaced = known.bytecode, known.displaced_cells(index)
    live = bytecode.varnames if all_locals or known.observes_locals else known.live.before(index)
    missing = known.locals_bound.before(index) if bound is None else set()
    cells = {*bytecode.cellvars, *bytecode.freevars}
    for name in [*bytecode.varnames, *sorted(displaced.difference(bytecode.varnames))]:
        if bound is not None and name not in bound:
            continue
        if name in displaced:
            yield Parameter("local", name, _fresh(f"__slot_{name}", taken), name in missing)
        elif name in live and name not in cells:
            yield Parameter("local", name, name, name in missing)


def _parameters(
    known: Analyses, index: int, kinds: list[Kind], bound: Collection[str] | None, cells: CellPlan, all_locals: bool
) -> list[Parameter]:
    bytecode = known.bytecode
    taken = {*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars}
    out: list[Parameter] = []
    first = super_argument(bytecode)
    if first is not None and first in bytecode.cellvars:
        out.append(Parameter("contents", first, first if first in cells.own else _fresh("__super_argument", taken)))
    elif first is not None and (bound is None or first in bound):
        out.append(Parameter("local", first, first, bound is None and first in known.locals_bound.before(index)))
    out += _stack_parameters(kinds, taken)
    out += (p for p in _local_parameters(known, index, bound, taken, all_locals) if p.source != first)
    return out


class _Entry:
    """Emits the instructions before the resume point, which restore cells, locals and the stack."""

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan
        self.position: Position | None = None
        self.out: list[Item] = []
        self.temporaries: list[str] = []

    def emit(self, op: str, arg: object = None) -> None:
        self.out.append(Instr(op, arg, self.position))

    def jump_unless_missing(self, name: str, otherwise: Label) -> None:
        """Jump to `otherwise` unless the parameter is UNBOUND."""
        self.emit("LOAD_FAST", name)
        self.emit("LOAD_CONST", UNBOUND)
        self.emit("IS_OP", False)
        self.emit("POP_JUMP_IF_FALSE", otherwise)

    def bring_cells(self) -> None:
        for cell, passed in self.plan.cells.brought.items():
            self.emit("LOAD_CLOSURE", passed)
            self.emit("STORE_FAST", cell)

    def fill_slots(self) -> None:
        """Store comprehensions' variables into slots of cells that are on the stack now."""
        displaced = self.plan.known.displaced_cells(self.plan.index)
        passed = {p.source: p for p in self.plan.parameters if p.kind == "local"}
        for cell in self.plan.cells.own:
            if cell in displaced:
                self.fill_slot(cell, passed.get(cell))

    def fill_slot(self, cell: str, parameter: Parameter | None) -> None:
        if parameter is None:
            unused = _fresh("__no_cell", [*self.plan.known.bytecode.varnames, *self.temporaries])
            self.temporaries.append(unused)
            self.emit("LOAD_FAST_AND_CLEAR", cell)
            self.emit("STORE_FAST", unused)
            self.emit("DELETE_FAST", unused)
            return
        self.emit("LOAD_FAST_AND_CLEAR", cell)
        if not parameter.maybe_missing:
            self.emit("LOAD_FAST", parameter.name)
            self.emit("STORE_FAST", cell)
            self.emit("STORE_FAST", parameter.name)
        else:
            present, done = Label(), Label()
            self.jump_unless_missing(parameter.name, present)
            self.emit("JUMP", done)
            self.out.append(present)
            self.emit("LOAD_FAST", parameter.name)
            self.emit("STORE_FAST", cell)
            self.out.append(done)
            self.emit("STORE_FAST", parameter.name)
        self.emit("DELETE_FAST", parameter.name)

    def unbind_missing(self) -> None:
        for parameter in self.plan.parameters:
            stays = parameter.name == parameter.source or (parameter.kind == "stack" and _CAN_PUSH_RAW)
            if parameter.maybe_missing and stays:
                bound = Label()
                self.jump_unless_missing(parameter.name, bound)
                self.emit("DELETE_FAST", parameter.name)
                self.out.append(bound)

    def push_stack(self) -> None:
        by_slot = {parameter.source: parameter for parameter in self.plan.parameters if parameter.kind == "stack"}
        for slot, kind in enumerate(self.plan.kinds):
            if kind == NULL:
                self.emit("PUSH_NULL")
                continue
            parameter = by_slot[slot]
            if parameter.maybe_missing:
                self.push_unless_missing(parameter.name)
            else:
                self.push(parameter.name)

    def push(self, name: str) -> None:
        """Unbind the parameters of stack slots: the frame must not keep their values alive."""
        self.emit("LOAD_FAST", name)
        self.emit("DELETE_FAST", name)

    def push_unless_missing(self, name: str) -> None:
        """Without a branch where possible: each adds a state of all slots below to the analysis."""
        if _CAN_PUSH_RAW:
            self.emit("LOAD_FAST_AND_CLEAR", name)
            return
        present, done = Label(), Label()
        self.jump_unless_missing(name, present)
        self.emit("PUSH_NULL")
        self.emit("JUMP", done)
        self.out.append(present)
        self.push(name)
        self.out.append(done)


def _entry(plan: _Plan, start: Label, resume: Label, position: Position | None) -> _Entry:
    entry = _Entry(plan)
    entry.bring_cells()
    entry.unbind_missing()
    entry.fill_slots()
    entry.push_stack()
    entry.position = position
    entry.out.append(start)
    entry.emit("NOP")  # CPython 3.11 looks for the handler of a trace function's exception one instruction before
    entry.emit("RESUME", 0)
    entry.emit("JUMP", resume)
    return entry


def _may_raise(plan: _Plan, items: range) -> bool:
    """Whether any of the kept items among these can raise."""
    found = ((plan.known.bytecode.instructions[index], index) for index in items if index in plan.kept)
    labels = plan.known.stack_states.labels
    return any(isinstance(item, Instr) and not cannot_raise(item, index, labels) for item, index in found)


def _region_of_resume(plan: _Plan) -> tuple[int, Region] | None:
    """The region of the first instruction, and its key.

    None if the state there differs from that of the region's other exceptions: the instruction cannot raise. This
    happens while a comprehension saves and restores the slot of a cell.
    """
    items, states = plan.known.bytecode.instructions, plan.known.stack_states
    first = next(i for i in range(plan.index, len(items)) if isinstance(items[i], Instr))
    key = next((span.key for span in states.spans if span.start <= first < span.end), None)
    if key is None:
        return None
    region = plan.known.bytecode.regions[key]
    handler, floor = states.labels[region.handler], states.regions[key]
    entered = [OFFSET, EXCEPTION] if region.lasti else [EXCEPTION]
    found = push_all(cut(states.non_object_slots[first], floor), floor, entered)
    known = states.non_object_slots[handler]
    fits = states.displaced_cells_at(first) <= states.displaced_cells_at(handler) and join_slots(known, found) is known
    return (key, region) if fits else None


def _body(plan: _Plan, start: Label, resume: Label) -> tuple[list[Item], list[Region]]:
    """The reachable instructions, with regions limited to them (see Note [RESUME comes last])."""
    bytecode, kept, states = plan.known.bytecode, plan.kept, plan.known.stack_states
    end = Label("resumed")
    out: list[Item] = [end]
    for index, item in enumerate(bytecode.instructions):
        if index == plan.index:
            out.append(resume)
        if isinstance(item, Label) or index in kept:
            out.append(item)
    around = _region_of_resume(plan)
    live = {bytecode.regions[span.key].handler for span in states.spans if _may_raise(plan, range(*span[:2]))}
    if around is not None:
        live.add(around[1].handler)
    regions = [
        Region(r.start, r.end, r.handler, states.regions.get(key, r.depth), r.lasti)
        for key, r in enumerate(bytecode.regions)
        if r.handler in live
    ]
    if around is not None:
        key, r = around
        regions.append(Region(start, end, r.handler, states.regions[key], r.lasti))
    return out, regions


def _assemble(plan: _Plan, name: str | None) -> Continuation:
    bytecode = plan.known.bytecode
    position = next((item.position for item in bytecode.instructions[plan.index :] if isinstance(item, Instr)), None)
    start, resume = Label("start"), Label("resume")
    body, regions = _body(plan, start, resume)
    entry = _entry(plan, start, resume, position)
    names = [parameter.name for parameter in plan.parameters]
    others = {*names, *bytecode.cellvars, *bytecode.freevars} - plan.known.displaced_cells(plan.index)
    locals_left = [var for var in bytecode.varnames if var not in others]
    line = position[0] if position is not None and position[0] is not None else bytecode.firstlineno
    result = Bytecode(
        name or bytecode.name,
        entry.out + body,
        regions,
        name or f"{bytecode.qualname or bytecode.name}{_RESUMED}{line}>",
        bytecode.filename,
        bytecode.firstlineno,
        argcount=len(names),
        flags=bytecode.flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | _HAS_DOCSTRING),
        varnames=names + locals_left + entry.temporaries,
        cellvars=list(plan.cells.own),
        freevars=plan.cells.freevars,
    )
    return Continuation(encode(result), result, plan.index, tuple(plan.parameters), plan.cells.free)


def is_continuation(code: CodeType) -> bool:
    """Whether this is the code of a continuation that was given no other name."""
    return _RESUMED in code.co_qualname


def resumed_function(name: str) -> str:
    """Return the qualified name of the function that a continuation of this name resumes; another name unchanged."""
    return name.partition(_RESUMED)[0]


def make_continuation(
    function: Bytecode | Analyses,
    index: int,
    *,
    null_slots: Collection[int] | None = None,
    bound: Collection[str] | None = None,
    name: str | None = None,
    own_cells: bool = False,
    all_locals: bool = False,
) -> Continuation:
    """Code that resumes the function at item `index` (an instruction or a label).

    `null_slots`: stack positions (0 is the bottom) that hold NULL, all others hold values; None computes it, with
    `maybe_missing` parameters where it depends on the run. `bound`: the locals that are bound now (others start
    unbound); None passes every live local, `maybe_missing` where some path leaves it unbound. Live locals become
    parameters; all of them if the rest may call locals() or similar functions, or with `all_locals`: then the caller's
    frame needs to keep none, and their values die when they do in the function. Cells and free variables in use become
    free variables.

    With `own_cells` the function's own cells arrive the same way, and some become cells of the continuation: those that
    the rest may find empty, since only their owner raises UnboundLocalError, and those whose slot a comprehension uses
    (CPython 3.12 and later; meanwhile the local of that name is the comprehension's variable, and the cell is on the
    stack). Without `own_cells` such indices are refused.

    Raises `ContinuationError` where `why_no_continuation` returns a reason.
    """
    known = analysed(function, "make_continuation")
    problem = _why_not(known, index, own_cells)
    if problem is not None:
        raise ContinuationError(f"{known.bytecode.name}: {problem}")
    if bound is not None:
        bound = _known_names(known.bytecode, bound)
    index = resume_index(known.bytecode.instructions, index)
    kinds = _kinds_at(known, index, null_slots)
    kept = known.kept_items(index)
    cells = plan_cells(known, index, kept, own_cells)
    parameters = _parameters(known, index, kinds, bound, cells, all_locals)
    return _assemble(_Plan(known, index, kinds, parameters, kept, cells), name)
