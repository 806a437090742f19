"""The native matmul: machine code made once and stored on disk, called with addresses.

`framesmith_backends::matmul(a, b, bias)` is the operator that plans written in Python call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from framesmith_backends.native_ops.base import CodeCache, operator
from framesmith_backends.native_ops.matmul.kernel import JOB, NO_MEMORY, render_matmuls
from framesmith_backends.target import Processor

_DOTS = JOB.index["dots"]


class NativeMatmul:
    """A module of matmuls, called with tensors."""

    def __init__(self, render: Callable[[Processor], str] = render_matmuls) -> None:
        self._code: CodeCache[None] = CodeCache("matmul", lambda _, target: render(target), {"fs_matmul": ()})

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
        job = JOB.ordered(
            a.data_ptr(), b.data_ptr(), c.data_ptr(), 0 if bias is None else bias.data_ptr(),
            a.shape[-2], b.shape[-1], a.shape[-1], a.stride(-2), a.stride(-1), b.stride(-2), b.stride(-1),
            c.stride(-2), alpha, beta, batches, *steps, 0, 0, 0,
        )  # fmt: skip
        self._code[None].run(job)
        if job[_DOTS] == NO_MEMORY:
            raise MemoryError("no memory for the packed operands of a matmul")
        return c


NATIVE_MATMUL = NativeMatmul()


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
    return NATIVE_MATMUL(a, b, a.new_empty((a.shape[0], b.shape[1])), bias)


OPERATOR = operator(
    "matmul(Tensor a, Tensor b, Tensor? bias) -> Tensor", matmul,
    lambda a, b, bias: a.new_empty((a.shape[0], b.shape[1])),
)  # fmt: skip
