"""Keeps the engine's capture hook, which is one for the process, from meeting other threads' passes.

The hook is set while a pass is recorded, or found again. Then the program runs, and with it code of the user, which may
wait for another thread: the hook is gone by then, and plain passes go on beside it. A captured one waits for its turn,
since torch lets one run at a time, but not for ever: it is left to the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Seconds that a pass waits for a program that runs in another thread, before it is not captured.
PATIENCE: Final = 5.0


class Gate:
    """Many plain passes, or one captured pass that is recorded; a thread inside may enter again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plain: dict[int, int] = {}
        self._captured: int | None = None
        self._runs = False

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Waits until no other thread records a pass; none starts meanwhile."""
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
        """Gives whether a captured pass may run now; while a plain one runs anywhere, it may not."""
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
        """Inside a captured pass whose hook is gone: others need not wait for it."""
        with self._changed:
            self._runs = True
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._runs = False
