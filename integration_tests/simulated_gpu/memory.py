"""Tensors of the simulated GPU and of the CPU over the same memory."""

from __future__ import annotations

import ctypes

import torch


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as a tensor of the CPU."""
    storage = tensor.untyped_storage()
    count = storage.nbytes()
    made = torch.empty(0, dtype=tensor.dtype)
    if count == 0:
        return made.as_strided(tensor.shape, tensor.stride())
    held = (ctypes.c_uint8 * count).from_address(storage.data_ptr())
    whole = torch.frombuffer(held, dtype=torch.uint8).untyped_storage()
    return made.set_(whole, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload, no-any-return]


def is_on_gpu(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def is_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of the CPU are parts of one memory."""
    return one is other or (one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last one."""
    if tensor.numel() == 0:
        return 0
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()
