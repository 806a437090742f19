"""Torch's state for native programs: a snapshot object of torch's own C code, and the few reads it does not cover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from framesmith_guards.guard import Guard
from framesmith_guards.state import BY_KIND

COVERED: Final = frozenset({"GRAD_MODE", "AUTOCAST", "DEFAULT_DTYPE", "DETERMINISTIC", "NUM_THREADS"})
"""What torch's GlobalStateGuard compares, all of it at once."""

Row = tuple[Callable[[], object], object]


def _no_modes(expected: object) -> Row | None:
    return None if expected else (torch._C._len_torch_function_stack, 0)


def _no_dispatch_modes(expected: object) -> Row | None:
    return None if expected else (torch._C._len_torch_dispatch_stack, 0)


def _no_transforms(expected: object) -> Row | None:
    return None if expected else (torch._C._functorch.peek_interpreter_stack, None)


def _no_hooks(expected: object) -> Row | None:
    if expected != (True,):
        return None
    return (functools.partial(torch._C._autograd._top_saved_tensors_default_hooks, False), None)


_CHEAPER: Final[dict[str, Callable[[object], Row | None]]] = {
    "TORCH_FUNCTION_MODES": _no_modes,
    "DEFAULT_DEVICE": lambda expected: None if expected is not None else (torch._C._len_torch_function_stack, 0),
    "TORCH_DISPATCH_MODES": _no_dispatch_modes,
    "FUNCTORCH_STACK": _no_transforms,
    "MATMUL_PRECISION": lambda expected: (torch._C._get_float32_matmul_precision, expected),
}
"""A read of C code that implies the row's, for the usual expectation; None if it does not."""


def _renew() -> Callable[[], Callable[[], bool]] | None:
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    snapshot = getattr(guards, "GlobalStateGuard", None)
    if snapshot is None or not hasattr(snapshot, "check"):
        return None
    make: Any = snapshot
    return lambda: make().check


def rows_of(guards: Sequence[Guard]) -> tuple[Row, ...]:
    """What has to be read besides the snapshot."""
    rows: dict[Row, None] = {}
    for guard in guards:
        kind = guard.kind.name
        if kind in COVERED:
            continue
        cheaper = _CHEAPER.get(kind, lambda _: None)(guard.expected)
        rows[cheaper or (BY_KIND[kind].read, guard.expected)] = None
    return tuple(rows)


def describe_state(guards: Sequence[Guard]) -> tuple[Any, ...] | None:
    """The native description of a comparison of state: (make a snapshot, further reads, compare everything)."""
    if not guards:
        return None
    readers = tuple(BY_KIND[guard.kind.name].read for guard in guards)
    expected = tuple(guard.expected for guard in guards)

    def compare() -> bool:
        return tuple(read() for read in readers) == expected

    return (_renew(), rows_of(guards), compare)
