"""`torch.compiler.reset()` also resets Framesmith.

Note [Loading]: torch imports its compiler when one of its switches is first used, which may be `reset` itself. A finder
in `sys.meta_path` waits for that import and removes itself afterwards. It then installs an object among the backends
that torch resets, and the stance as the setting by which frames are diverted.
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
    """An object among the backends of torch's compiler; a reset calls and then drops each backend."""

    def reset(self) -> None:
        """Call every listener."""
        for listener in RESET_LISTENERS:
            listener()


RESET_BACKEND: Final = ResetBackend()


def register() -> None:
    """Put `RESET_BACKEND` among the backends of torch's compiler, if that is loaded."""
    _join(torch_names.read(torch_names.BACKENDS))


def _join(backends: object) -> None:
    if isinstance(backends, dict):
        backends.setdefault(id(RESET_BACKEND), RESET_BACKEND)


def connect(module: ModuleType) -> None:
    """Connect to torch's compiler, of which `module` holds the stance."""
    framesmith_frames.divert_by(vars(module), torch_names.STANCE.name, stances.diversion)
    for place in (torch_names.STANCE, torch_names.BACKENDS):
        if not hasattr(module, place.name):
            torch_names.warn_of_missing(place)
    _join(getattr(module, torch_names.BACKENDS.name, None))


class _Connecting(Loader):
    """A module's own loader, which calls `connect` once the module is loaded."""

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
    """A finder that waits for the import of one module and declines all others."""

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
    """Connect to torch's compiler now, or as soon as it is loaded."""
    module = sys.modules.get(torch_names.EVAL_FRAME)
    if module is not None:
        connect(module)
    elif FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
