"""The compilation going on in a thread: its id and attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from framesmith_guards.contexts.identity import CompileId, TraceId


class _Local(threading.local):
    current: CompileContext | None = None


_LOCAL = _Local()


class CompileContext:
    """One compilation: its id, the number of the attempt, and when it `begun`."""

    def __init__(self, compile_id: CompileId | None) -> None:
        if compile_id is not None and not isinstance(compile_id, CompileId):
            raise TypeError(f"compile_id is a CompileId or None, not {type(compile_id).__name__}")
        self.compile_id = compile_id
        self.attempt = 0
        self.begun = time.perf_counter()

    @property
    def trace_id(self) -> TraceId | None:
        """The id of the attempt going on; None for a compilation without an id."""
        return None if self.compile_id is None else TraceId(self.compile_id, self.attempt)

    @staticmethod
    def try_get() -> CompileContext | None:
        """Return this thread's compilation, or None."""
        return _LOCAL.current

    @staticmethod
    def get() -> CompileContext:
        """Return this thread's compilation; RuntimeError outside one."""
        if _LOCAL.current is None:
            raise RuntimeError("no compilation is going on in this thread; enter one with compile_context()")
        return _LOCAL.current

    @staticmethod
    def current_compile_id() -> CompileId | None:
        return None if _LOCAL.current is None else _LOCAL.current.compile_id

    @staticmethod
    def current_trace_id() -> TraceId | None:
        return None if _LOCAL.current is None else _LOCAL.current.trace_id


@contextmanager
def compile_context(context: CompileContext | None) -> Iterator[CompileContext | None]:
    """Make `context` this thread's compilation for a while (None: none)."""
    previous = _LOCAL.current
    _LOCAL.current = context
    try:
        yield context
    finally:
        _LOCAL.current = previous
