"""Our own matrix matmul in this process: machine code made once and kept on disk, called with raw pointers.

`framesmith_backends::matmul(a, b, bias)` is the operator that plans written in Python call.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from framesmith_backends.launch.llvm.engine import engine_of, machine
from framesmith_backends.native_ops.base import operator
from framesmith_backends.native_ops.matmul.kernel import NAMES, render_matmuls

_KINDS: dict[str, Any] = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "float": ctypes.c_float}


class NativeMatmul:
    """Machine code of `fs_matmul`; `address` is the function's, valid while this object lives."""

    def __init__(self, text: str) -> None:
        self.engine = engine_of("matmul", text)
        self.address = self.engine.get_function_address("fs_matmul")
        kinds = [_KINDS[name.split()[0]] for name in NAMES]
        self.call = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(self.address)

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        bias: torch.Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> torch.Tensor:
        """c = alpha * (a @ b) + beta * c + bias, of float32 matrices or of batches of them; c's rows are contiguous."""
        batches, steps = (1, (0, 0, 0)) if a.dim() == 2 else (a.shape[0], (a.stride(0), b.stride(0), c.stride(0)))
        failed = self.call(
            a.data_ptr(), b.data_ptr(), c.data_ptr(), None if bias is None else bias.data_ptr(),
            a.shape[-2], b.shape[-1], a.shape[-1], a.stride(-2), a.stride(-1), b.stride(-2), b.stride(-1),
            c.stride(-2), alpha, beta, batches, *steps,
        )  # fmt: skip
        if failed:
            raise MemoryError("a matrix matmul found no memory for its packed operands")
        return c


@functools.cache
def native_matmul() -> NativeMatmul:
    """Made at its first use."""
    return NativeMatmul(render_matmuls(machine().target))


def matmul(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """a @ b + bias for float32 matrices on the CPU; the operands may have any strides."""
    for one in (a, b) if bias is None else (a, b, bias):
        if one.dtype != torch.float32:
            raise TypeError(f"framesmith_backends::matmul multiplies torch.float32, got {one.dtype}")
    biases = b.shape[1:] if bias is None else bias.shape
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or biases != b.shape[1:]:
        shapes = ", ".join(str(list(one.shape)) for one in (a, b, bias) if one is not None)
        raise ValueError(f"framesmith_backends::matmul: expected shapes [m, k], [k, n] and a bias of [n], got {shapes}")
    if bias is not None and bias.stride() != (1,):
        bias = bias.contiguous()
    return native_matmul()(a, b, a.new_empty((a.shape[0], b.shape[1])), bias)


def matmul_shape(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What `matmul` gives, without its numbers."""
    return a.new_empty((a.shape[0], b.shape[1]))


OPERATOR = operator("matmul(Tensor a, Tensor b, Tensor? bias) -> Tensor", matmul, matmul_shape)
