"""Fakes of ordinary real tensors, made about eight times faster than by torch's describer.

Only for tensors described by type, dtype, device, sizes, strides and requires_grad that share no storage with another;
the rest goes torch's own way. The same memos are filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from framesmith_guards.torch_adapter import FakeTensor, FakeTensorMode, no_dispatch, unstable
from framesmith_guards.values.tensors import dispatch_keys

_TYPES: Final[tuple[object, ...]] = (torch.Tensor, torch.nn.Parameter)


def plain_fake(mode: FakeTensorMode, tensor: torch.Tensor) -> FakeTensor | None:
    """Return the fake of `tensor` with static sizes, or None if torch has to make it."""
    with unstable.DisableTorchFunction():
        if not _is_plain(tensor) or mode.propagate_real_tensors:
            return None
        converter: Any = mode.fake_tensor_converter
        storages = converter.meta_converter
        storage = tensor.untyped_storage()
        if storage in storages.describer.lookup_storage:
            return None
        with no_dispatch():
            meta = torch.empty_strided(
                tensor.size(),
                tensor.stride(),
                dtype=tensor.dtype,
                device="meta",
                requires_grad=tensor.requires_grad,
            )
            if meta.untyped_storage().nbytes() != storage.nbytes():
                return None
            fake: FakeTensor = FakeTensor(mode, meta, tensor.device)
        if type(tensor) is torch.nn.Parameter:
            fake._is_param = True
        converter.set_tensor_memo(tensor, fake)
        storages.storage_memo[storages.describer.get_storage_id(storage)] = fake.untyped_storage()
        return fake


def in_memory_of(
    mode: FakeTensorMode,
    base: torch.Tensor,
    shape: Sequence[Any],
    stride: Sequence[Any],
    offset: Any,
    dtype: torch.dtype | None = None,
) -> FakeTensor:
    """Return a fake of this layout in the storage of the fake `base`, by default of its dtype. Adds no guard."""
    env: Any = mode.shape_env
    with no_dispatch(), env.suppress_guards():
        meta = torch.empty(0, dtype=dtype or base.dtype, device="meta")
        meta.set_(base.untyped_storage(), offset, shape, stride)
        return FakeTensor(mode, meta, base.device)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor._base is None and tensor.storage_offset() == 0 and is_described_by_layout(tensor)


def is_described_by_layout(tensor: torch.Tensor) -> bool:
    """Whether type, dtype, device, sizes, strides, requires_grad and memory describe the tensor fully.

    So they do a view that autograd does not track: neither it nor its base requires gradients.
    """
    return (
        type(tensor) in _TYPES
        and tensor.layout is torch.strided
        and tensor.is_leaf
        and (tensor._base is None or not (tensor.requires_grad or tensor._base.requires_grad))
        and tensor.grad is None
        and not torch.is_inference_mode_enabled()
        and unstable.peek_interpreter_stack() is None
        and dispatch_keys(tensor) == _usual_keys(tensor.device, tensor.dtype)
        and (not tensor.requires_grad or getattr(tensor, "grad_dtype", tensor.dtype) == tensor.dtype)
    )


_KEYS: Final[dict[tuple[torch.device, torch.dtype], int]] = {}


def _usual_keys(device: torch.device, dtype: torch.dtype) -> int:
    """Return the dispatch keys of a plain tensor: not conjugate, negative, quantized, wrapped, ..."""
    known = _KEYS.get((device, dtype))
    if known is None:
        with no_dispatch():
            try:
                known = dispatch_keys(torch.empty(0, device=device, dtype=dtype))
            except (RuntimeError, NotImplementedError):
                known = -1
        _KEYS[device, dtype] = known
    return known
