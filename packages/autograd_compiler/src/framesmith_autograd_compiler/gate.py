"""Keeps the engine's capture hook, which is one for the process, from meeting other threads' passes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many plain passes, or one captured pass; a thread inside may enter again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plain: dict[int, int] = {}
        self._captured: int | None = None

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Waits until no other thread runs a captured pass; none starts meanwhile."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._captured in (None, me))
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
            self._changed.wait_for(lambda: self._captured is None)
            allowed = not self._plain
            if allowed:
                self._captured = me
        try:
            yield allowed
        finally:
            if allowed:
                with self._changed:
                    self._captured = None
                    self._changed.notify_all()
