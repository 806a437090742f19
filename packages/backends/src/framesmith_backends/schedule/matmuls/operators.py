"""ATen's matmuls: the operands of their calls, and float32 matmuls as steps of BLAS without tensor objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from framesmith_backends.ir.matmul import LARGEST, Matmul, Matrix
from framesmith_backends.ir.program import BufferView, Call, Program, contiguous_strides
from framesmith_backends.ir.symbolic.size import Size, surely_at_least, surely_positive
from framesmith_backends.reporting import Refusal
from framesmith_guards.torch_adapter import aten


@dataclass(frozen=True, slots=True)
class Operands:
    """The operands of a call that computes factor * (a @ b) + share * addend."""

    a: object
    b: object
    addend: object = None
    factor: float = 1
    share: float = 1


def _mm(node: fx.Node) -> Operands | None:
    return Operands(*node.args[:2]) if len(node.args) == 2 and not node.kwargs else None


def _addmm(node: fx.Node) -> Operands | None:
    if len(node.args) != 3 or not set(node.kwargs) <= {"alpha", "beta"}:
        return None
    factor, share = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    if type(factor) not in (int, float) or type(share) not in (int, float):
        return None
    if factor == 0:  # the matmul is not computed then: infinities in it do not count
        return None
    addend, a, b = node.args
    return Operands(a, b, addend, factor, share)  # type: ignore[arg-type]


#: Operators that are matmuls -> their operands.
OPERANDS: dict[object, Callable[[fx.Node], Operands | None]] = {
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
}


def view_of(program: Program, node: object) -> BufferView | None:
    return program.view(program.runtime.get(node.name, node.name)) if isinstance(node, fx.Node) else None


def blas_matmul(program: Program, call: Call) -> Matmul | Refusal | None:
    """Return the call as a matmul of BLAS; None for other operators."""
    if call.node.target not in OPERANDS:
        return None
    operands = OPERANDS[call.node.target](call.node)
    if operands is None or (operands.factor, operands.share) != (1, 1):
        return Refusal("scaled, or with a bias that is not of one row")
    a, b, bias = (view_of(program, node) for node in (operands.a, operands.b, operands.addend))
    result = program.layouts.get(call.name)
    if a is None or b is None or result is None or (bias is None) != (operands.addend is None):
        return Refusal("an operand of unknown layout")
    types = {program.layouts[one.source].dtype for one in (a, b, bias) if one is not None}
    if types != {"f32"} or result.dtype != "f32":
        return Refusal(f"elements of type {', '.join(sorted(types))}")
    if len(a.shape) != 2:
        return Refusal("a batch of matrices")
    (m, k), n = a.shape, b.shape[1]
    if bias is not None and (bias.shape != (n,) or bias.strides != (1,)):
        return Refusal("a bias that is not one dense row")
    if not all(map(surely_positive, (m, n, k))) or any(isinstance(s, int) and s > LARGEST for s in (m, n, k)):
        return Refusal("no elements, or more than BLAS counts")
    if 1 in (m, n):
        return Refusal("a row or a column, which ATen multiplies in another way")
    if result.strides != contiguous_strides(result.shape):
        return Refusal("a result that is not contiguous")
    first, second = _matrix(a), _matrix(b)
    if first is None or second is None:
        return Refusal("an operand with neither rows nor columns beside each other")
    return Matmul(call.name, first, second, call.name, bias, m, n, k)


def _matrix(place: BufferView) -> Matrix | None:
    """Return the view as BLAS reads it: contiguous rows or columns."""
    rows, columns = place.shape
    down, right = place.strides
    if (right == 1 or columns == 1) and _leads(down, columns):
        return Matrix(place.source, place.offset, down)
    if (down == 1 or rows == 1) and _leads(right, rows):
        return Matrix(place.source, place.offset, right, transposed=True)
    return None


def _leads(step: Size, size: Size) -> bool:
    """Whether lines of that size lie beside each other at such steps."""
    return surely_at_least(step, size) and (not isinstance(step, int) or step <= LARGEST)
