"""Functions that are no longer inlined, because inlining them never paid off."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak, Site

if TYPE_CHECKING:
    from collections.abc import MutableMapping

#: Callers whose graphs break in a function, for one reason and with none succeeding, before it is no longer inlined.
MAX_CALLERS = 4


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a function is no longer inlined, and the site of the break that led to it."""

    reason: str
    site: Site


class CostlyCallees:
    """The outcomes of inlining: for each function the reasons for which it broke, and the callers.

    One success resets a function's record. A function on which the compiler failed is refused at once.
    """

    def __init__(self) -> None:
        self._broke: MutableMapping[CodeType, dict[str, weakref.WeakSet[CodeType]]] = weakref.WeakKeyDictionary()
        self._refused: MutableMapping[CodeType, Refusal] = weakref.WeakKeyDictionary()

    def refusal_of(self, callee: CodeType) -> Refusal | None:
        """Return why a function is no longer inlined, or None."""
        return self._refused.get(callee) if self._refused else None

    def worked(self, callee: CodeType) -> None:
        """Record that a function was interpreted to its end."""
        if self._broke:
            self._broke.pop(callee, None)

    def note(self, error: Exception, caller: CodeType) -> tuple[CodeType, str] | None:
        """Record the error that ended a trace of `caller`; return the function now refused and why, or None."""
        callee = callee_of(error)
        if callee is None or callee in self._refused:
            return None
        if isinstance(error, GraphBreak):
            callers = self._broke.setdefault(callee, {}).setdefault(str(error), weakref.WeakSet())
            callers.add(caller)
            if len(callers) < MAX_CALLERS:
                return None
            reason = f"it broke the graphs of {len(callers)} callers, and never succeeded: {error}"
            site = error.site
        else:
            reason = f"the compiler failed on it: {type(error).__name__}: {error}"
            site = (reason, callee.co_filename, callee.co_qualname, callee.co_firstlineno)
        self._refused[callee] = Refusal(reason, site)
        self._broke.pop(callee, None)
        return callee, reason


def blame(error: Exception, callee: CodeType) -> None:
    """Attach the function being inlined to an error, unless a function inside it is attached already."""
    if callee_of(error) is None:
        error.framesmith_callee = callee  # type: ignore[attr-defined]


def callee_of(error: Exception) -> CodeType | None:
    """Return the innermost inlined function in which an error arose; None for the outermost frame."""
    return getattr(error, "framesmith_callee", None)
