"""Where in the user's program a trace is: the frames it has entered and the line it is at, per thread."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from dis import Positions


@dataclass(frozen=True)
class Location:
    """A line (and columns, if known) of a file, in a function."""

    filename: str
    lineno: int
    function: str
    positions: Positions | None = None

    def summary(self) -> traceback.FrameSummary:
        """The location as an entry of a traceback."""
        known = self.positions
        if known is None:
            return traceback.FrameSummary(self.filename, self.lineno, self.function, lookup_line=False)
        return traceback.FrameSummary(
            self.filename,
            self.lineno,
            self.function,
            lookup_line=False,
            colno=known.col_offset,
            end_colno=known.end_col_offset,
        )


@dataclass
class FrameStack:
    """The user's frames that a trace has entered, outermost first, and the location in the innermost one."""

    entered: list[traceback.FrameSummary] = field(default_factory=list)
    location: Location | None = None

    def summary(self) -> traceback.StackSummary:
        """The user's stack as a traceback, innermost last."""
        here = [] if self.location is None else [self.location.summary()]
        return traceback.StackSummary.from_list([*self.entered, *here])

    @contextmanager
    def frame(self, entered: traceback.FrameSummary | None) -> Iterator[None]:
        """Trace inside one more frame (none for None); an exception that leaves it carries `real_stack`."""
        outer = self.location
        if entered is not None:
            self.entered.append(entered)
        self.location = None
        try:
            yield
        except Exception as error:
            attach(error, self)
            raise
        finally:
            if entered is not None:
                self.entered.pop()
            self.location = outer

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Do something that belongs to no user frame; an exception that leaves it carries no stack of ours."""
        entered, location = self.entered, self.location
        self.entered, self.location = [], None
        try:
            yield
        except Exception as error:
            if not hasattr(error, "real_stack"):
                error.real_stack = None  # type: ignore[attr-defined]
            raise
        finally:
            self.entered, self.location = entered, location


def attach(error: BaseException, stack: FrameStack) -> None:
    """Note the user's stack on an exception as `real_stack`, unless one is noted already."""
    if not hasattr(error, "real_stack"):
        error.real_stack = stack.summary()  # type: ignore[attr-defined]


class _Local(threading.local):
    active: FrameStack | None = None


_LOCAL = _Local()


def user_stack() -> traceback.StackSummary:
    """The user's stack of the trace going on in this thread; empty if there is none."""
    return traceback.StackSummary() if _LOCAL.active is None else _LOCAL.active.summary()


@contextmanager
def activated(stack: FrameStack | None) -> Iterator[None]:
    """Make `stack` this thread's, for a while."""
    previous = _LOCAL.active
    _LOCAL.active = stack
    try:
        yield
    finally:
        _LOCAL.active = previous
