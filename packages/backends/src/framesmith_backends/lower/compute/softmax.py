"""Softmax, log-softmax and their gradients as row passes: a maximum, a sum, an elementwise finish."""

from __future__ import annotations

from framesmith_backends.ir.dtypes import compute_type
from framesmith_backends.ir.expr import Expr, Op
from framesmith_backends.lower.movement.transposing import along_rows
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Scope, as_stored
from framesmith_backends.lower.tensor import Tensor


def _shifted_exp(v: Expr, top: Expr) -> Expr:
    return Op("exp", v - top)


@rule("_softmax")
def softmax(s: Scope, x: Tensor, dim: int, half_to_float: object = False) -> Tensor:
    within, x = compute_type(s.result.dtype), along_rows(s, x)
    top = s.reduce("max", x, (dim,), True, within)
    powers = s.compute(_shifted_exp, x, top, dtype=within)
    total = s.reduce("sum", powers, (dim,), True, within)
    return s.compute(lambda e, t: e / t, powers, total, dtype=s.result.dtype)


@rule("_log_softmax")
def log_softmax(s: Scope, x: Tensor, dim: int, half_to_float: object = False) -> Tensor:
    within, x = compute_type(s.result.dtype), along_rows(s, x)
    top = s.reduce("max", x, (dim,), True, within)
    total = s.reduce_formula("sum", _shifted_exp, (x, top), x.shape, (dim,), True, within)
    # ATen's kernel for rows keeps the sum and its logarithm in the type of the elements.
    in_rows = not s.target.on_gpu and dim in (-1, len(x.shape) - 1)
    kept = s.result.dtype if in_rows else within
    logs = s.compute(lambda t: as_stored(Op("log", as_stored(t, kept)), kept), total, dtype=within)
    return s.compute(lambda v, m, t: v - m - t, x, top, logs, dtype=s.result.dtype)


@rule("_softmax_backward_data")
def softmax_backward(s: Scope, grad: Tensor, y: Tensor, dim: int, input_dtype: object) -> Tensor:
    within = compute_type(y.dtype)
    matmuls = s.reduce_formula("sum", lambda g, o: g * o, (grad, y), y.shape, (dim,), True, within)
    return s.compute(lambda g, o, t: (g - t) * o, grad, y, matmuls, dtype=s.result.dtype, within=within)


@rule("_log_softmax_backward_data")
def log_softmax_backward(s: Scope, grad: Tensor, y: Tensor, dim: int, input_dtype: object) -> Tensor:
    within = compute_type(y.dtype)
    total = s.reduce("sum", grad, (dim,), True, within)
    return s.compute(lambda g, o, t: g - Op("exp", o) * t, grad, y, total, dtype=s.result.dtype, within=within)
