"""Choosing backends: by name through the entry-point group `framesmith.backends`, by device, or any callable.

A callable backend takes `(graph_module, example_inputs)` as torch.compile's custom backends do, and returns a callable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

import framesmith_backends
from framesmith.choices import check_choice
from framesmith_aten.contract import Backend, FixedSizes, NeedsMachine
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.nested import tensors_in
from framesmith_backends import find_backend

#: Backends that "auto" chooses from, by the devices that each declares, in this order.
AUTO_BACKENDS = ("cuda", "cpu")
#: "eager" names two things. As `compile(backend=...)`: captured graphs run as they are, without aot. As a backend of
#: ATen graphs, which users call "aot_eager": aot, then one ATen call after the other.
WITHOUT_AOT = ATEN_CALLS = "eager"
#: "auto" chooses by the device of the graph's tensors; every other name is an entry point, or "aot_eager".
AUTO = "auto"
#: The option of ahead-of-time autograd, whatever the backend: a number from 0 to 1.
MEMORY_BUDGET = "memory_budget"
OPTIONS_OF_AOT = frozenset({MEMORY_BUDGET})

CustomBackend = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]]
BackendLike = str | Backend | CustomBackend


def list_backends() -> list[str]:
    """Names that `compile(backend=...)` takes, "auto" included."""
    return sorted({AUTO, "aot_eager", *framesmith_backends.list_backends()})


def resolve_backend(backend: object) -> BackendLike:
    """A checked backend: a known name, a backend object, or a callable.

    Raises TypeError or ValueError, and RuntimeError where a named backend cannot run on this machine.
    """
    if isinstance(backend, str):
        name = check_choice("backend", backend, list_backends())
        if name in framesmith_backends.list_backends() and (problem := why_not_here(find_backend(name))) is not None:
            raise RuntimeError(f"the backend {name!r} cannot run here: {problem}")
        return name
    if isinstance(backend, Backend):
        return backend
    is_module = isinstance(backend, torch.nn.Module)  # which has a `compile` of torch's
    if not is_module and hasattr(backend, "name") and hasattr(backend, "compile"):
        missing = [name for name in vars(Backend) if not (name.startswith("_") or hasattr(backend, name))]
        raise TypeError(f"the backend object {type(backend).__name__} lacks {', '.join(missing)}")
    if callable(backend):
        return cast(CustomBackend, backend)
    raise TypeError(f"backend must be a name, a backend object or a callable; got {type(backend).__name__}")


def why_not_here(backend: Backend) -> str | None:
    """Return what the machine lacks for the backend's kernels, or None."""
    return backend.why_not_here() if isinstance(backend, NeedsMachine) else None


def backend_options(backend: BackendLike) -> set[str]:
    """The option names a backend takes, aot's included; for "auto", those of every backend it may choose."""
    if backend == AUTO:
        return {name for candidate in AUTO_BACKENDS for name in _options_of_name(candidate)} | OPTIONS_OF_AOT
    if isinstance(backend, str):
        return set() if backend == WITHOUT_AOT else _options_of_name(backend) | OPTIONS_OF_AOT
    return {*backend.options} | OPTIONS_OF_AOT if isinstance(backend, Backend) else set()


def takes_mode_here(backend: BackendLike) -> bool:
    """Whether the backend takes a mode; for "auto", whether one does that can run on this machine."""
    if backend == AUTO:
        takers = (name for name in AUTO_BACKENDS if "mode" in _options_of_name(name))
        return any(why_not_here(find_backend(name)) is None for name in takers)
    return "mode" in backend_options(backend)


def _options_of_name(name: str) -> set[str]:
    try:
        return set(find_backend(name).options) if name in framesmith_backends.list_backends() else set()
    except ImportError:
        return set()


def backend_for(backend: str | Backend, inputs: Sequence[Any], gm: fx.GraphModule | None = None) -> Backend:
    """The backend object for graphs of such inputs; "auto" goes by their devices, and by what the graph `gm` makes.

    Raises what `find_backend` raises.
    """
    if backend == AUTO:
        devices = {one.device.type for one in tensors_in(inputs)}  # others are numbers
        if devices <= {"cpu"} and gm is not None and _is_mostly_on_gpu(gm):
            devices.add("cuda")
        return _by_device(devices or {"cpu"})
    if isinstance(backend, str):
        return find_backend(ATEN_CALLS if backend == "aot_eager" else backend)
    return backend


def _is_mostly_on_gpu(gm: fx.GraphModule) -> bool:
    """Whether more of the graph's calls give tensors on a GPU than on the CPU: made there, or moved there."""
    made: Counter[str] = Counter()
    for node in gm.graph.nodes:
        if node.op not in ("placeholder", "output"):
            made.update({tensor.device.type for tensor in tensors_in(node.meta.get("val", EXAMPLE.get(node)))})
    return made["cuda"] > made["cpu"]


def is_for_fixed_sizes(backend: BackendLike) -> bool:
    """Whether a backend, or the one that "auto" goes by on this machine, makes kernels for fixed sizes alone."""
    if backend == AUTO:
        if not torch.cuda.is_available():
            return False
        backend = "cuda"
    if isinstance(backend, str):
        try:
            backend = backend_for(backend, ())
        except ImportError:
            return False
    return isinstance(backend, FixedSizes) and backend.fixed_sizes


def _by_device(devices: set[str]) -> Backend:
    """The backend that makes kernels for one of the devices; what else is on the CPU it leaves to ATen calls."""
    for name in AUTO_BACKENDS:
        try:
            found = find_backend(name)
        except ImportError:
            continue
        if devices & set(found.devices) and devices <= {*found.devices, "cpu"}:
            return found
    return find_backend(ATEN_CALLS)
