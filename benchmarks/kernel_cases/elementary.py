"""Each elementary function alone, on ordinary and on special arguments."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.kernel_cases.case import SINGLE, Case, Make, Tensor, group

COUNT = 1 << 19

#: Every eighth argument, in turn: the tiny ones are normal and subnormal in float32.
SPECIAL = (-math.inf, math.inf, math.nan, 0.0, -0.0, 1e30, -1e30, 1e-30, -1e-30, 1e-42, -1e-42, 88.8, -104.0, 1.0, -1.0)

#: The range of ordinary arguments of a function of one argument.
UNARY: dict[str, tuple[Callable[..., Tensor], float, float]] = {
    "exp": (torch.exp, -10, 10),
    "exp2": (torch.exp2, -10, 10),
    "log": (torch.log, 0, 10),
    "log2": (torch.log2, 0, 10),
    "log10": (torch.log10, 0, 10),
    "log1p": (torch.log1p, -0.9, 10),
    "expm1": (torch.expm1, -10, 10),
    "tanh": (torch.tanh, -5, 5),
    "sigmoid": (torch.sigmoid, -10, 10),
    "silu": (F.silu, -10, 10),
    "gelu": (F.gelu, -5, 5),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), -5, 5),
    "softplus": (F.softplus, -10, 30),
    "mish": (F.mish, -10, 10),
    "elu": (F.elu, -5, 5),
    "logsigmoid": (F.logsigmoid, -10, 10),
    "erf": (torch.erf, -4, 4),
    "erfc": (torch.erfc, -4, 4),
    "erfinv": (torch.erfinv, -1, 1),
    "sin": (torch.sin, -10, 10),
    "cos": (torch.cos, -10, 10),
    "tan": (torch.tan, -1.5, 1.5),
    "asin": (torch.asin, -1, 1),
    "acos": (torch.acos, -1, 1),
    "atan": (torch.atan, -10, 10),
    "sinh": (torch.sinh, -10, 10),
    "cosh": (torch.cosh, -10, 10),
    "asinh": (torch.asinh, -10, 10),
    "acosh": (torch.acosh, 1, 10),
    "atanh": (torch.atanh, -1, 1),
    "sqrt": (torch.sqrt, 0, 10),
    "rsqrt": (torch.rsqrt, 0, 10),
    "reciprocal": (torch.reciprocal, 0.1, 10),
    "cube": (lambda x: torch.pow(x, 3), -10, 10),
    "pow_2_5": (lambda x: torch.pow(x, 2.5), 0, 10),
    "lgamma": (torch.lgamma, 0, 10),
    "digamma": (torch.digamma, 0.1, 10),
    "floor": (torch.floor, -10, 10),
    "round": (torch.round, -10, 10),
    "trunc": (torch.trunc, -10, 10),
    "frac": (torch.frac, -10, 10),
    "sign": (torch.sign, -1, 1),
    "i0": (torch.i0, -5, 5),
}

BINARY: dict[str, tuple[Callable[..., Tensor], float, float]] = {
    "pow": (torch.pow, 0, 5),
    "divide": (torch.div, 0.1, 10),
    "floor_divide": (torch.floor_divide, 0.1, 10),
    "fmod": (torch.fmod, -10, 10),
    "remainder": (torch.remainder, -10, 10),
    "atan2": (torch.atan2, -10, 10),
    "hypot": (torch.hypot, -10, 10),
    "logaddexp": (torch.logaddexp, -10, 10),
    "xlogy": (torch.xlogy, 0, 10),
    "copysign": (torch.copysign, -10, 10),
    "fmax": (torch.fmax, -10, 10),
}


def of_one(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """A frame of Python's around the function, for compilers to catch."""

    def alone(x: Tensor) -> Tensor:
        return function(x)

    return alone


def of_two(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The same for two arguments."""

    def alone(x: Tensor, y: Tensor) -> Tensor:
        return function(x, y)

    return alone


def ordinary(low: float, high: float, arguments: int) -> Make:
    """Numbers spread evenly between two others, neither included."""
    return lambda dtype: tuple(torch.empty(COUNT).uniform_(low, high).to(dtype) for _ in range(arguments))


def special(arguments: int) -> Make:
    """Ordinary numbers, and special ones between them: every special one meets every other."""

    def one(dtype: torch.dtype, position: int) -> Tensor:
        x, count = torch.randn(COUNT) * 3, len(SPECIAL)
        turns = torch.arange(COUNT // 8) // count**position % count
        x[::8] = torch.tensor(SPECIAL)[turns]
        return x.to(dtype)

    return lambda dtype: tuple(one(dtype, position) for position in range(arguments))


ELEMENTARY = (
    *group(
        "elementary",
        *(Case(name, of_one(fn), ordinary(low, high, 1)) for name, (fn, low, high) in UNARY.items()),
        *(Case(name, of_two(fn), ordinary(low, high, 2)) for name, (fn, low, high) in BINARY.items()),
    ),
    *group(
        "special",
        *(Case(f"{name}_special", of_one(fn), special(1), SINGLE) for name, (fn, _, _) in UNARY.items()),
        *(Case(f"{name}_special", of_two(fn), special(2), SINGLE) for name, (fn, _, _) in BINARY.items()),
    ),
)
