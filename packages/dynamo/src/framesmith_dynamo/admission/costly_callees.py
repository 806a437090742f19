"""Functions that are no longer interpreted in place, because that was never worth its cost."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak, Site

if TYPE_CHECKING:
    from collections.abc import MutableMapping

#: Callers that broke in a function, for one reason and with no other getting through, before it is left alone.
MAX_CALLERS = 4


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a function is not interpreted in place any more, and the site of the break for which it is not."""

    reason: str
    site: Site


class CostlyCallees:
    """What became of functions interpreted in place: for each the reasons it broke for, and in whose frames.

    A function that got through once is given another chance with all callers; one that made the compiler fail is left
    alone at once.
    """

    def __init__(self) -> None:
        self._broke: MutableMapping[CodeType, dict[str, weakref.WeakSet[CodeType]]] = weakref.WeakKeyDictionary()
        self._refused: MutableMapping[CodeType, Refusal] = weakref.WeakKeyDictionary()

    def refusal_of(self, callee: CodeType) -> Refusal | None:
        """Why a function is not interpreted in place any more, or None."""
        return self._refused.get(callee) if self._refused else None

    def worked(self, callee: CodeType) -> None:
        """A function was interpreted to its end."""
        if self._broke:
            self._broke.pop(callee, None)

    def note(self, error: Exception, caller: CodeType) -> tuple[CodeType, str] | None:
        """An attempt to trace `caller` ended with this error: the function that is refused from now on, and why."""
        callee = callee_of(error)
        if callee is None or callee in self._refused:
            return None
        if isinstance(error, GraphBreak):
            callers = self._broke.setdefault(callee, {}).setdefault(str(error), weakref.WeakSet())
            callers.add(caller)
            if len(callers) < MAX_CALLERS:
                return None
            reason = f"it broke the graphs of {len(callers)} callers, and let none through: {error}"
            site = error.site
        else:
            reason = f"the compiler failed on it: {type(error).__name__}: {error}"
            site = (reason, callee.co_filename, callee.co_qualname, callee.co_firstlineno)
        self._refused[callee] = Refusal(reason, site)
        self._broke.pop(callee, None)
        return callee, reason


def blame(error: Exception, callee: CodeType) -> None:
    """Note that an error arose while a function was interpreted in place, unless one inside it is blamed already."""
    if callee_of(error) is None:
        error.framesmith_callee = callee  # type: ignore[attr-defined]


def callee_of(error: Exception) -> CodeType | None:
    """The innermost function interpreted in place where an error arose; None where it was the outermost frame."""
    return getattr(error, "framesmith_callee", None)
