"""Suppresses warnings that are repeated, or that come from a probe."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class _Pattern:
    """A `module` pattern of a filter of `warnings` that matches in one thread alone."""

    def __init__(self, beginning: str) -> None:
        self.beginning = beginning
        self.thread = threading.get_ident()
        self.over = False

    def match(self, module: str) -> bool:
        return not self.over and threading.get_ident() == self.thread and module.startswith(self.beginning)


@contextmanager
def without_warnings(modules: str = "") -> Iterator[None]:
    """Ignore this thread's warnings from modules whose names begin with `modules`.

    Unlike `warnings.catch_warnings` it affects no other thread, and warnings that users have seen stay seen.
    """
    pattern = _Pattern(modules)
    entry: Any = ("ignore", None, Warning, pattern, 0)
    filters: Any = warnings.filters
    filters.insert(0, entry)
    try:
        yield
    finally:
        pattern.over = True  # another thread may have copied the list of filters meanwhile
        if entry in filters:
            filters.remove(entry)


def quietly(call: Callable[[], T]) -> T:
    """Return the result of `call`, without the warnings of the kernels it runs.

    Torch holds those until the innermost of its Python methods returns, so the call runs inside another one.
    """
    results: list[T] = []

    def called(element: float) -> float:
        results.append(call())
        return element

    with without_warnings():
        torch.zeros(1, device="cpu").apply_(called)
    return results[0]
