"""Instructions that may raise in a frame that has not run a RESUME: `raises_before_resume`."""

from __future__ import annotations

from typing import Final

from framesmith_bytecode.analyses.stack import StackStates
from framesmith_bytecode.analyses.walk import cannot_raise
from framesmith_bytecode.model.bytecode import Bytecode, Instr, Label
from framesmith_bytecode.model.ops import OPS

_QUIET: Final = frozenset(("LOAD_CLOSURE", "IS_OP", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "RETURN_VALUE"))
_TESTS: Final = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"))


def raises_before_resume(bytecode: Bytecode, states: StackStates, unbound: set[int], start: int = 0) -> bool:
    """Whether, from item `start` on, an instruction may raise on some path before a RESUME.

    `unbound` are the loads that may find their local unbound. A deletion is of a bound local if a load or a store of
    it precedes without a label between.
    """
    items = bytecode.instructions
    seen: set[int] = set()
    pending = [start]
    while pending:
        index, bound, last = pending.pop(), set[object](), ""
        while index not in seen:
            seen.add(index)
            item = items[index]
            if isinstance(item, Label):
                index, bound, last = index + 1, set(), ""
                continue
            op, arg, _ = item
            if op == "RESUME":
                break
            loads = op == "LOAD_FAST" and index not in unbound
            if not (loads or _is_quiet(item, index, bound, last, states)):
                return True
            if loads or op == "STORE_FAST":
                bound.add(arg)
            flow = OPS[op].flow
            if flow in ("branch", "jump"):
                pending.append(states.labels[arg])
            if flow in ("jump", "return"):
                break
            index, last = index + 1, op
    return False


def _is_quiet(item: Instr, index: int, bound: set[object], last: str, states: StackStates) -> bool:
    if item.op == "DELETE_FAST":
        return item.arg in bound
    if item.op in _TESTS:
        return last == "IS_OP"
    return item.op in _QUIET or cannot_raise(item, index, states.labels)
