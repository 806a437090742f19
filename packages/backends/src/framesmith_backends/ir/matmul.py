"""A matmul of two float32 matrices as a step between kernels: operands as views of buffers, no tensor objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from framesmith_backends.ir.fused.attention import FusedAttention
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient
from framesmith_backends.ir.fused.matmul import FusedMatmul
from framesmith_backends.ir.kernel import Kernel, Param
from framesmith_backends.ir.program import BufferView, Failure
from framesmith_backends.ir.symbolic.size import Size, Symbol, symbols_of

#: BLAS counts in 32 bits.
LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in a buffer from element `offset` on; `leading` is the stride of rows, or of columns if `transposed`."""

    buffer: str
    offset: Size
    leading: Size
    transposed: bool = False

    def text(self) -> str:
        start = f"+{self.offset}" if self.offset != 0 else ""
        return f"{self.buffer}{start}{'ᵀ' if self.transposed else ''}"


@dataclass(frozen=True, slots=True)
class Matmul:
    """result[m, n] = a[m, k] @ b[k, n], plus `bias[n]`, if given. The result's rows are next to each other."""

    name: str
    a: Matrix
    b: Matrix
    result: str
    bias: BufferView | None
    m: Size
    n: Size
    k: Size

    @property
    def params(self) -> tuple[Param, ...]:
        read = [self.a.buffer, self.b.buffer, *([self.bias.source] if self.bias is not None else [])]
        return (*(Param(name, "f32", False) for name in dict.fromkeys(read)), Param(self.result, "f32", True))

    @property
    def numbers(self) -> tuple[Symbol, ...]:
        offset = self.bias.offset if self.bias is not None else 0
        sizes = (self.m, self.n, self.k, self.a.offset, self.a.leading, self.b.offset, self.b.leading, offset)
        return tuple(sorted(symbols_of(sizes), key=lambda symbol: symbol.name))

    @property
    def points(self) -> Size:
        """Multiplications."""
        return self.m * self.n * self.k

    def on(self, names: Mapping[str, str]) -> Matmul:
        """The matmul on buffers of other names."""

        def named(matrix: Matrix) -> Matrix:
            return replace(matrix, buffer=names.get(matrix.buffer, matrix.buffer))

        bias = self.bias and self.bias.on(names)
        return replace(self, a=named(self.a), b=named(self.b), bias=bias, result=names.get(self.result, self.result))

    def text(self) -> str:
        bias = f" + {self.bias.source}" if self.bias is not None else ""
        return f"{self.name}: {self.result}[{self.m}, {self.n}] = {self.a.text()} @ {self.b.text()}{bias} over {self.k}"


#: The kernels of a GPU.
OnGpu = Kernel | FusedMatmul | FusedAttention | FusedAttentionGradient
#: The items of a native entry, which run one after the other.
Item = OnGpu | Matmul


def failures_of(item: Item) -> tuple[Failure, ...]:
    """Return the exceptions that an item may raise on the CPU: items behind it do not run then."""
    if isinstance(item, Kernel):
        return tuple(check.failure for check in item.checks)
    return item.failures if isinstance(item, FusedAttention) else ()
