"""`torch.compiler.reset()` heard: what torch's compiler does to forget, Framesmith does with it.

Note [Loading]: torch imports its compiler when one of its switches is first used, and the first may be `reset` itself.
A finder in front of `sys.meta_path` waits for that import, and goes once it has come. What is put in place then: an
object among the backends that torch resets, and the stance as the setting by which frames are diverted.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import framesmith_frames
from framesmith_dynamo.torch_switches import stances, torch_names

#: Called when torch's compiler is reset.
RESET_LISTENERS: Final[list[Callable[[], object]]] = [framesmith_frames.reset]


class ResetBackend:
    """An object among the backends of torch's compiler, each of which a reset calls, and then forgets."""

    def reset(self) -> None:
        """Call every listener."""
        for listener in RESET_LISTENERS:
            listener()


RESET_BACKEND: Final = ResetBackend()


def register() -> None:
    """Put `RESET_BACKEND` among the backends that the next reset calls, where torch's compiler is loaded."""
    _join(torch_names.read(torch_names.BACKENDS))


def _join(backends: object) -> None:
    if isinstance(backends, dict):
        backends.setdefault(id(RESET_BACKEND), RESET_BACKEND)


def connect(module: ModuleType) -> None:
    """Hear what is said to torch's compiler, of which `module` is the one with the stance."""
    framesmith_frames.divert_by(vars(module), torch_names.STANCE.name, stances.diversion)
    for place in (torch_names.STANCE, torch_names.BACKENDS):
        if not hasattr(module, place.name):
            torch_names.warn_of_missing(place)
    _join(getattr(module, torch_names.BACKENDS.name, None))


class _Connecting(Loader):
    """A module's own loader, and `connect` once it is loaded."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(FINDER)
        connect(module)


class _Finder(MetaPathFinder):
    """Waits for the import of one module; all others are found as ever."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != torch_names.EVAL_FRAME:
            return None
        for finder in [other for other in sys.meta_path if other is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Connecting(spec.loader)
                return spec
        return None


FINDER: Final = _Finder()


def listen() -> None:
    """Hear what is said to torch's compiler from now on, or from when it is loaded."""
    module = sys.modules.get(torch_names.EVAL_FRAME)
    if module is not None:
        connect(module)
    elif FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
