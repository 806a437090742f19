"""A cache whose values are made once, also for threads that ask at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from framesmith_backends.launch.background import at_work

Made = TypeVar("Made")


class once(Generic[Made]):
    """`functools.cache` by positional arguments, but threads that meet wait: compiling takes tenths of a second."""

    def __init__(self, make: Callable[..., Made]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._made: dict[tuple[Hashable, ...], Made] = {}

    def __call__(self, *given: Hashable) -> Made:
        if given not in self._made:
            with at_work(), self._lock:
                if given not in self._made:
                    self._made[given] = self._make(*given)
        return self._made[given]

    def cache_clear(self) -> None:
        """Forget all of it."""
        self._made.clear()
