"""Finding backends: by name through the entry-point group `framesmith.backends`, or any callable.

A callable backend takes `(graph_module, example_inputs)` as torch.compile's custom backends do, and returns a callable.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import fx

from framesmith.choices import check_choice

GROUP = "framesmith.backends"
#: "auto" chooses by the device of the graph's tensors; every other name is an entry point.
AUTO = "auto"

CustomBackend = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]]


@runtime_checkable
class Backend(Protocol):
    """What a registered backend offers (contract of the architecture page, section 5)."""

    name: str
    devices: Collection[str]
    roles: Collection[str]
    options: Collection[str] | Mapping[str, object]

    def compile(
        self, gm: fx.GraphModule, inputs: Sequence[torch.Tensor], role: str, options: Mapping[str, object]
    ) -> Callable[[list[Any]], Sequence[Any]]:
        """A callable that takes a list of inputs, which it may empty, and returns the outputs."""

    def why_not(self, gm: fx.GraphModule) -> str | None:
        """Why this backend cannot take the graph, or None when it can."""


BackendLike = str | Backend | CustomBackend


@functools.cache
def entry_points() -> Mapping[str, importlib.metadata.EntryPoint]:
    """Registered backends by name, not loaded yet."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def list_backends() -> list[str]:
    """Names that `compile(backend=...)` takes, "auto" included."""
    return sorted({AUTO, "eager", "aot_eager", *entry_points()})


@functools.cache
def load_backend(name: str) -> Backend:
    """The backend registered under `name`. Raises ImportError saying which extra to install when it cannot load."""
    try:
        loaded = entry_points()[name].load()
    except ImportError as error:
        raise ImportError(
            f"the backend {name!r} needs a package that is not installed ({error}); "
            f"try: pip install 'framesmith-backends[{name}]'"
        ) from error
    return cast(Backend, loaded() if isinstance(loaded, type) else loaded)


def resolve_backend(backend: object) -> BackendLike:
    """A checked backend: a known name, a backend object, or a callable. Raises TypeError or ValueError."""
    if isinstance(backend, str):
        return check_choice("backend", backend, list_backends())
    if isinstance(backend, Backend):
        return backend
    if callable(backend):
        return cast(CustomBackend, backend)
    raise TypeError(f"backend must be a name, a backend object or a callable; got {type(backend).__name__}")


def backend_options(backend: BackendLike) -> set[str]:
    """The option names a backend takes; for "auto", those of every backend it may choose."""
    if backend == AUTO:
        return {name for candidate in ("cpu", "cuda") for name in _options_of_name(candidate)}
    if isinstance(backend, str):
        return _options_of_name(backend)
    return set(backend.options) if isinstance(backend, Backend) else set()


def _options_of_name(name: str) -> set[str]:
    try:
        return set(load_backend(name).options) if name in entry_points() else set()
    except ImportError:
        return set()


def choose_backend(gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Backend:
    """The backend for "auto": the one for the inputs' device that can take this graph, else eager."""
    devices = {tensor.device.type for tensor in inputs} or {"cpu"}
    for name in ("cuda", "cpu"):
        if devices <= {name, "cpu"} and name in devices and name in entry_points():
            try:
                backend = load_backend(name)
            except ImportError:
                continue
            if backend.why_not(gm) is None:
                return backend
    return load_backend("eager")
