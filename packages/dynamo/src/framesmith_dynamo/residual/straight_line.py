"""Straight-line code after a break, inlined into residual code because it has nothing to compile.

It consists of loads and of tensor methods that compute nothing (`loss.detach()`), up to the frame's end; or up to and
including a call that runs the autograd engine, before which a continuation would only break again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from framesmith_aten.operators import IDENTITY_VIEWS, op_name
from framesmith_aten.tensor_methods import ENGINE
from framesmith_bytecode import CallShape
from framesmith_dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from framesmith_bytecode import Instr
    from framesmith_dynamo.interpreter.frame import Frame
    from framesmith_dynamo.values.base import Value

#: Instructions too cheap for a continuation when nothing else is left.
CHEAP: Final = frozenset({"LOAD_CONST", "LOAD_FAST", "NOP", "POP_TOP", "RETURN_VALUE", "BUILD_TUPLE"})
#: Methods of tensors that compute nothing, whatever else has a method of the name.
NO_COMPUTATION: Final = frozenset(op_name(op) for op in IDENTITY_VIEWS)
LONGEST: Final = 16


@dataclass(frozen=True, slots=True)
class StraightLineCode:
    """Inlined instructions, the index at which the code continues (None: it has returned), and the NULL stack slots."""

    instrs: tuple[Instr, ...]
    end: int | None
    nulls: tuple[bool, ...]


class _Stack:
    """The stack along straight-line code: the NULL slots left of the original ones, and facts about new ones above
    them.

    `engine`: whether the autograd engine has run since the flag was reset.
    """

    def __init__(self, nulls: Sequence[bool]) -> None:
        self.nulls = list(nulls)
        self.above: list[Value | str | None] = []
        self.engine = False

    def push(self, known: Value | str | None = None) -> None:
        self.above.append(known)

    def pop(self, count: int = 1) -> list[Value | str | None]:
        """Pop slots and return the facts known of each, from the bottom up."""
        taken: list[Value | str | None] = []
        for _ in range(count):
            if self.above:
                taken.insert(0, self.above.pop())
            else:
                self.nulls.pop()
                taken.insert(0, None)
        return taken


def straight_line_code_at(frame: Frame, start: int, nulls: Sequence[bool], bound: Sequence[str]) -> StraightLineCode:
    """Return the straight-line code from `start` on, often empty, with these slots NULL and these locals bound."""
    stack = _Stack(nulls)
    instrs = frame.code.instrs
    found = StraightLineCode((), start, tuple(nulls))
    for index in range(start, min(start + LONGEST, len(instrs))):
        instr = instrs[index]
        if not _may_run(frame, index, bound):
            break
        if instr.op == "RETURN_VALUE":
            return found if any(nulls) else StraightLineCode(tuple(instrs[start : index + 1]), None, ())
        if not _follow(stack, instr, frame):
            break
        if stack.engine and not stack.above:
            found = StraightLineCode(tuple(instrs[start : index + 1]), index + 1, tuple(stack.nulls))
            stack.engine = False
    return found


def _may_run(frame: Frame, index: int, bound: Sequence[str]) -> bool:
    """Whether an instruction can be straight-line code: one that may raise is outside of `with` and `try`."""
    instr = frame.code.instrs[index]
    if instr.op in CHEAP:
        return instr.op != "LOAD_FAST" or instr.arg in bound
    return instr.op in ("LOAD_METHOD", "CALL") and frame.code.protections[index] is None


def _follow(stack: _Stack, instr: Instr, frame: Frame) -> bool:
    """Apply an instruction to the stack; False if it calls something that ends straight-line code."""
    if instr.op in ("LOAD_CONST", "LOAD_FAST"):
        stack.push(frame.locals.get(instr.arg) if instr.op == "LOAD_FAST" else None)
    elif instr.op == "LOAD_METHOD":
        (owner,) = stack.pop()
        computes = not (instr.arg in NO_COMPUTATION or (instr.arg in ENGINE and isinstance(owner, TensorValue)))
        if computes:
            return False
        stack.push(instr.arg)
        stack.push()
    elif instr.op == "CALL":
        assert isinstance(instr.arg, CallShape)
        called = stack.pop(2 + instr.arg.argc)[0]
        if not isinstance(called, str):
            return False
        stack.push()
        stack.engine |= called in ENGINE
    elif instr.op in ("POP_TOP", "BUILD_TUPLE"):
        stack.pop(1 if instr.op == "POP_TOP" else instr.arg)
        if instr.op == "BUILD_TUPLE":
            stack.push()
    return True
