"""Code behind a break for which no continuation is called: it runs on the spot, for there is nothing in it to compile.

Straight-line code of loads and of tensors' methods that compute nothing (`loss.detach()`), to the frame's end; or to
behind a call that runs the autograd engine, in front of which a continuation would only break again.
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

#: Instructions too cheap to call a continuation for, when they are all that is left.
CHEAP: Final = frozenset({"LOAD_CONST", "LOAD_FAST", "NOP", "POP_TOP", "RETURN_VALUE", "BUILD_TUPLE"})
#: Methods of tensors that compute nothing, whatever else has a method of the name.
NO_COMPUTATION: Final = frozenset(op_name(op) for op in IDENTITY_VIEWS)
LONGEST: Final = 16


@dataclass(frozen=True, slots=True)
class StraightLineCode:
    """Instructions to run on the spot, where the code goes on (None: it has returned), which stack slots are NULL."""

    instrs: tuple[Instr, ...]
    end: int | None
    nulls: tuple[bool, ...]


class _Stack:
    """The stack along a stretch: the slots left of those that were there, and above them what is known of new ones.

    `engine`: whether the autograd engine has run, since somebody has asked last.
    """

    def __init__(self, nulls: Sequence[bool]) -> None:
        self.nulls = list(nulls)
        self.above: list[Value | str | None] = []
        self.engine = False

    def push(self, known: Value | str | None = None) -> None:
        self.above.append(known)

    def pop(self, count: int = 1) -> list[Value | str | None]:
        """Take so many slots off: the facts known of each, from the bottom up."""
        taken: list[Value | str | None] = []
        for _ in range(count):
            if self.above:
                taken.insert(0, self.above.pop())
            else:
                self.nulls.pop()
                taken.insert(0, None)
        return taken


def straight_line_code_at(frame: Frame, start: int, nulls: Sequence[bool], bound: Sequence[str]) -> StraightLineCode:
    """The stretch from `start` on, often an empty one, with these stack slots NULL and these locals bound."""
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
    """Whether an instruction is one that stretches have; one that may raise is outside of all `with` and `try`."""
    instr = frame.code.instrs[index]
    if instr.op in CHEAP:
        return instr.op != "LOAD_FAST" or instr.arg in bound
    return instr.op in ("LOAD_METHOD", "CALL") and frame.code.protections[index] is None


def _follow(stack: _Stack, instr: Instr, frame: Frame) -> bool:
    """Apply an instruction to the stack; False where it calls what stretches do not, and one ends."""
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
