"""Warnings that nobody is to hear: of what was told already, or of what is only tried."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class _Pattern:
    """In a filter of `warnings`, the pattern of module names that matches what is warned of in one thread."""

    def __init__(self, beginning: str) -> None:
        self.beginning = beginning
        self.thread = threading.get_ident()
        self.over = False

    def match(self, module: str) -> bool:
        """Whether a warning of this module is ignored."""
        return not self.over and threading.get_ident() == self.thread and module.startswith(self.beginning)


@contextmanager
def without_warnings(modules: str = "") -> Iterator[None]:
    """Ignore what this thread is warned of, by modules whose names begin so: it was told already, or is no news.

    Unlike `warnings.catch_warnings`, it leaves other threads alone, and what was told to users once is not told again.
    """
    pattern = _Pattern(modules)
    entry: Any = ("ignore", None, Warning, pattern, 0)
    filters: Any = warnings.filters
    filters.insert(0, entry)
    try:
        yield
    finally:
        pattern.over = True  # someone may have taken a copy of the list meanwhile
        if entry in filters:
            filters.remove(entry)


def quietly(call: Callable[[], T]) -> T:
    """What `call` returns, without the warnings of the kernels it runs.

    Torch keeps those until the innermost of its methods that Python called has ended, and here that is another one.
    """
    results: list[T] = []

    def called(element: float) -> float:
        results.append(call())
        return element

    with without_warnings():
        torch.zeros(1, device="cpu").apply_(called)
    return results[0]
