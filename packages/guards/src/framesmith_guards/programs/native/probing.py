"""Whether native programs can be used here, and native facts about tensors, probed once per process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import torch

from framesmith_guards.kinds.leaves import HAS_GRAD_DTYPE, HOOKS
from framesmith_guards.torch_adapter import unstable
from framesmith_guards.values.tensors import PLAIN_TYPES, TensorSpec, dispatch_keys

LIBRARIES: Final = ("libtorch_cpu.so", "libtorch_cpu.dylib")


@functools.cache
def extension() -> tuple[ModuleType | None, str | None]:
    """Return the compiled extension, or why there is none."""
    try:
        from framesmith_guards import _check
    except ImportError as error:
        return None, f"the compiled extension cannot be imported: {error}"
    return _check, None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Make real tensors, whatever modes the caller is in."""
    with (
        unstable.disable_current_modes(),
        unstable.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield


def _probes() -> Iterator[torch.Tensor]:
    plain = torch.empty(2, 3)
    yield plain
    yield torch.nn.Parameter(torch.empty(4, 1, 2))
    yield torch.empty((), dtype=torch.int64)
    yield unstable.neg_view(plain)
    yield unstable.conj(torch.empty(7, dtype=torch.complex64))
    yield torch.empty(5, 0, device="meta")
    with torch.inference_mode():
        yield torch.empty(3)


def _probe(tensor: torch.Tensor) -> tuple[Any, ...]:
    storage: Any = tensor.untyped_storage()
    handle = int(tensor._cdata)
    return (tensor, handle, dispatch_keys(tensor), tuple(tensor.size()), int(storage._cdata), tensor.data_ptr())


@functools.cache
def why_no_tensors() -> str | None:
    """Return why tensors cannot be checked natively with this torch; None if they can."""
    native, reason = extension()
    if native is None:
        return reason
    folder = Path(torch.__file__).parent / "lib"
    library = next((folder / name for name in LIBRARIES if (folder / name).is_file()), None)
    if library is None:
        return f"none of {', '.join(LIBRARIES)} is in torch's folder"
    base = next(cls for cls in torch.Tensor.__mro__ if cls is not torch.Tensor)
    descriptor = vars(base).get("requires_grad")
    if descriptor is None or sys.maxsize < 2**32:
        return "this torch keeps requires_grad elsewhere, or this is no 64-bit process"
    with undisturbed():
        try:
            reason = native.tensors_setup(str(library), base, descriptor, tuple(map(_probe, _probes())))
            if reason is None:
                native.tensors_use_bytes(_bytes_show_every_change(native))
                _find_grad(native)
                native.leaves_setup(tuple(map(vars(base).get, ("is_leaf", *HOOKS, "grad_dtype"))), _leaf_probes())
        except Exception as error:  # any name that a future torch lacks
            reason = f"probing failed: {type(error).__name__}: {error}"
    return reason


def _find_grad(native: ModuleType) -> None:
    """Use torch's own method where its result is the attribute's."""
    native.tensors_find_grad(*_grad_probes())


def _grad_probes() -> tuple[torch.Tensor, ...]:
    """Return tensors with various reasons for their requires_grad."""
    unset, leaf, used = (torch.ones(2, requires_grad=True) for _ in range(3))
    unset.requires_grad_(False)
    used.grad = torch.ones(2)  # a backward pass would start the engine's threads, after which forks cannot run one
    detached = leaf * 2
    others = (torch.nn.Parameter(torch.ones(3)), torch.ones(2, 2).t(), *_in_place())
    return (torch.ones(2), unset, detached.detach_(), leaf * 2, leaf, used, *others)


def _leaf_probes() -> tuple[torch.Tensor, ...]:
    """Return tensors for `leaves_setup`."""
    leaf, free = (torch.ones(2, requires_grad=True) for _ in range(2))
    hooked: Any = torch.ones(2, requires_grad=True)
    hooked.register_hook(lambda grad: None)
    hooked.register_post_accumulate_grad_hook(lambda tensor: None)
    others = [
        torch.nn.Parameter(torch.ones(3, dtype=torch.float64)),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2),
    ]
    if HAS_GRAD_DTYPE:
        setattr(free, "grad_dtype", None)  # noqa: B010 - not in all stubs of torch
    return (leaf, hooked, free, leaf * 2, (leaf * 2).detach(), *others)


def _in_place() -> tuple[torch.Tensor, ...]:
    """Return tensors whose requires_grad came from being written, and from being a view."""
    leaf, written = torch.ones(4, requires_grad=True), torch.ones(4)
    written.mul_(leaf)
    base = torch.ones(4)
    view = base[1:]
    base.mul_(leaf)
    return written, base, view, leaf[1:]


_CHANGES: Final[tuple[Callable[[torch.Tensor], object], ...]] = (
    lambda t: t.resize_(3, 5),
    lambda t: t.resize_(4, 2, 3),
    lambda t: t.t_(),
    lambda t: t.as_strided_((2, 3), (1, 2)),
    lambda t: t.squeeze_(),
    lambda t: t.unsqueeze_(0),
    lambda t: setattr(t, "data", torch.empty(2, 3, dtype=torch.float64)),
    lambda t: setattr(t, "data", torch.empty(2, 3, dtype=torch.complex64).conj()),
    lambda t: setattr(t, "data", unstable.neg_view(torch.empty(2, 3))),
    lambda t: setattr(t, "data", torch.empty(3, 2).t()),
)


def _bytes_show_every_change(native: ModuleType) -> bool:
    """Whether a tensor's bytes differ after each change of metadata, and stay the same without one."""
    for change in _CHANGES:
        tensor = torch.empty(2, 3) if change is not _CHANGES[4] else torch.empty(1, 3)
        before = native.tensors_probe(tensor)
        tensor.fill_(1.0)
        if native.tensors_probe(tensor) != before:
            return False
        change(tensor)
        if native.tensors_probe(tensor)[-1] == before[-1]:
            return False
    return True


@functools.cache
def dtype_number(dtype: torch.dtype) -> int | None:
    """Return the shim's number of a dtype; None where there are no tensors of it."""
    native, _ = extension()
    assert native is not None
    try:
        with undisturbed():
            number: int = native.tensors_probe(torch.empty(0, dtype=dtype, device="cpu"))[0]
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return number


@functools.cache
def _device_number(device_type: str) -> int | None:
    native, _ = extension()
    assert native is not None
    number: int | None = native.tensors_device_type(device_type)
    return number


def native_spec(spec: TensorSpec) -> tuple[Any, ...] | None:
    """Return the native description of a spec; None if it has to be checked in Python."""
    if why_no_tensors() is not None or spec.sizes is None or spec.strides is None:
        return None
    pytype: Any = spec.pytype.get()
    if pytype not in PLAIN_TYPES or spec.layout is not torch.strided:
        return None
    dtype, device = dtype_number(spec.dtype), _device_number(spec.device.type)
    if dtype is None or device is None:
        return None
    index = cast("int | None", spec.device.index)
    index = -1 if index is None else index
    return (pytype, spec.dispatch_keys, dtype, device, index, spec.requires_grad, spec.sizes, spec.strides)
