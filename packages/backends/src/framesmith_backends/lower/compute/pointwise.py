"""Rules for elementwise operators that are more than a formula of their operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from framesmith_backends.ir.dtypes import (
    DTYPES,
    LOW_PRECISION,
    compute_type,
    holds,
    is_float,
    is_integer,
    is_unsigned,
    rounded_to,
)
from framesmith_backends.ir.expr import Const, Expr, Op, cast, number
from framesmith_backends.ir.program import Failure, lies_in_rows
from framesmith_backends.ir.symbolic.size import Sym, surely_positive
from framesmith_backends.lower.compute import formulas
from framesmith_backends.lower.compute.formulas import core, met, times_derivative
from framesmith_backends.lower.movement.copies import is_transposing, transposed_copy, walks_in_tiles
from framesmith_backends.lower.registry import Rule, add_row, rule
from framesmith_backends.lower.scope import Decline, Scope, as_stored
from framesmith_backends.lower.tensor import Operand, Tensor, broadcast, element, point, rounded
from framesmith_backends.torch_adapter import unstable


def _declined(reason: str) -> Expr:
    raise Decline(reason)


def _scaled_sum(sign: int, alpha: int | float, dtype: str) -> Callable[[Expr, Expr], Expr]:
    known = isinstance(alpha, (int, float))
    if type(alpha) is int and alpha == 0:
        sign = 1  # ATen adds times -alpha, and there is no negative zero among integers
    if known and is_float(dtype):
        alpha = rounded_to(alpha, dtype)

    def formula(a: Expr, b: Expr) -> Expr:
        if a.dtype == "b1":
            return Op("or", a, b) if sign > 0 and alpha in (1, True) else _declined("bool sum with alpha")
        if alpha != 1:
            b = b * (alpha if known else rounded(alpha, b.dtype, dtype))
        return a + b if sign > 0 else a - b

    return formula


def _sum(sign: int, *, swapped: bool = False) -> Rule:
    def lowered(s: Scope, a: Operand, b: Operand, alpha: int | float = 1) -> Tensor:
        return met(s, _scaled_sum(sign, alpha, s.result.dtype), *((b, a) if swapped else (a, b)))

    return lowered


add_row(_sum(1), "add.Tensor", "add.Scalar")
add_row(_sum(-1), "sub.Tensor", "sub.Scalar")
add_row(_sum(-1, swapped=True), "rsub.Tensor", "rsub.Scalar")


@rule("div.Tensor_mode")
def div_mode(s: Scope, a: Operand, b: Operand, rounding_mode: str | None) -> Tensor:
    if rounding_mode is None:
        return met(s, lambda x, y: x / y, a, b, exact=True)
    if rounding_mode == "floor":
        return _divided(s, formulas.floor_divide, a, b, exact=True)
    if s.result.dtype in LOW_PRECISION:
        raise Decline("a truncated quotient in low precision, which ATen rounds before it truncates")
    integer = not is_float(s.result.dtype)
    return _divided(s, core("idiv") if integer else (lambda x, y: Op("trunc", x / y)), a, b)


@rule("fmod.Tensor", "fmod.Scalar")
def fmod(s: Scope, a: Operand, b: Operand) -> Tensor:
    return _divided(s, core("fmod") if is_float(s.result.dtype) else (lambda x, y: x - Op("idiv", x, y) * y), a, b)


add_row(lambda s, a, b: _divided(s, formulas.floor_divide, a, b, exact=True), "floor_divide")
add_row(lambda s, a, b: _divided(s, formulas.remainder, a, b), "remainder.Tensor", "remainder.Scalar")

#: ATen's error for an integer divided by zero.
DIVISION_BY_ZERO = Failure("RuntimeError", "ZeroDivisionError")


def _divided(s: Scope, formula: Callable[..., Expr], a: Operand, b: Operand, *, exact: bool = False) -> Tensor:
    """Operands met by a formula that divides them. Of integers, a division by zero fails the run."""
    if is_float(s.result.dtype):
        return met(s, formula, a, b, exact=exact)
    if (isinstance(b, Sym) and not surely_positive(b)) or (not isinstance(b, (Tensor, Sym)) and b in (0, -1)):
        raise Decline("integer division by a number that is, or may be, 0 or -1")
    if not isinstance(b, Tensor):
        return met(s, formula, a, b, exact=exact)
    if s.result.dtype == "b1" or s.target.on_gpu:
        raise Decline(
            "division of bools, or of integers by a tensor, of which CUDA's kernels do not say that it is zero"
        )
    divisor = cast(broadcast(b, s.result.shape).at(point(s.result.shape)), s.result.dtype)
    s.check(s.result.shape, Op("ne", divisor, number(0, s.result.dtype)), DIVISION_BY_ZERO)

    def among_others(x: Expr, y: Expr) -> Expr:
        """Zero and -1, by which a processor may refuse to divide, divide as 1 does."""
        zero, negative = Op("eq", y, formulas.like(0, y)), Op("eq", y, formulas.like(-1, y))
        if is_unsigned(s.result.dtype):
            return formula(x, Op("where", zero, formulas.like(1, y), y))
        found = formula(x, Op("where", Op("or", zero, negative), formulas.like(1, y), y))
        return Op("where", negative, Op("neg", found), found)

    return met(s, among_others, a, b, exact=exact)


def _shift(name: str, formula: Callable[..., Expr]) -> Callable[..., Tensor]:
    """Of integers; by a known number in one operation."""

    def lowered(s: Scope, a: Operand, b: Operand) -> Tensor:
        row = DTYPES[s.result.dtype]
        if row.kind not in "iu":
            raise Decline("a shift of what is no integer")
        if any(isinstance(one, int) and Const(one, row.name).value != one for one in (a, b)):
            raise Decline("a number that the result's type does not hold")
        known = isinstance(b, int) and 0 <= b < row.bits
        return met(s, core(name) if known else formula, a, b)

    return lowered


for _name, _dunder, _row in (
    ("bitwise_left_shift", "__lshift__", _shift("shl", formulas.left_shift)),
    ("bitwise_right_shift", "__rshift__", _shift("shr", formulas.right_shift)),
):
    add_row(_row, *(f"{_name}.{overload}" for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")))
    add_row(_row, f"{_dunder}.Tensor", f"{_dunder}.Scalar")


@rule("pow.Tensor_Scalar")
def pow_scalar(s: Scope, x: Tensor, exponent: int | float) -> Tensor:
    if not isinstance(exponent, (int, float)):
        raise Decline("an exponent that changes: ATen computes some of them in ways of their own")

    def squared(v: Expr) -> Expr:
        """ATen's kernels for bfloat16 round multiplications one by one; those for float16 compute in float32."""
        return as_stored(v * v, "bf16") if s.result.dtype == "bf16" else v * v

    def formula(v: Expr) -> Expr:
        if exponent in (0, 1, 2, 3):
            return (Const(1, v.dtype), v, v * v, squared(v) * v)[int(exponent)]
        if exponent == -2 and is_float(v.dtype):
            return 1.0 / squared(v)
        if not is_float(v.dtype):
            return _declined("an integer power")
        if exponent in _SPECIAL_POWERS and (s.result.dtype != "f16" or abs(exponent) >= 1):
            return _SPECIAL_POWERS[exponent](v)
        return Op("pow", v, Const(rounded_to(exponent, s.result.dtype), v.dtype))

    return met(s, formula, x)


# What ATen has kernels of their own for. (For float16 it has none of roots: they differ for -0 and -inf.)
_SPECIAL_POWERS: dict[int | float, Callable[[Expr], Expr]] = {
    0.5: lambda v: Op("sqrt", v),
    -0.5: lambda v: Op("rsqrt", v),
    -1: lambda v: 1.0 / v,
}


@rule("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(s: Scope, x: Operand, y: Operand) -> Tensor:
    if not is_float(s.result.dtype):
        raise Decline("an integer power")
    return met(s, core("pow"), x, y)


def _gelu(approximate: str) -> str:
    """Return the name of the core operation for this way to approximate gelu."""
    return "gelu" if approximate == "none" else f"gelu_{approximate}"


@rule("gelu")
def gelu(s: Scope, x: Tensor, *, approximate: str = "none") -> Tensor:
    name, dtype = _gelu(approximate), s.result.dtype
    if name != "gelu" or _is_of_onednn(s):
        return met(s, core(name), x)

    def formula(v: Expr) -> Expr:
        """The core operation is NaN at both infinities. Rounded at once, an approximate one serves."""
        return Op("where", Op("eq", v, formulas.like(math.inf, v)), v, cast(cast(Op(name, v), dtype), v.dtype))

    return met(s, formula, x)


def _is_of_onednn(s: Scope) -> bool:
    """Whether eager mode may have oneDNN compute gelu, which gives NaN at infinity on some processors."""
    layout = s.given[0]
    if s.target.on_gpu or layout is None or not lies_in_rows(layout) or layout.numel == 1:
        return False
    return _is_nan_at_infinity(layout.dtype, torch.backends.mkldnn.enabled)


@functools.cache
def _is_nan_at_infinity(dtype: str, onednn: bool) -> bool:
    """Whether eager mode's gelu of contiguous infinities is NaN; with AVX2 it is infinity."""
    with unstable.disable_current_modes():
        found = torch.nn.functional.gelu(torch.full((64,), math.inf, dtype=DTYPES[dtype].torch, device="cpu"))
    return bool(found.isnan().any())


@rule("gelu_backward")
def gelu_backward(s: Scope, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    return met(s, times_derivative(_gelu(approximate)), grad, x)


@rule("clamp", "clamp.Tensor")
def clamp(s: Scope, x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    bools = s.result.dtype == "b1"
    if bools and not all(b is None or isinstance(b, Tensor) for b in (low, high)):
        raise Decline("bools clamped by numbers, which ATen refuses")
    if any(type(b) is int and is_integer(s.result.dtype) and not holds(s.result.dtype, b) for b in (low, high)):
        raise Decline("a bound that the type does not hold: releases of torch differ in what it means")
    names = ("or", "and") if bools else ("max", "min")
    bounds = [(n, b) for n, b in zip(names, (low, high), strict=True) if b is not None]

    def formula(v: Expr, *limits: Expr) -> Expr:
        for (name, _), limit in zip(bounds, limits, strict=True):
            v = Op(name, limit, v)
        return v

    return met(s, formula, x, *(b for _, b in bounds))


add_row(lambda s, x, low: clamp(s, x, low), "clamp_min", "clamp_min.Tensor")
add_row(lambda s, x, high: clamp(s, x, None, high), "clamp_max", "clamp_max.Tensor")


@rule("where.self")
def where(s: Scope, condition: Tensor, a: Operand, b: Operand) -> Tensor:
    inner, shape = compute_type(s.result.dtype), s.result.shape
    operands = ((condition, "b1"), (a, inner), (b, inner))
    return s.made(Op("where", *(element(one, point(shape), shape, dtype) for one, dtype in operands)))


add_row(lambda s, x, mask, value: where(s, mask, value, x), "masked_fill.Scalar", "masked_fill.Tensor")


def _float_test(formula: Callable[[Expr], Expr]) -> Rule:
    """Holds for no number that is not floating."""

    def lowered(s: Scope, x: Tensor) -> Tensor:
        if not is_float(x.dtype):
            return s.compute(lambda v: Const(False, "b1"), x, dtype="b1")
        return s.compute(formula, x, dtype="b1", within=compute_type(x.dtype))

    return lowered


add_row(_float_test(core("isnan")), "isnan")
add_row(_float_test(lambda v: Op("eq", Op("abs", v), formulas.like(math.inf, v))), "isinf")


@rule("clone")
def clone(s: Scope, x: Tensor, *, memory_format: object = None) -> Tensor:
    if not s.target.in_order or not is_transposing(s, x):  # threads in no order take tiles of any kernel
        return s.copied(x)
    if not walks_in_tiles(s):
        raise Decline("a transposing copy of changing size, which ATen does in tiles")
    return transposed_copy(s, x)


@rule("_to_copy")
def to_copy(s: Scope, x: Tensor, **options: Any) -> Tensor:
    return s.compute(lambda v: v, x, shape=s.result.shape, dtype=s.result.dtype, within=compute_type(x.dtype))


add_row(lambda s, x, source, non_blocking=False: to_copy(s, source), "copy", "fill.Tensor")
