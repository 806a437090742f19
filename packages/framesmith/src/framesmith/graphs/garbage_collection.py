"""Full garbage collections wait until a compilation is over: Note [Collections]."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Allocations between two young collections while something is compiled, and a number of them that is never reached.
YOUNG, NEVER = 10_000, 2**31 - 1

Thresholds = tuple[int, int, int]


class _Postponement:
    """The number of compiling threads, and the program's thresholds before the first one began."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a young collection within may end something that compiles
        self.count = 0
        self.before: Thresholds = gc.get_threshold()
        self.during = self.before

    def begin(self) -> None:
        with self.lock:
            self.count += 1
            if self.count == 1:
                now = gc.get_threshold()
                if now != self.during:  # else somebody has brought back what they were during an earlier compilation
                    self.before = now
                young, middle, _ = self.before
                gc.set_threshold(max(young, YOUNG) if young else 0, middle, NEVER)
                self.during = gc.get_threshold()  # an incremental collector keeps no third threshold

    def end(self) -> None:
        with self.lock:
            self.count = max(self.count - 1, 0)
            if self.count == 0 and gc.get_threshold() == self.during:
                gc.set_threshold(*self.before)

    def end_all(self) -> None:
        """In a forked process, which has none of the other threads."""
        self.lock = threading.RLock()
        if self.count:
            self.count = 1
            self.end()


_postponement = _Postponement()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_postponement.end_all)


@contextmanager
def full_collections_postponed() -> Iterator[None]:
    """Let the garbage collector look at young objects alone, in this process.

    Note [Collections]: a compilation makes many objects that stay, which is what a full collection waits for. It then
    goes through all that torch and the program have loaded: a fifth of a second, a third of BERT's first call. Young
    objects are collected as before, a little less often, so that garbage of the compilation does not pile up. The
    program's thresholds come back when the last thread has compiled, unless the program has set others meanwhile; a
    full collection comes when the program's own objects ask for one.
    """
    _postponement.begin()
    try:
        yield
    finally:
        _postponement.end()
