"""Losses and their gradients: an elementwise distance, then the asked-for reduction (0 none, 1 mean, 2 sum)."""

from __future__ import annotations

from collections.abc import Callable

from framesmith_backends.ir.dtypes import compute_type
from framesmith_backends.ir.expr import Const, Expr, Index, Op, Value, cast, indirect, number
from framesmith_backends.ir.program import Failure
from framesmith_backends.ir.symbolic.size import numel
from framesmith_backends.lower.compute import formulas
from framesmith_backends.lower.compute.reductions import as_divisor, stored
from framesmith_backends.lower.registry import add_row, rule
from framesmith_backends.lower.scope import Decline, Scope, as_stored, broadcast_shape
from framesmith_backends.lower.tensor import Shape, Tensor, broadcast, element, point

NONE, MEAN, SUM = 0, 1, 2
OUT_OF_CLASSES = Failure("IndexError", "a target is out of bounds")


def reduced_loss(s: Scope, formula: Callable[..., Expr], operands: tuple[Tensor, ...], reduction: int) -> Tensor:
    shape = broadcast_shape([t.shape for t in operands])
    if reduction == NONE:
        return s.compute(formula, *operands, shape=shape, dtype=s.result.dtype)
    within = compute_type(s.result.dtype)

    def rounded(*values: Expr) -> Expr:
        return as_stored(formula(*values), s.result.dtype)

    total = s.reduce_formula("sum", rounded, operands, shape, tuple(range(len(shape))), False, within)
    n = as_divisor(numel(shape)) if reduction == MEAN else 1.0
    return s.compute(lambda v: v / n if n != 1.0 else v, total, dtype=s.result.dtype)


def _loss(formula: Callable[..., Expr], parameters: tuple[float, ...] = ()) -> Callable[..., Tensor]:
    def lowered(s: Scope, x: Tensor, y: Tensor, reduction: int = MEAN, *given: float) -> Tensor:
        if x.dtype != y.dtype:
            raise Decline("operands of several types, of which ATen's result need not be")
        values = given or parameters
        return reduced_loss(s, lambda a, b: formula(a, b, *values), (x, y), reduction)

    return lowered


add_row(_loss(lambda x, y: (x - y) * (x - y)), "mse_loss")
add_row(_loss(formulas.smooth_l1, (1.0,)), "smooth_l1_loss")
add_row(_loss(formulas.huber, (1.0,)), "huber_loss")


@rule("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    s: Scope, x: Tensor, y: Tensor, weight: Tensor | None = None, positive: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """(1 - y) * x - factor * log_sigmoid(x), times `weight`, of factors (positive - 1) * y + 1.

    ATen computes this operation by operation: what low-precision types make of that shows where terms cancel.
    """

    def step(value: Expr) -> Expr:
        return as_stored(value, s.result.dtype)

    def formula(a: Expr, b: Expr, *more: Expr) -> Expr:
        rest, logarithm = [*more], step(formulas.log_sigmoid(a))
        if positive is not None:
            logarithm = step(logarithm * step(step(step(rest.pop(0) - 1.0) * b) + 1.0))
        loss = step(step(step(1.0 - b) * a) - logarithm)
        return step(loss * rest.pop(0)) if weight is not None else loss

    given = tuple(t for t in (x, y, positive, weight) if t is not None)
    if len({t.dtype for t in given}) > 1 and any(compute_type(t.dtype) != t.dtype for t in given):
        raise Decline("operands of several types, of which one is rounded")
    return reduced_loss(s, formula, given, reduction)


def _scale(reduction: int, shape: Shape) -> float | Expr:
    """The factor of a gradient, in double precision."""
    n = numel(shape) if reduction == MEAN else 1
    return 1.0 / n if isinstance(n, int) else 1.0 / number(n, "f64")


def _as(factor: float | Expr, other: Expr) -> Expr:
    return cast(factor, other.dtype) if isinstance(factor, Value) else number(factor, other.dtype)


@rule("mse_loss_backward")
def mse_loss_backward(s: Scope, grad: Tensor, x: Tensor, y: Tensor, reduction: int) -> Tensor:
    norm = 2.0 * _scale(reduction, x.shape)
    return s.compute(lambda g, a, b: (a - b) * _as(norm, a) * g, grad, x, y, shape=s.result.shape, dtype=s.result.dtype)


@rule("smooth_l1_loss_backward")
def smooth_l1_loss_backward(s: Scope, grad: Tensor, x: Tensor, y: Tensor, reduction: int, beta: float) -> Tensor:
    norm = _scale(reduction, x.shape)

    def formula(g: Expr, a: Expr, b: Expr) -> Expr:
        d = a - b
        limit = _as(norm, d)
        inner = d * limit / Const(beta, d.dtype)
        return g * Op("where", d <= -beta, -limit, Op("where", d >= beta, limit, inner))

    if not beta:
        raise Decline("beta = 0")
    return s.compute(formula, grad, x, y, shape=s.result.shape, dtype=s.result.dtype)


@rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    s: Scope, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int
) -> tuple[Tensor, Tensor]:
    """The targets' classes read off, each once, and their sum; `ignore` counts for nothing, not for the mean either."""
    if target.dtype != "i64" or len(x.shape) < 2 or not isinstance(ignore, int):
        raise Decline("a target that is not int64, or a single one")
    if reduction == NONE:
        raise Decline("losses that are not put together, whose total weight ATen leaves as it is")
    shape, classes, within = target.shape, x.shape[1], compute_type(s.result.dtype)
    here = point(shape)
    wanted = target.at(here)
    counts = Op("ne", wanted, Const(ignore, "i64"))
    s.check(shape, Op("or", Op("not", counts), Op("and", wanted >= 0, wanted < classes)), OUT_OF_CLASSES)
    place = indirect(wanted, classes)
    factor = number(1, within) if weight is None else cast(weight.at((place,)), within)
    nothing = Const(0, within)
    each = s.elementwise(shape, Op("where", counts, -cast(x.at((here[0], place, *here[1:])), within) * factor, nothing))
    weights = s.elementwise(shape, Op("where", counts, factor, nothing))
    dims = tuple(range(len(shape)))
    total, divisor = (s.reduce("sum", one, dims, False, within) for one in (each, weights))
    loss = s.compute(lambda t, d: t / d if reduction == MEAN else t, total, divisor, dtype=s.result.dtype)
    return loss, stored(s, divisor, s.results[1].dtype)


@rule("nll_loss_backward")
def nll_loss_backward(
    s: Scope, grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int,
    total_weight: Tensor,
) -> Tensor:  # fmt: skip
    """-grad at the target's class, 0 elsewhere. Targets were checked by the forward pass."""
    if weight is not None or target.dtype != "i64" or len(x.shape) not in (1, 2):
        raise Decline("class weights, or a target that is not int64")
    shape, within = x.shape, compute_type(s.result.dtype)
    here = point(shape)
    rows = here[:-1]
    wanted = broadcast(target, shape[:-1]).at(rows)
    chosen = Op("and", Op("eq", wanted, Index(here[-1])), Op("ne", wanted, Const(ignore, "i64")))
    if reduction == NONE and grad.shape == shape[:-1]:
        slope = element(grad, rows, shape[:-1], within)
    else:
        slope = element(grad, (), (), within)
    value = -slope
    if reduction == MEAN:
        value = value / element(total_weight, (), (), within)
    body: Expr = Op("where", chosen, value, Const(0, within))
    return s.compute(lambda: body, shape=shape, dtype=s.result.dtype)
