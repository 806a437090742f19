"""Continuation functions: code that resumes a function at one of its instructions.

Note [How a continuation is called]: a `Continuation` lists its `parameters` in order. The caller pushes a function
made of `code` (its closure: the cells named by `freevars`, in that order), then for each parameter
`("stack", i)` the i-th slot of the value stack (0 is the bottom), `("local", name)` the local, `("contents", name)`
what the cell holds, and calls it with that many positional arguments. Slots that certainly hold NULL are no
parameters. Where a parameter is marked `maybe_missing`, `UNBOUND` stands for a NULL slot or an unbound local.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import CodeType
from typing import Final, Literal, final

from framesmith_bytecode.bound import possibly_unbound_before
from framesmith_bytecode.cfg import control_flow, reachable
from framesmith_bytecode.encode import encode
from framesmith_bytecode.liveness import liveness, observes_locals
from framesmith_bytecode.model import FREE_MARK, Bytecode, Instr, Item, Label, Position, Region, plain_name
from framesmith_bytecode.nulls import Kinds, Slot, stack_kinds
from framesmith_bytecode.ops import OPS
from framesmith_bytecode.raw_cells import raw_cells
from framesmith_bytecode.stack import Depths, describe, stack_depths

_VARARGS, _VARKEYWORDS, _GENERATORS, _FUNCTION = 0x04, 0x08, 0x20 | 0x80 | 0x200, 0x03
_HAS_DOCSTRING: Final = 0x4000000


@final
class Unbound:
    """The type of `UNBOUND`, which stands for a NULL stack slot or an unbound local among arguments."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND: Final = Unbound()


class ContinuationError(ValueError):
    """There is no continuation at this place; the message says why."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a continuation: what the caller passes, and the name it has inside."""

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


def why_no_continuation(bytecode: Bytecode, index: int, *, own_cells: bool = False) -> str | None:
    """The reason why `make_continuation` refuses, or None if it does not."""
    if not 0 <= index < len(bytecode.instructions):
        return f"index {index} is outside the {len(bytecode.instructions)} items"
    if bytecode.flags & _GENERATORS:
        return "generators and coroutines keep their own frame; they cannot be resumed by a plain call"
    if bytecode.flags & _FUNCTION != _FUNCTION:
        return "only functions can be resumed; class bodies and modules run in a namespace"
    return _why_no_super(bytecode, own_cells) or _why_no_cells(bytecode, index)


def _super_argument(bytecode: Bytecode) -> str | None:
    """The parameter that `super()` without arguments reads from the frame, if the function may call it."""
    if "__class__" not in bytecode.freevars or not bytecode.argcount:
        return None
    return bytecode.varnames[0]


def _why_no_super(bytecode: Bytecode, own_cells: bool) -> str | None:
    first = _super_argument(bytecode)
    if own_cells or first is None or first not in bytecode.cellvars:
        return None
    written = any(
        isinstance(item, Instr) and item.op in ("STORE_DEREF", "DELETE_DEREF") and item.arg == first
        for item in bytecode.instructions
    )
    return f"super() may be called and its argument {first!r} is a cell that is assigned to" if written else None


def _why_no_cells(bytecode: Bytecode, index: int) -> str | None:
    cells = {*bytecode.cellvars, *bytecode.freevars}
    items = bytecode.instructions
    if not any(isinstance(item, Instr) and item.op == "LOAD_FAST_AND_CLEAR" and item.arg in cells for item in items):
        return None
    raw = raw_cells(bytecode, stack_depths(bytecode))[index]
    if not raw:
        return None
    return f"a comprehension's variable stands where the cell of {min(raw)!r} belongs"


@dataclass(slots=True)
class _Plan:
    bytecode: Bytecode
    index: int
    kinds: Kinds
    parameters: list[Parameter]
    kept: set[int]
    depths: Depths
    own_cells: bool


def _kinds_at(bytecode: Bytecode, depths: Depths, index: int, null_slots: Collection[int] | None) -> Kinds:
    depth = depths.before[index]
    if depth is None:
        raise ContinuationError(f"{bytecode.name}: {describe(bytecode.instructions, index)}: no path leads here")
    if null_slots is not None:
        if any(not 0 <= slot < depth for slot in null_slots):
            raise ContinuationError(f"{bytecode.name}: null slots {sorted(null_slots)} of a stack of depth {depth}")
        return tuple(Slot.NULL if i in null_slots else Slot.VALUE for i in range(depth))
    kinds = stack_kinds(bytecode, depths)[index]
    assert kinds is not None
    return kinds


def _fresh(base: str, taken: Collection[str]) -> str:
    name = base
    while name in taken:
        name = "_" + name
    return name


def _parameters(
    bytecode: Bytecode,
    index: int,
    kinds: Kinds,
    depths: Depths,
    bound: Collection[str] | None,
    own_cells: bool,
) -> list[Parameter]:
    taken = {*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars}
    cells = {*bytecode.cellvars, *bytecode.freevars}
    live = liveness(bytecode).before(index)
    if observes_locals(bytecode.instructions):
        live = frozenset(bytecode.varnames)
    missing = possibly_unbound_before(bytecode, depths, index) if bound is None else set()
    first = _super_argument(bytecode)
    out: list[Parameter] = []
    if first in cells and first is not None:
        out.append(Parameter("contents", first, first if own_cells else _fresh("__super_argument", taken)))
    elif first is not None and (bound is None or first in bound):
        out.append(Parameter("local", first, first, first in missing))
    for slot, kind in enumerate(kinds):
        if kind is not Slot.NULL:
            out.append(Parameter("stack", slot, _fresh(f"__stack_{slot}", taken), kind is Slot.MAYBE_NULL))
    for name in bytecode.varnames:
        wanted = name in live and name not in cells and (bound is None or name in bound)
        if wanted and first != name:
            out.append(Parameter("local", name, name, name in missing))
    return out


def _kept_items(bytecode: Bytecode, index: int) -> set[int]:
    """Items that can run after `index`, starting there."""
    blocks = control_flow(bytecode)
    home = next(number for number, block in enumerate(blocks) if block.start <= index < block.end)
    wanted = reachable(blocks, blocks[home].successors)
    kept = {i for number in wanted for i in range(blocks[number].start, blocks[number].end)}
    return kept | set(range(index, blocks[home].end))


def _entry(plan: _Plan, resume: Label, position: Position | None) -> list[Item]:
    """Unbinds locals that were unbound, puts the stack back and goes to the resume point."""
    out: list[Item] = [Instr("RESUME", 0, position)]

    def emit(op: str, arg: object = None) -> None:
        out.append(Instr(op, arg, position))

    def test_missing(name: str, otherwise: Label) -> None:
        emit("LOAD_FAST", name)
        emit("LOAD_CONST", UNBOUND)
        emit("IS_OP", False)
        emit("POP_JUMP_IF_FALSE", otherwise)

    for cell, passed in _own_cells(plan).items():
        emit("LOAD_CLOSURE", passed)
        emit("STORE_FAST", cell)
    for parameter in plan.parameters:
        if parameter.kind == "local" and parameter.maybe_missing:
            bound = Label()
            test_missing(parameter.name, bound)
            emit("DELETE_FAST", parameter.name)
            out.append(bound)
    by_slot = {parameter.source: parameter for parameter in plan.parameters if parameter.kind == "stack"}
    for slot, kind in enumerate(plan.kinds):
        if kind is Slot.NULL:
            emit("PUSH_NULL")
            continue
        parameter = by_slot[slot]
        done = Label()
        if parameter.maybe_missing:
            present = Label()
            test_missing(parameter.name, present)
            emit("PUSH_NULL")
            emit("JUMP", done)
            out.append(present)
        emit("LOAD_FAST", parameter.name)
        emit("DELETE_FAST", parameter.name)
        out.append(done)
    emit("JUMP", resume)
    return out


def _body(plan: _Plan, resume: Label) -> tuple[list[Item], list[Region]]:
    """The instructions that can still run, with regions cut down to them."""
    bytecode, kept = plan.bytecode, plan.kept
    out: list[Item] = []
    for index, item in enumerate(bytecode.instructions):
        if index == plan.index:
            out.append(resume)
        if isinstance(item, Label) or index in kept:
            out.append(item)
    live = {bytecode.regions[span.key].handler for span in plan.depths.spans if not kept.isdisjoint(range(*span[:2]))}
    regions = [
        Region(r.start, r.end, r.handler, plan.depths.regions.get(key, r.depth), r.lasti)
        for key, r in enumerate(bytecode.regions)
        if r.handler in live
    ]
    return out, regions


def _variables(items: Collection[Item]) -> set[str]:
    return {item.arg for item in items if isinstance(item, Instr) and OPS[item.op].operand in ("local", "deref")}


def _used_cells(plan: _Plan) -> list[str]:
    used = _variables([plan.bytecode.instructions[i] for i in plan.kept])
    cells = [*plan.bytecode.cellvars, *plan.bytecode.freevars]
    return [cell for cell in cells if cell in used or plain_name(cell) == "__class__"]


def _own_cells(plan: _Plan) -> dict[str, str]:
    """Cells that stay cells of the continuation, and the free variables that bring them."""
    if not plan.own_cells:
        return {}
    free = set(plan.bytecode.freevars)
    used = _used_cells(plan)
    return {c: c + FREE_MARK for c in plan.bytecode.cellvars if c in used and c + FREE_MARK not in free}


def _assemble(plan: _Plan, name: str | None) -> Continuation:
    bytecode = plan.bytecode
    position = next((item.position for item in bytecode.instructions[plan.index :] if isinstance(item, Instr)), None)
    resume = Label("resume")
    body, regions = _body(plan, resume)
    free = _used_cells(plan)
    own = _own_cells(plan)
    names = [parameter.name for parameter in plan.parameters]
    cells = {*bytecode.cellvars, *bytecode.freevars}
    locals_left = [var for var in bytecode.varnames if var not in names and var not in cells]
    line = position[0] if position is not None and position[0] is not None else bytecode.firstlineno
    result = Bytecode(
        name or bytecode.name,
        _entry(plan, resume, position) + body,
        regions,
        name or f"{bytecode.qualname or bytecode.name}.<resumed at line {line}>",
        bytecode.filename,
        bytecode.firstlineno,
        argcount=len(names),
        flags=bytecode.flags & ~(_VARARGS | _VARKEYWORDS | _HAS_DOCSTRING),
        varnames=names + locals_left,
        cellvars=list(own),
        freevars=[own.get(cell, cell) for cell in free],
    )
    return Continuation(encode(result), result, plan.index, tuple(plan.parameters), tuple(free))


def make_continuation(
    bytecode: Bytecode,
    index: int,
    *,
    null_slots: Collection[int] | None = None,
    bound: Collection[str] | None = None,
    name: str | None = None,
    own_cells: bool = False,
) -> Continuation:
    """Code that does what the function does from item `index` (an instruction or a label) on.

    `null_slots`: stack positions (0 is the bottom) that hold NULL, all others hold values; None works it out, with
    `maybe_missing` parameters where it depends on the run. `bound`: the locals that are bound now (others start
    unbound); None passes every live local, `maybe_missing` where some path leaves it unbound. Only locals that are
    still needed become parameters, all of them if the rest may call locals() or its like. Cells and free variables
    that are still used become free variables. With `own_cells` the function's own cells arrive the same way but are
    cells of the continuation too, so that reading an empty one raises UnboundLocalError and not NameError.

    Raises `ContinuationError` for generators, for code that is not a function's, and for unreachable places.
    """
    problem = why_no_continuation(bytecode, index, own_cells=own_cells)
    if problem is not None:
        raise ContinuationError(f"{bytecode.name}: {problem}")
    depths = stack_depths(bytecode)
    kinds = _kinds_at(bytecode, depths, index, null_slots)
    kept = _kept_items(bytecode, index)
    parameters = _parameters(bytecode, index, kinds, depths, bound, own_cells)
    return _assemble(_Plan(bytecode, index, kinds, parameters, kept, depths, own_cells), name)
