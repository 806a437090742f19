"""Calls of operators with tensors, or with the nodes of a graph: code for both is written once."""

from __future__ import annotations

from typing import Any

import torch

from framesmith_aten.layouts import is_contiguous
from framesmith_guards.torch_adapter import OpOverload, aten

#: A tensor, or the node of one.
Operand = Any


class Calls:
    """Calls operators with tensors, at once; `rewrite.py` writes such calls into a graph."""

    def call(self, target: OpOverload, *args: Any, **kwargs: Any) -> Operand:
        return target(*args, **kwargs)

    def part(self, results: Operand, which: int) -> Operand:
        """One of several results."""
        return results[which]

    def value(self, x: Operand) -> torch.Tensor:
        """A tensor like the operand."""
        found: torch.Tensor = x
        return found

    def flat(self, x: Operand) -> Operand:
        """[steps, batch, size] as a matrix."""
        if not is_contiguous(self.value(x)):
            x = self.call(aten.clone.default, x, memory_format=torch.contiguous_format)
        return self.call(aten.view.default, x, [-1, self.size(x, 2)])

    def transposed(self, x: Operand) -> Operand:
        return self.call(aten.permute.default, x, [1, 0])

    def size(self, x: Operand, dim: int) -> Operand:
        """A size, as an operand."""
        size: object = self.value(x).shape[dim]
        return size if isinstance(size, int) else self.call(aten.sym_size.int, x, dim)

    def matmul(self, a: Operand, b: Operand, bias: Operand | None = None) -> Operand:
        return self.call(aten.mm.default, a, b) if bias is None else self.call(aten.addmm.default, bias, a, b)
