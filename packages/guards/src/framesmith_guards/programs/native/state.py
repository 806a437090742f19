"""Torch's state for native programs: a few bits, a snapshot object of torch's own C code, and what neither covers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from framesmith_guards.guard import Guard
from framesmith_guards.kinds.state import BY_KIND
from framesmith_guards.programs.native.modes import mode_bits, readable_modes
from framesmith_guards.torch_adapter import unstable

_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "GRAD_MODE": ("grad_mode",),
    "AUTOCAST": ("autocast_state",),
    "DEFAULT_DTYPE": ("default_dtype",),
    "DETERMINISTIC": ("deterministic_algorithms", "deterministic_algorithms_warn_only"),
    "TORCH_FUNCTIONS": ("torch_function", "torch_function_all_disabled"),
    "NUM_THREADS": ("num_threads",),
    "MATMUL_PRECISION": ("allow_tf32",),
}
"""The parts of torch's GlobalStateGuard that make up a kind of state."""


def _covered() -> frozenset[str]:
    """Return the kinds that this torch's snapshot compares, by its own report."""
    snapshot = unstable.GlobalStateGuard
    try:
        parts = json.loads(snapshot().__getstate__())
    except (TypeError, ValueError, AttributeError):
        return frozenset()
    return frozenset(kind for kind, names in _PARTS.items() if all(name in parts for name in names))


COVERED: Final = _covered()
"""The kinds that torch's GlobalStateGuard compares, all of it at once."""

Row = tuple[Callable[[], object], object]


Rows = tuple[Row, ...]


_count, _mode_at = unstable.len_torch_function_stack, unstable.get_function_stack_at


def _only_mode() -> type | None:
    """Return the type of the active torch-function mode; None if there is none, or several."""
    return type(_mode_at(0)) if _count() == 1 else None


def _only_device() -> torch.device | None:
    """Return the default device if a DeviceContext is the only active mode; else None."""
    mode: Any = _mode_at(0) if _count() == 1 else None
    return mode.device if type(mode) is unstable.DeviceContext else None


def _modes(expected: tuple[type, ...]) -> Rows | None:
    if not expected:
        return ((_count, 0),)
    return ((_only_mode, expected[0]),) if len(expected) == 1 else None


def _device(expected: str | None) -> Rows | None:
    if expected is None:
        return ((_count, 0),)
    # Fails with several modes; the full comparison then decides.
    return ((_only_device, torch.device(expected)),)


def _no_dispatch_modes(expected: object) -> Rows | None:
    return None if expected else ((unstable.len_torch_dispatch_stack, 0),)


def _not_tracing(expected: object) -> Rows | None:
    return None if expected else ((unstable.get_tracing_state, None),)


def _no_transforms(expected: object) -> Rows | None:
    return None if expected else ((unstable.peek_interpreter_stack, None),)


def _no_hooks(expected: object) -> Rows | None:
    if expected != (True,):
        return None
    top = functools.partial(unstable.top_saved_tensors_default_hooks, True)
    return ((top, None), (unstable.saved_tensors_hooks_is_enabled, True))


_CHEAPER: Final[dict[str, Callable[[Any], Rows | None]]] = {
    "TORCH_FUNCTION_MODES": _modes,
    "DEFAULT_DEVICE": _device,
    "TORCH_DISPATCH_MODES": _no_dispatch_modes,
    "JIT_TRACING": _not_tracing,
    "FUNCTORCH_STACK": _no_transforms,
    "SAVED_TENSOR_HOOKS": _no_hooks,
}
"""Reads of C code that imply the row's, for the usual expectation; None if there are none."""

_INACTIVE: Final[dict[str, tuple[object, tuple[str, ...]]]] = {
    "TORCH_FUNCTION_MODES": ((), ("FUNCTION_MODE",)),
    "DEFAULT_DEVICE": (None, ("FUNCTION_MODE",)),
    "TORCH_DISPATCH_MODES": ((), ("DISPATCH_MODE",)),
    "JIT_TRACING": (False, ("TRACING",)),
    "FUNCTORCH_STACK": ((), ("TRANSFORM",)),
    "SAVED_TENSOR_HOOKS": ((True,), ("SAVED_TENSOR_HOOKS", "NO_SAVED_TENSOR_HOOKS")),
    "INFERENCE_MODE": (False, ("INFERENCE_MODE",)),
}
"""By kind: the usual expectation, and the modes of which none is active then (`native.modes`)."""


def _bits_of(guard: Guard, readable: int) -> int:
    """Return the bits that imply the guard while none of them is set; 0 if there are none."""
    usual, names = _INACTIVE.get(guard.kind.name, (None, ()))
    bits = mode_bits(*names)
    return bits if guard.expected == usual and bits & ~readable == 0 else 0


def _renew() -> Callable[[], Callable[[], bool]] | None:
    snapshot = unstable.GlobalStateGuard
    if snapshot is None:
        return None

    def renew() -> Callable[[], bool]:
        check: Callable[[], bool] = snapshot().check
        return check

    return renew


def cheap_reads(guards: Sequence[Guard]) -> tuple[int, Rows]:
    """Return the reads besides the snapshot: bits of modes that are inactive, and rows for the rest."""
    readable = readable_modes()
    inactive = 0
    rows: dict[Row, None] = {}
    for guard in guards:
        kind = guard.kind.name
        bits = _bits_of(guard, readable)
        inactive |= bits
        if bits or kind in COVERED:
            continue
        cheaper = _CHEAPER[kind](guard.expected) if kind in _CHEAPER else None
        rows.update(dict.fromkeys(((BY_KIND[kind].read, guard.expected),) if cheaper is None else cheaper))
    return inactive, tuple(rows)


def describe_state(guards: Sequence[Guard]) -> tuple[Any, ...] | None:
    """Return the native description of a comparison of state.

    It is (bits of inactive modes, make a snapshot, further reads, compare everything).
    """
    if not guards:
        return None
    readers = tuple(BY_KIND[guard.kind.name].read for guard in guards)
    expected = tuple(guard.expected for guard in guards)

    def compare() -> bool:
        return tuple(read() for read in readers) == expected

    inactive, rows = cheap_reads(guards)
    return (inactive, _renew(), rows, compare)
