"""Splitting a function at an instruction into a prefix and a continuation that the prefix calls: `split`.

Note [A call that fails while an exception is handled]: inside an `except` block the previously handled exception is on
the stack, and the continuation restores it. If the call fails before the continuation runs, as at the recursion limit,
`sys.exc_info()` would stay wrong. So the prefix saves the exception that was handled on entry and restores it when the
call raises; after the continuation did, this changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from types import CodeType
from typing import NamedTuple

from framesmith_bytecode.analyses.slots import HANDLED, INDEX, LOOPED, NO_INDEX, carrier_name
from framesmith_bytecode.codegen.codegen import Codegen
from framesmith_bytecode.continuations.cached_analyses import Analyses, analysed
from framesmith_bytecode.continuations.continuation import UNBOUND, Continuation, Parameter, make_continuation
from framesmith_bytecode.continuations.handover import hand_over
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Item, Label
from framesmith_bytecode.model.ops import CallShape
from framesmith_bytecode.writing.encode import encode


class Split(NamedTuple):
    """`prefix` replaces the function: it runs up to the split point and returns the result of the continuation."""

    prefix: CodeType
    continuation: Continuation


def _load_or_unbound(codegen: Codegen, name: str) -> None:
    """Push a local, or UNBOUND if it is unbound, and unbind it."""
    missing, done = Label(), Label()
    with codegen.protected(missing):
        codegen.emit("LOAD_FAST_CHECK", name)
    codegen.emit("DELETE_FAST", name)
    codegen.jump(done)
    codegen.mark(missing)
    codegen.emit("PUSH_EXC_INFO")
    codegen.pop()
    codegen.emit("POP_EXCEPT")
    codegen.load_const(UNBOUND)
    codegen.mark(done)


def _never_bound(known: Analyses, index: int) -> set[str]:
    """Locals that no path to item `index` binds."""
    items = known.bytecode.instructions
    before = (items[i] for i in known.earlier_items(index))
    stored = {item[1] for item in before if isinstance(item, Instr) and item[0] == "STORE_FAST"}
    return set(known.bytecode.varnames) - stored - set(known.bytecode.argument_names)


def _iterate_by_iterators(known: Analyses, index: int) -> list[list[Item]]:
    """Return the items of the prefix, by item: iterators that are on the stack at item `index` are made by iter().

    GET_ITER of 3.15 leaves a list and an index of the interpreter's own, which no function can be given.
    """
    states = known.stack_states
    looped = {slot for slot, kind in enumerate(states.kinds(index)) if kind & LOOPED}
    made: list[list[Item]] = []
    for depth, item in zip(states.before, known.bytecode.instructions, strict=True):
        made.append([item])
        if isinstance(item, Instr) and item.op == "GET_ITER" and depth is not None and depth - 1 in looped:
            made[-1] = [
                item.replace(op="LOAD_CONST", arg=iter),
                item.replace(op="SWAP", arg=2),
                item.replace(op="CALL", arg=CallShape(0)),
                item.replace(op="PUSH_NULL", arg=None),
            ]
    return made


class _Handover:
    """Emits instructions that move the stack into temporaries, call the continuation and return its result."""

    def __init__(self, known: Analyses, continuation: Continuation) -> None:
        kinds = known.stack_states.kinds(continuation.index)
        self.continuation = continuation
        self.kinds = kinds
        self.unbound = _never_bound(known, continuation.index)
        self.codegen = Codegen.like(known.bytecode)
        self.spilled = [self.codegen.new_temp(f"slot_{slot}") for slot in range(len(kinds))]
        self.handled: str | None = None
        if HANDLED in kinds:  # named by its kind: see Note [How a continuation is called]
            slot = kinds.index(HANDLED)
            self.handled = self.spilled[slot] = carrier_name(HANDLED, slot, self.codegen.varnames)

    def write(self) -> None:
        for kind, name in reversed(list(zip(self.kinds, self.spilled, strict=True))):
            if kind & (INDEX | NO_INDEX):  # NULL: see `_iterate_by_iterators`
                self.codegen.pop()
            else:
                self.codegen.store(name)
        if self.handled is None:
            self.call()
        else:
            self.call_restoring(self.handled)
        self.codegen.return_value()

    def pass_argument(self, parameter: Parameter) -> None:
        codegen = self.codegen
        name = self.spilled[parameter.source] if isinstance(parameter.source, int) else parameter.source
        if parameter.kind == "contents":
            codegen.load(name)
        elif name in self.unbound:
            codegen.load_const(UNBOUND)
        elif parameter.maybe_missing:
            _load_or_unbound(codegen, name)
        else:
            codegen.emit("LOAD_FAST", name)
            codegen.emit("DELETE_FAST", name)

    def call(self) -> None:
        """Push the result of the continuation."""
        hand_over(self.codegen, self.continuation, self.pass_argument)

    def call_restoring(self, handled: str) -> None:
        """The same; see Note [A call that fails while an exception is handled]."""
        codegen = self.codegen
        failed, done = Label(), Label()
        codegen.emit("LOAD_FAST", handled)
        with codegen.protected(failed):
            self.call()
        codegen.swap(2)
        codegen.pop()
        codegen.jump(done)
        codegen.mark(failed)
        codegen.swap(2)
        codegen.emit("POP_EXCEPT")
        codegen.emit("RERAISE", 0)
        codegen.mark(done)


def split(function: Bytecode | Analyses, index: int) -> Split:
    """A prefix and a continuation at item `index`; running the prefix equals running the function.

    `Analyses(bytecode)` in place of the bytecode saves work when one function is split often.
    Raises `ContinuationError` where there is no continuation, for example for an index out of range.
    """
    known = analysed(function, "split")
    bytecode = known.bytecode
    continuation = make_continuation(known, index, own_cells=True, all_locals=True)
    index = continuation.index
    label = Label("handover")
    handover = _Handover(known, continuation)
    codegen = handover.codegen
    at = bytecode.instructions[index]
    codegen.position = at.position if isinstance(at, Instr) else None
    codegen.mark(label)
    handover.write()
    jump = Instr("JUMP", label, codegen.position)
    while isinstance(bytecode.instructions[index], Label):  # a region may end here, and the jump is not part of it
        index += 1
    made = _iterate_by_iterators(known, continuation.index)
    items = [*chain(*made[:index]), jump, *chain(*made[index:]), *codegen.instructions]
    whole = replace(
        bytecode,
        instructions=items,
        regions=[*bytecode.regions, *codegen.regions],
        varnames=codegen.varnames,
    )
    return Split(encode(whole), continuation)
