"""What tracing gathers: guards, modules and changes of torch's global state; each can be checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from framesmith_guards.contexts.checkpoints import Checkpoint
from framesmith_guards.guard import Guard, GuardsSet
from framesmith_guards.kinds.state import AUTOCAST_DEVICES


class GuardsContext:
    """The guards of a trace, and the relations between its sources that layers below the tracer found."""

    def __init__(self, debug_stacks: bool = False) -> None:
        self.guards = GuardsSet(debug_stacks=debug_stacks)
        self.relations = GuardsSet()
        self._installing = True

    def add(self, guard: Guard) -> bool:
        """Install a guard; False if it was there or installing is suspended."""
        return self._installing and self.guards.add(guard)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Install no guards for a while: what is traced meanwhile is guarded elsewhere."""
        previous, self._installing = self._installing, False
        try:
            yield
        finally:
            self._installing = previous

    def checkpoint(self) -> Checkpoint[Guard, None]:
        """The guards installed so far."""
        return Checkpoint.of(dict.fromkeys(self.guards))

    def restore(self, state: Checkpoint[Guard, None]) -> None:
        """Drop the guards installed since."""
        self.guards.replace(state.entries)


class ModuleContext:
    """The modules that a trace has met, by the name under which its graph holds them."""

    def __init__(self) -> None:
        self.modules: dict[str, torch.nn.Module] = {}

    def checkpoint(self) -> Checkpoint[str, torch.nn.Module]:
        """The modules met so far."""
        return Checkpoint.of(self.modules)

    def restore(self, state: Checkpoint[str, torch.nn.Module]) -> None:
        """Forget the modules met since."""
        self.modules = dict(state.entries)


@dataclass(frozen=True)
class Setting:
    """A piece of torch's global state that traced code may change: how to read and how to set it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _autocast_settings(device: str) -> tuple[Setting, ...]:
    return (
        Setting(
            f"autocast_enabled[{device}]",
            lambda: torch.is_autocast_enabled(device),
            lambda value: torch.set_autocast_enabled(device, value),
        ),
        Setting(
            f"autocast_dtype[{device}]",
            lambda: torch.get_autocast_dtype(device),
            lambda value: torch.set_autocast_dtype(device, value),
        ),
    )


SETTINGS: Final = (
    Setting("grad_enabled", torch.is_grad_enabled, torch._C._set_grad_enabled),
    Setting("default_dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting(
        "deterministic",
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    Setting("matmul_precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Setting("autocast_cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *(setting for device in AUTOCAST_DEVICES for setting in _autocast_settings(device)),
)


class GlobalContext:
    """Torch's global state while tracing: traced code changes it, and a failed attempt must undo that."""

    def __init__(self) -> None:
        self.initial = self.checkpoint()

    def checkpoint(self) -> Checkpoint[str, Any]:
        """The settings as they are now."""
        return Checkpoint.of({setting.name: setting.read() for setting in SETTINGS})

    def restore(self, state: Checkpoint[str, Any]) -> None:
        """Set every setting that differs from the snapshot back."""
        for setting in SETTINGS:
            value = state.entries[setting.name]
            if setting.read() != value:
                setting.write(value)

    def changed(self) -> frozenset[str] | None:
        """The settings that differ from when this context was made; None if none does."""
        return self.checkpoint().diff(self.initial)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Put the settings back afterwards, whatever happens meanwhile."""
        state = self.checkpoint()
        try:
            yield
        finally:
            self.restore(state)
