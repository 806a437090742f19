"""Thread-wide switches that a graph may change (grad mode, autocast): read, restored, compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from framesmith_guards.kinds.state import AUTOCAST_DEVICES
from framesmith_guards.torch_adapter import unstable


@dataclass(frozen=True)
class Ambient:
    """The switches at one moment; `autocast` is (enabled, dtype) for each of AUTOCAST_DEVICES."""

    grad: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    cache: bool
    nesting: int

    @property
    def any_autocast(self) -> bool:
        return any(enabled for enabled, _ in self.autocast)


def without_autocast(state: Ambient) -> Ambient:
    """Return `state` with autocast off on every device."""
    return replace(state, autocast=tuple((False, dtype) for _, dtype in state.autocast))


def read() -> Ambient:
    autocast = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES)
    return Ambient(torch.is_grad_enabled(), autocast, torch.is_autocast_cache_enabled(), _nesting())


def write(state: Ambient) -> None:
    """Set this thread's switches to `state`."""
    unstable.set_grad_enabled(state.grad)
    for device, (enabled, dtype) in zip(AUTOCAST_DEVICES, state.autocast, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(state.cache)
    # An exception inside an autocast region leaves its nesting behind; at a nesting above zero the cache of casted
    # weights would never be cleared again, and go stale.
    while _nesting() > state.nesting:
        torch.autocast_decrement_nesting()


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


@contextmanager
def preserved() -> Iterator[Ambient]:
    """Restore the switches at the end, whatever the body did; yields those at the start."""
    state = read()
    try:
        yield state
    finally:
        write(state)
