"""Values that rounding to a low-precision type leaves as they are, or whose NaNs it does."""

from __future__ import annotations

import math

from framesmith_backends.ir.dtypes import DTYPES, rounded_to
from framesmith_backends.ir.expr import Cast, Const, Expr, Op, Ref, children
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.ops import OPS


def is_held_by(dtype: str, node: Expr) -> bool:
    """Whether the low-precision type surely holds the value of float32, so that rounding does nothing to it."""
    if isinstance(node, Op):
        kept = OPS[node.name].exact or (dtype == "bf16" and _is_doubling(node))
        return kept and all(is_held_by(dtype, arg) for arg in {*node.args[node.name == "where" :]})
    if isinstance(node, Cast):
        given = DTYPES[node.value.dtype]
        return node.dtype == "f32" and (node.value.dtype == dtype or (given.kind != "f" and given.bits <= 8))
    return isinstance(node, Const) and rounded_to(float(node.value), dtype) == node.value


def _is_doubling(node: Op) -> bool:
    """Whether it is a sum with itself, or a multiple by a power of two of at least 1: both types overflow together."""
    if node.name == "add":
        return node.args[0] is node.args[1]
    factors = [abs(arg.value) for arg in node.args if isinstance(arg, Const)]
    return node.name == "mul" and any(1 <= k < math.inf and math.frexp(k)[0] == 0.5 for k in factors)


def has_short_nans(kernel: Kernel, node: Expr) -> bool:
    """Whether the value's NaNs have no more bits than bfloat16's: they come from these, or from arithmetic."""
    pending: list[Expr] = [node]
    met: set[Expr] = set()
    while pending:
        node = pending.pop()
        if node in met or isinstance(node, Const) or node.dtype == "bf16" or DTYPES[node.dtype].kind != "f":
            continue
        met.add(node)
        reduced = kernel.reduced(node.name) if isinstance(node, Ref) else None
        made = (reduced,) if reduced is not None else children(node) if isinstance(node, (Op, Cast)) else ()
        if not made:
            return False
        pending += made
    return True
