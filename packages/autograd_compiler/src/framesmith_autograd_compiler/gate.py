"""Serialises threads around the engine's capture hook, of which there is one per process.

The hook is set while a pass is recorded, or found in the cache. Then the program runs, and user code with it, which may
wait for another thread: the hook is removed before, and plain passes may run meanwhile. A captured pass waits, since
torch allows one at a time; after `PATIENCE` the engine runs it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Seconds that a pass waits for a program of another thread before the engine runs it.
PATIENCE: Final = 5.0


class Gate:
    """Admits many plain passes, or one captured pass that is being recorded; reentrant for a thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plain: dict[int, int] = {}
        self._captured: int | None = None
        self._runs = False

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Wait until no other thread records a pass; none starts meanwhile."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._runs or self._captured in (None, me))
            self._plain[me] = self._plain.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._plain[me] -= 1
                if not self._plain[me]:
                    del self._plain[me]
                self._changed.notify_all()

    @contextmanager
    def captured(self) -> Iterator[bool]:
        """Yield whether a captured pass may run now: not while a plain one runs anywhere."""
        me = threading.get_ident()
        with self._changed:
            while not self._changed.wait_for(lambda: self._captured is None, PATIENCE):
                if self._runs:
                    break
            allowed = self._captured is None and not self._plain
            if allowed:
                self._captured = me
        try:
            yield allowed
        finally:
            if allowed:
                with self._changed:
                    self._captured = None
                    self._changed.notify_all()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside a captured pass whose hook is removed: others need not wait for it."""
        with self._changed:
            self._runs = True
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._runs = False
