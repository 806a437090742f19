"""The core set of scalar operations: one row each, read by the verifier, the interpreter and the scheduler.

Every renderer has its own table keyed by the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_backends.ir.dtypes import extremes
from framesmith_guards.torch_adapter import aten


@dataclass(frozen=True, slots=True)
class OpRow:
    """`kinds`: the operand kinds taken (b, i for integers signed or not, f); `result`: "same" or "b1".

    `cost` is in cycles per vector, roughly; `meaning` is the operation on torch tensors of equal dtype. Shifts are by
    less than the number of bits, and not by negative numbers. A node that needs an operation of float64 that renderers
    do not have, or one on GPUs that their device library does not have, runs as an ATen call.
    """

    name: str
    arity: int
    kinds: str
    cost: int
    meaning: Callable[..., Any]
    result: str = "same"
    float64: bool = True
    on_gpus: bool = True


def _truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _put(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The second operand: what an element becomes that is replaced, whatever it was."""
    return new


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """NaN at both infinities, as where oneDNN computes it."""
    found: torch.Tensor = aten.gelu(x) + x * 0.0
    return found


def _dgelu(approximate: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: aten.gelu_backward(torch.ones_like(x), x, approximate=approximate)


def _derivative(backward: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: backward(torch.ones_like(x), x)


#: Of floating numbers: name, cost and meaning. Renderers have no float64 form of the second and the third ones, and on
#: GPUs none of the third ones.
_UNARY: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("sqrt", 12, torch.sqrt),
    ("rsqrt", 20, torch.rsqrt),
    ("exp", 20, torch.exp),
    ("exp2", 18, torch.exp2),
    ("expm1", 28, torch.expm1),
    ("log", 25, torch.log),
    ("log2", 28, torch.log2),
    ("log10", 28, torch.log10),
    ("log1p", 32, torch.log1p),
    ("sin", 40, torch.sin),
    ("cos", 40, torch.cos),
    ("tanh", 30, torch.tanh),
    ("erf", 45, torch.erf),
    ("sigmoid", 26, torch.sigmoid),
    ("floor", 2, torch.floor),
    ("ceil", 2, torch.ceil),
    ("round", 2, torch.round),
    ("trunc", 2, torch.trunc),
)

_UNARY_FLOAT32: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("tan", 50, torch.tan),
    ("asin", 50, torch.asin),
    ("acos", 50, torch.acos),
    ("atan", 50, torch.atan),
    ("sinh", 45, torch.sinh),
    ("cosh", 40, torch.cosh),
    ("asinh", 80, torch.asinh),
    ("acosh", 80, torch.acosh),
    ("atanh", 45, torch.atanh),
    ("erfc", 50, torch.erfc),
    ("erfinv", 60, torch.erfinv),
    ("lgamma", 100, torch.lgamma),
    ("i0", 130, torch.special.i0),
    ("i1", 130, torch.special.i1),
    ("gelu", 45, _gelu),
    ("gelu_tanh", 45, lambda x: aten.gelu(x, approximate="tanh")),
    ("silu", 35, aten.silu),
    ("mish", 40, aten.mish),
    ("dgelu", 45, _dgelu("none")),
    ("dgelu_tanh", 60, _dgelu("tanh")),
    ("dsilu", 45, _derivative(aten.silu_backward)),
    ("dmish", 55, _derivative(aten.mish_backward)),
)

_UNARY_FLOAT32_ON_CPU: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("digamma", 70, torch.digamma),
    ("i0e", 130, torch.special.i0e),
    ("i1e", 130, torch.special.i1e),
)

_ROWS: tuple[OpRow, ...] = (
    OpRow("add", 2, "if", 1, torch.add),
    OpRow("sub", 2, "if", 1, torch.sub),
    OpRow("mul", 2, "if", 1, torch.mul),
    OpRow("div", 2, "f", 8, torch.div),
    OpRow("idiv", 2, "i", 30, _truncated),
    OpRow("shl", 2, "i", 1, torch.bitwise_left_shift),
    OpRow("shr", 2, "i", 1, torch.bitwise_right_shift),
    OpRow("fmod", 2, "if", 30, torch.fmod, float64=False),
    OpRow("floordiv", 2, "f", 20, torch.floor_divide, float64=False),
    OpRow("pow", 2, "f", 80, torch.pow, float64=False),
    OpRow("atan2", 2, "f", 60, torch.atan2, float64=False),
    OpRow("hypot", 2, "f", 30, torch.hypot, float64=False),
    OpRow("logaddexp", 2, "f", 45, torch.logaddexp, float64=False),
    OpRow("logaddexp2", 2, "f", 45, torch.logaddexp2, float64=False),
    OpRow("neg", 1, "if", 1, torch.neg),
    OpRow("abs", 1, "if", 1, torch.abs),
    OpRow("max", 2, "if", 3, torch.maximum),
    OpRow("min", 2, "if", 3, torch.minimum),
    OpRow("copysign", 2, "f", 2, torch.copysign),
    OpRow("eq", 2, "bif", 1, torch.eq, "b1"),
    OpRow("ne", 2, "bif", 1, torch.ne, "b1"),
    OpRow("lt", 2, "if", 1, torch.lt, "b1"),
    OpRow("le", 2, "if", 1, torch.le, "b1"),
    OpRow("gt", 2, "if", 1, torch.gt, "b1"),
    OpRow("ge", 2, "if", 1, torch.ge, "b1"),
    OpRow("isnan", 1, "f", 1, torch.isnan, "b1"),
    OpRow("signbit", 1, "f", 1, torch.signbit, "b1"),
    OpRow("and", 2, "bi", 1, torch.bitwise_and),
    OpRow("or", 2, "bi", 1, torch.bitwise_or),
    OpRow("xor", 2, "bi", 1, torch.bitwise_xor),
    OpRow("not", 1, "bi", 1, torch.bitwise_not),
    OpRow("where", 3, "bif", 1, torch.where),
    OpRow("put", 2, "bif", 0, _put),
    *(OpRow(name, 1, "f", cost, meaning) for name, cost, meaning in _UNARY),
    *(OpRow(name, 1, "f", cost, meaning, float64=False) for name, cost, meaning in _UNARY_FLOAT32),
    *(
        OpRow(name, 1, "f", cost, meaning, float64=False, on_gpus=False)
        for name, cost, meaning in _UNARY_FLOAT32_ON_CPU
    ),
)

OPS: dict[str, OpRow] = {row.name: row for row in _ROWS}


@dataclass(frozen=True, slots=True)
class ReductionRow:
    """A reduction: the scalar operation that combines two values, its start value by kind, and its meaning."""

    name: str
    combine: str
    kinds: str
    start: Callable[[str], bool | int | float]
    meaning: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]


def _matmul(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, dtype=x.dtype)
    return x


_REDUCTIONS: tuple[ReductionRow, ...] = (
    ReductionRow("sum", "add", "if", lambda d: 0.0 if d[0] == "f" else 0, lambda x, dims: x.sum(dims, dtype=x.dtype)),
    ReductionRow("prod", "mul", "if", lambda d: 1.0 if d[0] == "f" else 1, _matmul),
    ReductionRow("max", "max", "if", lambda d: extremes(d)[0], lambda x, dims: x.amax(dims)),
    ReductionRow("min", "min", "if", lambda d: extremes(d)[1], lambda x, dims: x.amin(dims)),
    ReductionRow("any", "or", "b", lambda d: False, lambda x, dims: torch.any(x, dims)),
    ReductionRow("all", "and", "b", lambda d: True, lambda x, dims: torch.all(x, dims)),
)

REDUCTIONS: dict[str, ReductionRow] = {row.name: row for row in _REDUCTIONS}

_SCANS: tuple[ReductionRow, ...] = (
    *(REDUCTIONS[name] for name in ("sum", "prod", "max", "min")),
    ReductionRow("logsumexp", "logaddexp", "f", lambda d: extremes(d)[0], torch.logsumexp),
)

# What may be combined up to each point: running sums and their like.
SCANS: dict[str, ReductionRow] = {row.name: row for row in _SCANS}
