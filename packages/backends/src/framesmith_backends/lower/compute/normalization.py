"""Softmax, and layer, group and batch normalisation, forward and backward, as reductions and elementwise steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from framesmith_backends.ir.dtypes import DTYPES, compute_type
from framesmith_backends.ir.expr import Expr, Op, cast, number
from framesmith_backends.ir.program import has_channels_last, lies_in_rows
from framesmith_backends.ir.symbolic.size import Size, Sym, numel
from framesmith_backends.lower.compute.moments import moments, wide_type
from framesmith_backends.lower.compute.reductions import as_divisor, count, stored
from framesmith_backends.lower.movement.copies import along_rows
from framesmith_backends.lower.movement.views import reshaped
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Decline, Scope, as_stored
from framesmith_backends.lower.tensor import Shape, Tensor, rounded

Maybe = Tensor | None


def _inverse_root(s: Scope, variance: Tensor, eps: float) -> Tensor:
    return s.compute(lambda v: Op("rsqrt", v + eps), variance, dtype=variance.dtype)


def _scaled(
    s: Scope, formula: Callable[..., Expr], operands: Sequence[Tensor], weight: Maybe, bias: Maybe, shape: Shape,
    step: Callable[[Expr], Expr] = lambda v: v,
) -> Tensor:  # fmt: skip
    """formula(operands) * weight + bias, leaving out what is None; `step` rounds what it is given."""
    extra = [t for t in (weight, bias) if t is not None]

    def whole(*values: Expr) -> Expr:
        body, rest = formula(*values[: len(operands)]), list(values[len(operands) :])
        if weight is not None:
            body = step(body * rest.pop(0))
        return body + rest.pop(0) if bias is not None else body

    return s.compute(whole, *operands, *extra, shape=shape, dtype=s.result.dtype)


def _standardized(v: Expr, mean: Expr, rstd: Expr) -> Expr:
    return (v - mean) * rstd


def _mul(grad: Expr, hat: Expr) -> Expr:
    return grad * hat


def _gradient(n: float | Sym) -> Callable[..., Expr]:
    """The gradient of what is standardised over n elements.

    That is rstd * (grad - mean(grad) - hat * mean(grad * hat)), given sums instead of means.
    """
    return lambda grad, hat, total, along, rstd: (grad - total / n - hat * (along / n)) * rstd


# Numbers in the vectors in which ATen adds up rows, by bytes of an element.
_ROW_LANES = {2: 16, 4: 8, 8: 4}


def _row_moments(s: Scope, x: Tensor, dims: tuple[int, ...], *, by_squares: bool = False) -> tuple[Tensor, Tensor]:
    """(mean, variance) of rows. Where the square of the mean overflows ATen gives NaN for the variance, of rows that
    fill no vector and of what it adds up `by_squares`; of other rows only where the first lane has such a mean."""
    mean, variance = moments(s, x, dims, 0, compute_type(x.dtype))
    size, lanes = count(x, dims), _ROW_LANES[DTYPES[x.dtype].torch.itemsize]
    if not by_squares and isinstance(size, int) and size >= lanes:
        return mean, variance
    few = number(True, "b1") if by_squares or isinstance(size, int) else number(size, "i64") < lanes
    wrong = s.compute(lambda v, m: Op("where", few, v + m * m * 0.0, v), variance, mean, dtype=variance.dtype)
    return mean, wrong


@rule("native_layer_norm")
def native_layer_norm(
    s: Scope, x: Tensor, normalized: Sequence[int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[Tensor, ...]:
    dims = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    mean, variance = _row_moments(s, x, dims)
    rstd = _inverse_root(s, variance, eps)
    out = _scaled(s, _standardized, (x, mean, rstd), weight, bias, x.shape)
    return out, stored(s, mean, s.results[1].dtype), stored(s, rstd, s.results[2].dtype)


@rule("native_layer_norm_backward")
def native_layer_norm_backward(
    s: Scope, grad: Tensor, x: Tensor, normalized: Sequence[int], mean: Tensor, rstd: Tensor,
    weight: Maybe, bias: Maybe, mask: Sequence[bool],
) -> tuple[Maybe, ...]:  # fmt: skip
    rank = len(x.shape) - len(normalized)
    dims, lead = tuple(range(rank, len(x.shape))), tuple(range(rank))
    within = compute_type(x.dtype)
    hat = s.compute(_standardized, x, mean, rstd, dtype=within)
    dx = dw = db = None
    if mask[0]:
        gy = grad if weight is None else s.compute(_mul, grad, weight, dtype=within)
        gy = stored(s, gy, within)
        n = as_divisor(count(gy, dims))
        along = s.reduce_formula("sum", _mul, (gy, hat), gy.shape, dims, True, within)
        total = s.reduce("sum", gy, dims, True, within)
        dx = s.compute(_gradient(n), gy, hat, total, along, rstd, dtype=s.result.dtype, within=within)
    if mask[1] and weight is not None:
        dw = _summed(s, _mul, (grad, hat), lead, x.shape, weight.shape, weight.dtype, within)
    if mask[2] and bias is not None:
        db = _summed(s, lambda g: g, (grad,), lead, x.shape, bias.shape, bias.dtype, within)
    return dx, dw, db


def _summed(
    s: Scope, formula: Callable[..., Expr], operands: Sequence[Tensor], dims: Sequence[int], shape: Shape,
    result: Shape, dtype: str, within: str,
) -> Tensor:  # fmt: skip
    """Sum of formula(operands) over `dims` (none: no sum), in shape `result`."""
    if not dims:
        return s.compute(formula, *operands, shape=shape, dtype=dtype)
    total = s.reduce_formula("sum", formula, operands, shape, dims, False, within)
    if total.shape != result:
        total = reshaped(total, result)
    return stored(s, total, dtype)


@rule("native_group_norm")
def native_group_norm(
    s: Scope, x: Tensor, weight: Maybe, bias: Maybe, n: Size, c: Size, hw: Size, group: int, eps: float
) -> tuple[Tensor, ...]:
    grouped = reshaped(x, (n, group, c // group, hw))
    by_squares = s.given[0] is not None and not lies_in_rows(s.given[0]) and has_channels_last(s.given[0])
    mean, variance = _row_moments(s, grouped, (2, 3), by_squares=by_squares)
    rstd = _inverse_root(s, variance, eps)
    hat = s.compute(_standardized, grouped, mean, rstd, dtype=compute_type(x.dtype))
    channel = (1, c, *([1] * (len(x.shape) - 2)))
    weight, bias = (_as_channel(t, channel) for t in (weight, bias))
    out = _scaled(s, lambda v: v, (reshaped(hat, x.shape),), weight, bias, x.shape)
    saved = [stored(s, one, made.dtype) for one, made in zip((mean, rstd), s.results[1:], strict=True)]
    return out, *(s.copied(reshaped(one, (n, group))) for one in saved)


@rule("native_group_norm_backward")
def native_group_norm_backward(
    s: Scope, grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Maybe,
    n: Size, c: Size, hw: Size, group: int, mask: Sequence[bool],
) -> tuple[Maybe, ...]:  # fmt: skip
    """One pass over both tensors adds up each channel of each sample; of those sums everything else is made."""
    shape = (n, group, c // group, hw)
    one, channel = (n, group, 1, 1), (1, group, c // group, 1)
    within = compute_type(x.dtype)
    gradient, center, scale = reshaped(grad, shape), reshaped(mean, one), reshaped(rstd, one)
    hat = s.compute(_standardized, reshaped(x, shape), center, scale, dtype=within)
    total = s.reduce("sum", gradient, (3,), True, within)
    along = s.reduce_formula("sum", _mul, (gradient, hat), shape, (3,), True, within)
    dx = dw = db = None
    if mask[0]:
        factor = () if weight is None else (reshaped(weight, channel),)
        sums = [
            s.reduce_formula("sum", _weighted, (part, *factor), part.shape, (2,), True, within)
            for part in (total, along)
        ]
        formula = _gradient(as_divisor(hw * (c // group)))
        flat = s.compute(
            lambda g, h, t, a, r, *w: formula(_weighted(g, *w), h, t, a, r),
            gradient, hat, *sums, scale, *factor, dtype=s.result.dtype, within=within,
        )  # fmt: skip
        dx = reshaped(flat, x.shape)
    if mask[1]:
        dw = _summed(s, lambda v: v, (along,), (0,), along.shape, (c,), s.results[1].dtype, within)
    if mask[2]:
        db = _summed(s, lambda v: v, (total,), (0,), total.shape, (c,), s.results[-1].dtype, within)
    return dx, dw, db


def _weighted(value: Expr, *weight: Expr) -> Expr:
    return value * weight[0] if weight else value


def _channels(x: Tensor) -> tuple[tuple[int, ...], Shape]:
    """The dimensions a batch norm reduces over, and the shape its channel vectors broadcast from."""
    rank = len(x.shape)
    return (0, *range(2, rank)), (x.shape[1], *([1] * (rank - 2)))


def _of_channels(s: Scope, x: Tensor, mean: Tensor, rstd: Tensor, weight: Maybe, bias: Maybe, shape: Shape) -> Tensor:
    """(x - mean) * (rstd * weight) + bias, one factor for each channel as in ATen's kernels: what a small weight makes
    of a large distance does not overflow before. Where they walk by strides, they round each step to the type of the
    statistics."""
    steps, (weight, bias) = mean.dtype, (_as_channel(t, shape) for t in (weight, bias))
    if _by_strides(s) and compute_type(steps) != steps:

        def step(v: Expr) -> Expr:
            return as_stored(v, steps)

        return _scaled(
            s, lambda v, m, r: step(step(v - m) * step(r)), (x, mean, rstd), weight, bias, x.shape, step
        )  # fmt: skip
    factor = rstd if weight is None else s.compute(lambda r, w: r * w, rstd, weight, dtype=rstd.dtype)
    return _scaled(s, _standardized, (x, mean, factor), None, bias, x.shape)


def _by_strides(s: Scope) -> bool:
    """Whether ATen's kernels for batches walk the first operand by its strides."""
    layout = s.given[0]
    return layout is not None and not (lies_in_rows(layout) or has_channels_last(layout))


def _as_channel(t: Maybe, shape: Shape) -> Maybe:
    return None if t is None else reshaped(t, shape)


@rule("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    s: Scope, x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Maybe, ...]:
    _, shape = _channels(x)
    rstd = s.compute(lambda v: 1.0 / Op("sqrt", v + eps), reshaped(var, shape), dtype=compute_type(var.dtype))
    out = _of_channels(s, x, reshaped(mean, shape), rstd, weight, bias, shape)
    return out, None, None  # the saved statistics are empty in evaluation mode


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    s: Scope, x: Tensor, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    _, _, saved_mean, rstd, out = _batch_statistics(s, x, weight, bias, eps)
    return out, saved_mean, rstd


@rule("_native_batch_norm_legit_functional")
def batch_norm_training(
    s: Scope, x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, var: Tensor, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    if not training:
        raise Decline("a batch norm in evaluation mode through the training operator")
    center, variance, saved_mean, rstd, out = _batch_statistics(s, x, weight, bias, eps)
    n = x.shape[0] * numel(x.shape[2:])
    channels = (x.shape[1],)
    batch = [reshaped(one, channels) for one in (center, variance)]
    return out, saved_mean, rstd, *_running(s, batch, (mean, var), momentum, _unbiased(n))


def _running(
    s: Scope, batch: Sequence[Tensor], running: Sequence[Tensor], momentum: float, unbiased: float | Expr
) -> tuple[Tensor, Tensor]:
    """The running mean and variance with those of a batch. ATen rounds each step to bfloat16 where they are of it,
    unless it walks by strides."""
    (center, variance), (mean, var) = batch, running
    steps, within = mean.dtype, compute_type(mean.dtype)
    stepwise = steps == "bf16" and not _by_strides(s)
    new, old = rounded(momentum, within, steps), rounded(1 - momentum, within, steps)

    def corrected(v: Expr, factor: float = 1.0) -> Expr:
        return v * (factor * unbiased if isinstance(unbiased, float) else cast(factor * unbiased, v.dtype))

    def mean_of(b: Expr, r: Expr) -> Expr:
        if stepwise:
            return as_stored(b * new, steps) + as_stored(r * old, steps)
        return r + (b - r) * momentum if _by_strides(s) else b * momentum + r * (1 - momentum)

    def variance_of(b: Expr, r: Expr) -> Expr:
        if stepwise:
            return as_stored(corrected(b), steps) * new + as_stored(r * old, steps)
        return corrected(b, momentum) + r * (1 - momentum)

    return (
        s.compute(mean_of, center, mean, dtype=steps),
        s.compute(variance_of, variance, var, dtype=steps, within=variance.dtype),
    )


def _unbiased(n: Size) -> float | Expr:
    """n / (n - 1), in double precision."""
    if not n > 1:
        return math.nan
    return n / (n - 1) if isinstance(n, int) else number(n, "f64") / number(n - 1, "f64")


def _batch_type(s: Scope, dtype: str) -> str:
    """The type in which ATen's kernels add up a batch's statistics: a wide one where they walk by strides, but float32
    for low-precision types."""
    return wide_type(s, dtype) if _by_strides(s) and compute_type(dtype) == dtype else compute_type(dtype)


def _batch_statistics(s: Scope, x: Tensor, weight: Maybe, bias: Maybe, eps: float) -> tuple[Tensor, ...]:
    """The mean and variance of which running ones are made, what is saved of mean and rstd, the result.

    As in ATen's kernels: the result is computed of what is saved. Where they walk by strides, the variance is about the
    mean that is saved; else those for bfloat16 store the sum of squares and the variance in that type.
    """
    dims, shape = _channels(x)
    within, kept = compute_type(x.dtype), s.results[1].dtype
    center, variance = moments(s, x, dims, 0, _batch_type(s, x.dtype))
    divided = variance
    if compute_type(kept) != kept:
        n, exact = as_divisor(count(x, dims)), center
        center = s.compute(lambda m: as_stored(m, kept), exact, dtype=within)
        if _by_strides(s):
            # The mean of squared distances from something else than the mean.
            divided = variance = s.compute(
                lambda v, m, about: v + (m - about) * (m - about), variance, exact, center, dtype=within
            )
        elif kept == "bf16":
            variance = s.compute(lambda v: as_stored(v * n, kept) / n, variance, dtype=within)
            divided = s.compute(lambda v: as_stored(v, kept), variance, dtype=within)
    rstd = s.compute(lambda v: 1.0 / Op("sqrt", v + eps), divided, dtype=within, within=variance.dtype)
    saved_mean, saved_rstd = stored(s, center, kept), stored(s, rstd, s.results[2].dtype)
    out = _of_channels(s, x, saved_mean, stored(s, saved_rstd, within), weight, bias, shape)
    channels = (x.shape[1],)
    saved = [s.copied(reshaped(one, channels)) for one in (saved_mean, saved_rstd)]
    return stored(s, center, within), variance, *saved, out


@rule("native_batch_norm_backward")
def native_batch_norm_backward(
    s: Scope, grad: Tensor, x: Tensor, weight: Maybe, running_mean: Maybe, running_var: Maybe,
    saved_mean: Maybe, saved_rstd: Maybe, train: bool, eps: float, mask: Sequence[bool],
) -> tuple[Maybe, ...]:  # fmt: skip
    if not train or saved_mean is None or saved_rstd is None:
        raise Decline("the gradient of a batch norm in evaluation mode")
    dims, shape = _channels(x)
    within = compute_type(x.dtype)
    mean, rstd = reshaped(saved_mean, shape), reshaped(saved_rstd, shape)
    hat = s.compute(_standardized, x, mean, rstd, dtype=within)
    total = s.reduce("sum", grad, dims, True, within)
    along = s.reduce_formula("sum", _mul, (grad, hat), x.shape, dims, True, within)
    dx = dw = db = None
    if mask[0]:
        factor = () if weight is None else (reshaped(weight, shape),)
        formula = _gradient(as_divisor(count(x, dims)))
        dx = s.compute(
            lambda g, h, t, a, r, *w: formula(g, h, t, a, _weighted(r, *w)),
            grad, hat, total, along, rstd, *factor, dtype=s.result.dtype, within=within,
        )  # fmt: skip
    channels = (x.shape[1],)
    if mask[1] and weight is not None:
        dw = s.copied(stored(s, reshaped(along, channels), weight.dtype))
    if mask[2]:
        db = s.copied(stored(s, reshaped(total, channels), s.results[-1].dtype))
    return dx, dw, db


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
