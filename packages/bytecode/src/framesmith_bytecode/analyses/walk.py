"""Abstract interpretation of the value stack over all paths: `stack_states`.

It computes the depth of the stack and the kinds of slots that are not objects. Without it `encode` would be unsafe:
CPython trusts its compiler and reads invalid memory if a slot holds another kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from types import CodeType
from typing import Final, TypeAlias

from framesmith_bytecode.analyses.header import check_types
from framesmith_bytecode.analyses.slot_rules import (
    CANNOT_RAISE,
    KEEPS,
    ORDINARY,
    QUICK,
    TEXT_OPS,
    USES_STRINGS,
    SlotError,
    apply_rule,
    demand,
)
from framesmith_bytecode.analyses.slots import (
    ANYTHING,
    CELL,
    EMPTY,
    EXCEPTION,
    NONE,
    NULL,
    OBJECT,
    OFFSET,
    REACHED_ANNOTATIONS,
    SET,
    TEXT,
    TEXTS,
    VALUE,
    Kind,
    NonObjectSlots,
    constant_kind,
    cut,
    join_slots,
    numbered,
    push,
    push_all,
    slots,
    variable_kind,
)
from framesmith_bytecode.analyses.spans import BytecodeError, describe, label_indices, region_spans
from framesmith_bytecode.analyses.stack import NOWHERE, StackStates
from framesmith_bytecode.cpython.running import TABLE
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Item, Label, Region, expect_bytecode, plain_name
from framesmith_bytecode.model.ops import OPS, pops, pushes, required_depth

# Ordinary operations that go on to the next instruction: name -> (slots popped, net effect).
_STRAIGHT: Final[Mapping[str, tuple[int, int]]] = {
    name: (pops(name, None), pushes(name, None) - pops(name, None))
    for name, row in OPS.items()
    if (name in ORDINARY or name == "POP_TOP")
    and row.flow == "next"
    and row.operand not in ("local", "deref", "const")
    and name not in ("RETURN_GENERATOR", "YIELD_VALUE", "RESUME", "LOAD_LOCALS", "IMPORT_STAR", "ASYNC_GEN_WRAP")
    and isinstance(row.pops, int)
    and isinstance(row.pushes, int)
}
_LOADS: Final = dict.fromkeys(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF"), (0, 1))
_STORES: Final = dict.fromkeys(("STORE_FAST", "STORE_DEREF"), (1, -1))
_NAMED_LOADS: Final = frozenset(("LOAD_NAME", "LOAD_DEREF"))
# Without variables of a special kind and without cells outside their slots, these are ordinary too.
_STRAIGHT_VARIABLES: Final = {**_STRAIGHT, **_LOADS, **_STORES, "DELETE_FAST": (0, 0), "DELETE_DEREF": (0, 0)}
_SLOT_OPS: Final = frozenset(name for name, row in OPS.items() if row.operand == "local") | {"MAKE_CELL"}
_TRACKED: Final = frozenset((tuple, CodeType, *((type(iter),) if TABLE.iterator_slots == 2 else ())))
_TRACKED_WITH_STRINGS: Final = _TRACKED | {str, type(None)}
# A comprehension saves and restores a cell's slot, outside of the region that cleans up, with these alone.
_COMPREHENSION_MOVES: Final = frozenset(
    ("LOAD_FAST_AND_CLEAR", "MAKE_CELL", "SWAP", "COPY", "STORE_FAST", "POP_TOP", "NOP", "LOAD_CONST", "PUSH_NULL")
)
_RESUME_OF_GENERATOR: Final = 4  # before it is one
_CHANGES_BELOW: Final = frozenset(("LIST_APPEND", "LIST_EXTEND"))


class _NeedsStringKinds(Exception):
    """An operation assumes that a constant is a string: kinds of strings must be tracked too."""


# Depth, other slots, cell variables whose slot may hold another object than their cell.
_State: TypeAlias = tuple[int, NonObjectSlots, frozenset[str]]


class _Walk:
    def __init__(self, bytecode: Bytecode, track_strings: bool) -> None:
        self.bytecode = bytecode
        self.items = bytecode.instructions
        self.labels = label_indices(bytecode)
        self.spans = region_spans(bytecode, self.labels)
        self.before: list[int | None] = [None] * len(self.items)
        self.non_object_slots: list[NonObjectSlots] = [None] * len(self.items)
        self.states: dict[int, _State] = {}
        self.deepest = 0
        self.pending: list[tuple[int, _State]] = [(0, (0, None, NOWHERE))]
        self.regions: dict[int, int] = {}
        self.raised: dict[int, tuple[NonObjectSlots, frozenset[str]]] = {}
        self.cannot_raise_sites: list[tuple[int, int, int, NonObjectSlots]] = []
        self.span_at: dict[int, int] = {}
        for span in self.spans:
            for index in range(span.start, span.end):
                self.span_at[index] = span.key
        variables = (*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars)
        self.special_kinds = {name: variable_kind(plain_name(name)) for name in variables if name[:1] == "."}
        self.cells = frozenset((*bytecode.cellvars, *bytecode.freevars))
        moved = bool(self.cells) and self.moves_cells()
        self.straight = _STRAIGHT if self.special_kinds or moved else _STRAIGHT_VARIABLES
        if REACHED_ANNOTATIONS in bytecode.names or REACHED_ANNOTATIONS in self.cells:
            self.straight = {name: effect for name, effect in self.straight.items() if name not in _NAMED_LOADS}
        self.displaced_cells = [NOWHERE] * len(self.items) if moved else []
        self.constants = _TRACKED_WITH_STRINGS if track_strings else _TRACKED

    def moves_cells(self) -> bool:
        """Whether an instruction uses the slot of a cell variable itself."""
        return any(item.__class__ is Instr and item[0] in _SLOT_OPS and item[1] in self.cells for item in self.items)

    # ---- problems ----

    def fail(self, index: int, problem: str) -> BytecodeError:
        return BytecodeError(f"{self.bytecode.name}: {describe(self.items, index)}: {problem}")

    def target(self, index: int, label: Label) -> int:
        try:
            return self.labels[label]
        except KeyError:
            raise self.fail(index, "its label is not in the instructions") from None

    @cached_property
    def generator_start(self) -> int | None:
        """The item that makes the generator: the first instruction, or since 3.15 that after iter() of its iterable."""
        start: list[tuple[int, Instr]] = []
        for index, item in enumerate(self.items):
            if isinstance(item, Instr):
                start.append((index, item))
                if item.op == "RETURN_GENERATOR" or len(start) == 4:
                    break
        ops = [item.op for _, item in start]
        if not ops or ops[-1] != "RETURN_GENERATOR":
            return None
        iterates = ops[:2] == ["RESUME", "LOAD_FAST"] and ops[2:3] in (["GET_ITER"], ["GET_AITER"])
        iterates = iterates and TABLE.generators_iterate and start[0][1].arg == _RESUME_OF_GENERATOR
        return start[-1][0] if len(ops) == 1 or iterates else None

    @cached_property
    def any_depth(self) -> frozenset[int]:
        """Regions with the last handler of a generator expression of 3.15, which drops its iterator before it returns.

        The handler takes only what the exception pushes: it raises it again, a StopIteration as a RuntimeError.
        """
        if not TABLE.generators_iterate or not self.bytecode.is_generator:
            return frozenset()
        wanted = [("CALL_INTRINSIC_1", "STOPITERATION_ERROR"), ("RERAISE", 1)]
        found = set()
        for span in self.spans:
            handler = self.labels[self.bytecode.regions[span.key].handler]
            ops = ((item.op, item.arg) for item in self.items[handler:] if isinstance(item, Instr))
            if list(islice(ops, 2)) == wanted:
                found.add(span.key)
        return frozenset(found)

    def check_start(self) -> None:
        """RETURN_GENERATOR must be the first instruction of generators, and of them alone."""
        generator = self.bytecode.is_generator
        if generator != (self.generator_start is not None):
            raise BytecodeError(
                f"{self.bytecode.name}: flags {self.bytecode.flags:#x} say {'' if generator else 'no '}generator or "
                f"coroutine, the instructions {'do not ' if generator else ''}start with RETURN_GENERATOR"
            )

    def check_context(self, index: int, item: Instr, depth: int, others: NonObjectSlots) -> None:
        """Check operations that are sound only in some functions, or after certain others."""
        op, arg, flags = item.op, item.arg, self.bytecode.flags
        if op == "RETURN_GENERATOR":
            if index in self.span_at or index != self.generator_start:
                raise self.fail(index, "makes the generator, and so must be the first instruction, outside all regions")
        elif op == "YIELD_VALUE":
            if not self.bytecode.is_generator:
                raise self.fail(index, "yields in a function that is no generator")
            if TABLE.yield_index == 0 and arg and (arg != 1 or not self.only_after(index, "SEND")):
                raise self.fail(index, "says that it yields for another generator, and is not only after a SEND")
        elif op == "RESUME":
            place = 0 if arg is None else arg & TABLE.resume_mask
            if place == _RESUME_OF_GENERATOR:
                if self.generator_start is None or any(isinstance(item, Instr) for item in self.items[:index]):
                    raise self.fail(index, "begins a generator expression, and is not its first instruction")
            elif place >= 2:
                self.check_resume(index, depth, others)
        elif op == "ASYNC_GEN_WRAP":
            if not flags & inspect.CO_ASYNC_GENERATOR:
                raise self.fail(index, "wraps a value in a function that is no asynchronous generator")
        elif flags & inspect.CO_OPTIMIZED:  # LOAD_LOCALS, IMPORT_STAR
            raise self.fail(index, "needs a local namespace; this function keeps its variables in slots")

    def only_after(self, index: int, *ops: str) -> bool:
        """Whether these operations precede `index`, without a jump target between them."""
        for op in reversed(ops):
            index -= 1
            while index >= 0 and isinstance(self.items[index], Label):
                if self.items[index] in self.jump_targets:
                    return False
                index -= 1
            item = self.items[index] if index >= 0 else None
            if not isinstance(item, Instr) or item.op != op:
                return False
        return True

    @cached_property
    def jump_targets(self) -> frozenset[Label]:
        """Labels that are jump targets."""
        operands = (item.arg for item in self.items if isinstance(item, Instr))
        return frozenset(operand for operand in operands if isinstance(operand, Label))

    def check_resume(self, index: int, depth: int, others: NonObjectSlots) -> None:
        """While a generator awaits another, the interpreter expects the latter under the yielded value."""
        if not self.only_after(index, "SEND", "YIELD_VALUE"):
            raise self.fail(index, "resumes a wait for another generator, and is not only after SEND, YIELD_VALUE")
        receiver = depth - 1 - TABLE.iterator_slots
        if receiver < 0 or slots(others, receiver, depth - 1)[0] & NULL:
            raise self.fail(index, "resumes a wait for another generator, and there is none on the stack")

    # ---- the walk ----

    def send(self, index: int, state: _State, origin: int) -> None:
        """Add a path to `index`; its depth must equal that of earlier ones."""
        if index >= len(self.items):
            raise self.fail(origin, "control runs off the end")
        known = self.before[index]
        if known is not None and known != state[0]:
            source = describe(self.items, origin)
            raise self.fail(index, f"reached with stack depth {known} and, from {source}, {state[0]}")
        self.pending.append((index, state))

    def floor(self, index: int, key: int, depth: int) -> int:
        """The depth at a region's handler, for an instruction inside at `depth`."""
        region: Region = self.bytecode.regions[key]
        floor = self.regions.get(key)
        if floor is None:
            floor = self.regions[key] = depth if region.depth is None else region.depth
            self.deepest = max(self.deepest, floor + region.lasti + 1)
        if key in self.any_depth:
            return 0
        if depth < floor:
            raise self.fail(index, f"stack depth {depth} inside a region whose handler wants {floor}")
        return floor

    def enter_region(self, index: int, key: int, depth: int, others: NonObjectSlots, moved: frozenset[str]) -> int:
        """Add the path from an instruction that may raise; returns the depth at its handler."""
        needed, floor = self.floor(index, key, depth), self.regions[key]
        if depth < floor:
            return needed
        kept = cut(others, floor)
        seen = self.raised.get(key)
        if seen is not None:
            kept, moved = join_slots(seen[0], kept), seen[1] | moved
            if kept is seen[0] and moved == seen[1]:
                return needed
        self.raised[key] = (kept, moved)
        region = self.bytecode.regions[key]
        entered = [OFFSET, EXCEPTION] if region.lasti else [EXCEPTION]
        state = (floor + len(entered), push_all(kept, floor, entered), moved)
        self.send(self.labels[region.handler], state, index)
        return needed

    def run(self) -> None:
        """Follow all pending paths."""
        while self.pending:
            index, state = self.pending.pop()
            known = self.before[index]
            if known is not None and known != state[0]:
                raise self.fail(index, f"reached with stack depths {known} and {state[0]}")
            self.follow(index, state)

    def check_cannot_raise_sites(self) -> None:
        """Check handlers of regions whose instructions cannot raise; their depth must be consistent as well."""
        while self.cannot_raise_sites:
            index, key, depth, others = self.cannot_raise_sites.pop()
            region = self.bytecode.regions[key]
            handler = self.labels[region.handler]
            known, entry = self.before[handler], self.regions[key] + region.lasti + 1
            if known is None:
                self.enter_region(index, key, depth, others, NOWHERE)
                self.run()
            elif known != entry:
                raise self.fail(handler, f"reached with stack depth {known} and, as a handler, {entry}")

    def follow(self, index: int, state: _State) -> None:
        """Follow straight-line code from `index` until the path ends or adds nothing."""
        depth, others, moved = state
        items, before, kinds = self.items, self.before, self.non_object_slots
        span_at, straight = self.span_at, self.straight
        floor, last, size = 0, None, len(items)
        while index < size:
            item = items[index]
            if item.__class__ is Label:
                joined = self.arrive(index, (depth, others, moved))
                if joined is None:
                    return
                _, others, moved = joined
                index += 1
                continue
            before[index] = depth
            kinds[index] = others
            if self.displaced_cells:
                self.displaced_cells[index] = moved
            if span_at:
                key = span_at.get(index)
                if key is None:
                    floor = 0
                elif last is None or last[0] != key or last[1] is not others or last[2] is not moved or depth < floor:
                    if cannot_raise(item, index, self.labels):  # type: ignore[arg-type]
                        self.cannot_raise_sites.append((index, key, depth, others))
                        floor = self.floor(index, key, depth)
                    else:
                        floor = self.enter_region(index, key, depth, others, moved)
                        last = (key, others, moved)
            op, arg, _ = item  # type: ignore[misc]
            effect = straight.get(op)
            if effect is not None and depth - effect[0] >= floor and (others is None or others[0] < depth - effect[0]):
                depth += effect[1]
            elif op == "LOAD_CONST" and arg.__class__ not in self.constants:
                depth += 1
            elif op in QUICK and (quick := QUICK[op](arg, depth, others, floor)) is not None:
                depth, others = quick
            elif op in _TESTS and depth > floor and (others is None or others[0] < depth - 2):
                depth -= 1
                self.send(self.target(index, arg), (depth, others, moved), index)
            else:
                after = self.step(index, item, (depth, others, moved), floor)  # type: ignore[arg-type]
                if after is None:
                    return
                depth, others, moved = after
            if depth > self.deepest:
                self.deepest = depth
            index += 1
        raise self.fail(index, "control runs off the end")

    def arrive(self, index: int, state: _State) -> _State | None:
        """The join of a label's state with this path's, or None if it adds nothing."""
        known = self.states.get(index)
        if known is not None:
            if known[0] != state[0]:
                raise self.fail(index, f"reached with stack depths {known[0]} and {state[0]}")
            others, moved = join_slots(known[1], state[1]), known[2] | state[2]
            if others is known[1] and moved == known[2]:
                return None
            state = (known[0], others, moved)
        self.states[index] = state
        self.before[index], self.non_object_slots[index], moved = state
        if self.displaced_cells:
            self.displaced_cells[index] = moved
        return state

    def step(self, index: int, item: Instr, state: _State, floor: int) -> _State | None:
        """State after the instruction if control goes on to the next one, else None."""
        op, arg, _ = item
        depth, others, moved = state
        needed = required_depth(op, arg)
        if depth < needed:
            raise self.fail(index, f"needs {needed} values on the stack, there are {depth}")
        base = depth - needed
        taken = pops(op, arg) - KEEPS.get(op, 0)
        if depth - taken < floor and op not in CANNOT_RAISE:
            raise self.fail(index, f"takes a value of which its handler wants to find {floor} on the stack")
        if self.constants is _TRACKED and (op in TEXT_OPS or (op in _INTRINSICS and arg in USES_STRINGS)):
            raise _NeedsStringKinds
        if op in _CONTEXT_DEPENDENT:
            self.check_context(index, item, depth, others)
        found = slots(others, base, depth)
        try:
            if OPS[op].operand in ("local", "deref"):
                after, moved = self.variable(op, arg, found, moved)
            elif op == "LOAD_NAME" and arg == REACHED_ANNOTATIONS:
                after = [SET]
            else:
                after = [self.constant(arg)] if op == "LOAD_CONST" else apply_rule(op, arg, found)
        except SlotError as error:
            raise self.fail(index, str(error)) from None
        rest = cut(others, base)
        flow = OPS[op].flow
        if flow == "next":
            others = push_all(rest, base, after)
            if op in _CHANGES_BELOW and index in self.span_at:
                self.enter_region(index, self.span_at[index], depth, others, moved)
            return base + len(after), others, moved
        if flow == "branch":
            return self.branch(index, item, (base, rest, moved), after)
        if flow == "jump":
            self.send(self.target(index, arg), state, index)
        return None

    def constant(self, value: object) -> Kind:
        """The kind of a LOAD_CONST."""
        if self.constants is not _TRACKED and (value is None or value.__class__ is str):
            return NONE if value is None else TEXT
        if self.constants is not _TRACKED and type(value) is tuple and value and all(type(v) is str for v in value):
            return numbered(TEXTS, len(value))
        return constant_kind(value)

    def variable(
        self, op: str, name: str, found: list[Kind], moved: frozenset[str]
    ) -> tuple[list[Kind], frozenset[str]]:
        """The effect of an operation on a variable, on the slots that it needs, and on cells outside their slots."""
        kind = self.special_kinds.get(name, OBJECT)
        is_cell = name in self.cells
        if OPS[op].operand == "deref" and name in moved and op != "MAKE_CELL":
            raise SlotError("a comprehension's variable stands where the cell belongs")
        if op == "STORE_FAST":
            demand(found[0], ANYTHING if kind == OBJECT else kind | NULL)
            if is_cell:
                moved = moved - {name} if found[0] == CELL else moved | {name}
            return [], moved
        if op == "STORE_DEREF":
            demand(found[0], VALUE if kind == OBJECT else kind)
            return [], moved
        if op == "LOAD_FAST_AND_CLEAR":
            return [CELL if is_cell and name not in moved else NULL | kind], moved | {name} if is_cell else moved
        if op in ("LOAD_FAST", "LOAD_FAST_CHECK"):
            return [CELL if is_cell and name not in moved else kind], moved
        if op == "LOAD_DEREF" and name == REACHED_ANNOTATIONS:
            kind = SET
        if op in ("LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF"):
            for slot in found:
                demand(slot, VALUE)
            return [kind], moved
        if op == "MAKE_CELL" and kind != OBJECT:
            raise SlotError("would put a cell where the variable's name promises something else")
        if op in ("MAKE_CELL", "DELETE_FAST") and is_cell:
            return [], moved - {name} if op == "MAKE_CELL" else moved | {name}
        return apply_rule(op, name, found), moved

    def branch(self, index: int, item: Instr, state: _State, after: list[Kind]) -> _State:
        """Add the path of the taken branch; returns the state of the other one."""
        op = item.op
        base, rest, moved = state
        stays = push_all(rest, base, after)
        taken = rest
        if op in _NONE_TESTS and index and is_copy_of_top(self.items[index - 1]) and base:
            top = slots(rest, base - 1, base)[0]
            below = cut(rest, base - 1)
            if top & NONE and top != NONE:
                none, other = push(below, base - 1, NONE), push(below, base - 1, top & ~NONE)
                taken, stays = (none, other) if op == "POP_JUMP_IF_NONE" else (other, none)
        if op == "SEND" and TABLE.iterator_slots == 2:
            taken = push(rest, base + 1, EMPTY)
        self.send(self.target(index, item.arg), (base + OPS[op].jump_pushes, taken, moved), index)
        return base + len(after), stays, moved


_CONTEXT_DEPENDENT: Final = frozenset(
    ("RETURN_GENERATOR", "YIELD_VALUE", "RESUME", "ASYNC_GEN_WRAP", "LOAD_LOCALS", "IMPORT_STAR")
)
_INTRINSICS: Final = frozenset(("CALL_INTRINSIC_1", "CALL_INTRINSIC_2"))
_TESTS: Final = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"))
_NONE_TESTS: Final = frozenset(("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"))


def cannot_raise(item: Instr, index: int, labels: Mapping[Label, int]) -> bool:
    """Whether item `index` cannot raise. Backward jumps can: they serve signals."""
    return item.op in _COMPREHENSION_MOVES or (item.op == "JUMP" and labels.get(item.arg, 0) > index)


def is_none_test(item: Item) -> bool:
    """Whether this is a conditional jump on `top is None`."""
    return isinstance(item, Instr) and item.op in _NONE_TESTS


def is_copy_of_top(item: Item) -> bool:
    """Whether this is COPY 1, so that a test of the top applies to the slot below as well."""
    return isinstance(item, Instr) and item.op == "COPY" and item.arg == 1


def stack_states(bytecode: Bytecode) -> StackStates:
    """Depths of the stack and kinds of its slots in the whole function.

    Raises `BytecodeError` for a missing label, an underflow, paths of different depths, control that runs off the end,
    and slots or cells of another kind than the interpreter assumes.
    """
    expect_bytecode(bytecode, "stack_states")
    if not bytecode.instructions:
        raise BytecodeError(f"{bytecode.name}: {describe(bytecode.instructions, 0)}: control runs off the end")
    try:
        return _walk(bytecode, track_strings=False)
    except _NeedsStringKinds:
        return _walk(bytecode, track_strings=True)
    except (AttributeError, LookupError, TypeError):
        check_types(bytecode)  # not an Instr, not a list: few callers have not checked it
        raise


def _walk(bytecode: Bytecode, *, track_strings: bool) -> StackStates:
    walk = _Walk(bytecode, track_strings)
    walk.check_start()
    walk.run()
    walk.check_cannot_raise_sites()
    return StackStates(
        walk.before, walk.deepest, walk.regions, walk.labels, walk.spans, walk.non_object_slots, walk.displaced_cells
    )
