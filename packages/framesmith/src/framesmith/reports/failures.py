"""Failures of the compiler: one warning and eager mode, or an error when strict."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field

from framesmith.reports.stats import count
from framesmith_guards import CompileContext, Location, current_location, location_of, warn_user


class FramesmithWarning(UserWarning):
    """Something could not be compiled and runs eagerly; the message names it and the reason."""


class FramesmithError(RuntimeError):
    """A failure inside the compiler, under `strict=True`."""


@dataclass
class Failures:
    """Reports the failures of one session: the same failure warns once, in however many frames it is met.

    `strict`: each is raised; `eager_is_error`: each that makes a call run eagerly.
    """

    strict: bool
    eager_is_error: bool = False
    _seen: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def warn_once(self, message: str) -> None:
        """Warn once of a setting or call that has not the effect asked for."""
        with self._lock:
            if message in self._seen:
                return
            self._seen.add(message)
        warn_user(FramesmithWarning(message))

    def report(
        self, where: str, error: BaseException, location: Location | None = None, *, partial: bool = False
    ) -> None:
        """Warn once about a failure at `where`, or raise it as a FramesmithError when strict.

        `partial`: the graph is compiled all the same, in another way. The warning stands at the user's line where the
        error arose; else at `location`, or where the trace is.
        """
        if isinstance(error, FramesmithError):
            raise error  # reported already, on its way to the user
        count("frames_failed")
        message = f"framesmith failed to compile {where}: {type(error).__name__}: {error}"
        at = location_of(error) or location or current_location()
        trace_id = CompileContext.current_trace_id()
        if at is not None:
            at = at.in_user_code
            message += f" (compiling [{trace_id or '-'}], {at})"
        elif trace_id is not None:
            message += f" (compiling [{trace_id}])"
        if self.strict or (self.eager_is_error and not partial):
            raise FramesmithError(message) from error
        with self._lock:
            key = f"{type(error).__name__}: {error}"
            if key in self._seen:
                return
            self._seen.add(key)
        if at is None:
            warn_user(FramesmithWarning(f"{message}; it runs eagerly"))
        else:
            warnings.warn_explicit(f"{message}; it runs eagerly", FramesmithWarning, at.filename, at.lineno)
