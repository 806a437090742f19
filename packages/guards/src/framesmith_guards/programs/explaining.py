"""Explanations of cache misses, the nearest entry first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

from framesmith_guards.guard import Guard
from framesmith_guards.programs.program import CheckProgram


class Call(Protocol):
    """A call to explain, such as framesmith_frames' FrameInfo."""

    @property
    def arguments(self) -> tuple[object, ...]: ...

    @property
    def function(self) -> Any: ...


@dataclass(frozen=True)
class Miss:
    """Why one entry does not apply; without `reasons` it does.

    `reasons` are the guards that do not hold, in words and in checking order. `held` guards came before the first of
    them, `guard`; `hidden` ones could not be evaluated, since a value on their path is not as expected.
    """

    entry: Any
    reasons: tuple[str, ...]
    held: int
    hidden: int
    guard: Guard | None = None

    @property
    def distance(self) -> tuple[int, int]:
        """Orders by the number of misses, then by how late the check notices."""
        return (len(self.reasons) + self.hidden, -self.held)

    def __str__(self) -> str:
        hidden = f" (and {self.hidden} more behind)" if self.hidden else ""
        return "; ".join(self.reasons) + hidden if self.reasons else "it applies"


def explain(entries: Iterable[Any], frame: Call) -> list[Miss]:
    """Return why each entry missed a call, nearest first: fewest guards that do not hold, then the latest noticed.

    An entry is a CheckProgram, or has one as `check`. One with another kind of check comes last, and says so.
    """
    return sorted((_miss(entry, frame.arguments, frame.function) for entry in entries), key=_order)


def _order(miss: Miss) -> tuple[bool, tuple[int, int]]:
    return (not isinstance(_check_of(miss.entry), CheckProgram), miss.distance)


def _check_of(entry: Any) -> Any:
    return entry if isinstance(entry, CheckProgram) else getattr(entry, "check", entry)


def _miss(entry: Any, args: tuple[object, ...], function: FunctionType) -> Miss:
    program = _check_of(entry)
    if not isinstance(program, CheckProgram):
        return Miss(entry, (f"its check, a {type(program).__name__}, does not explain itself",), 0, 0)
    if program.dead is not None:
        return Miss(entry, (f"{program.dead} is gone",), 0, len(program.guards) - 1)
    verdicts = list(program.verdicts(args, function))
    reasons = tuple(reason for _, reason, _ in verdicts if reason is not None)
    failed = [(index, guard) for index, (guard, reason, _) in enumerate(verdicts) if reason is not None]
    first, guard = failed[0] if failed else (len(verdicts), None)
    return Miss(entry, reasons, first, sum(hidden for _, _, hidden in verdicts), guard)
