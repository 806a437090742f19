"""The core operations and reductions: one row each, with what every stage asks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_backends.ir.dtypes import DTYPES, extremes
from framesmith_guards.torch_adapter import aten

#: An emitter for all types, or emitters by the name of a type or by its kind.
Emitters = str | Mapping[str, str]
#: The key of an emitter for results of float32 that are rounded to bfloat16 at once: it is less exact.
APPROXIMATE = "bf16"


@dataclass(frozen=True, slots=True)
class OpRow:
    """A core operation.

    `kinds` are those of the operands: b(ool), i(nteger, signed or not), f(loat); `result` is "same" or "b1". `cost` is
    in cycles per vector, roughly. `meaning` computes the operation on torch tensors of equal dtype.
    An emitter of `llvm` is a method of `Builder`, or "module:function" below `render.llvm`, with its first argument
    behind a space if it takes one; one of `triton` is text with the operands as {0}, {1}. A node whose type has none
    runs as an ATen call.
    `aten` has the ATen operators that are this operation on operands of their common type. `derivative` names the
    operation by which the gradient is multiplied. `exact`: results of operands that a narrower type holds are held by
    it, too; `chooses`: they are operands.
    """

    name: str
    arity: int
    kinds: str
    cost: int
    meaning: Callable[..., Any]
    llvm: Emitters
    triton: Emitters = ""
    result: str = "same"
    aten: str = ""
    derivative: str = ""
    exact: bool = False
    chooses: bool = False


def emitter(given: Emitters, dtype: str) -> str | None:
    """The emitter for operands of a type; None where there is none."""
    if isinstance(given, str):
        return given or None
    kind = DTYPES[dtype].kind
    return given.get(dtype) or given.get(kind) or (given.get("i") if kind == "u" else None)


def has_own(given: Emitters, dtype: str) -> bool:
    """Whether a type has an emitter of its own."""
    return not isinstance(given, str) and dtype in given


def _derivative(backward: Callable[..., torch.Tensor], **options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: backward(torch.ones_like(x), x, **options)


def _compared(name: str, meaning: Callable[..., Any], sign: str, kinds: str = "if") -> OpRow:
    unordered, signed = ("u" if name == "ne" else "o"), ("" if name in ("eq", "ne") else "s")
    llvm = {
        "f": f"compare {unordered}{name}",
        "i": f"compare {signed}{name}",
        "u": f"compare {signed and 'u'}{name}",
        "b": f"compare {name}",
    }
    triton, names = f"({{0}} {sign} {{1}})", f"{name}.Tensor {name}.Scalar"
    return OpRow(name, 2, kinds, 1, meaning, llvm, triton, "b1", names)


def _extreme(name: str, predicate: str, meaning: Callable[..., Any]) -> OpRow:
    llvm = {kind: f"ops:extreme {order}{predicate}" for kind, order in (("f", "o"), ("i", "s"), ("u", "u"))}
    triton = {"f": f"fs.{name}({{0}}, {{1}})", "i": f"fs.{name}_integer({{0}}, {{1}})"}
    return OpRow(name, 2, "if", 3, meaning, llvm, triton, exact=True)


def _rounded(name: str, intrinsic: str, meaning: Callable[..., Any]) -> OpRow:
    return OpRow(name, 1, "f", 2, meaning, f"intrinsic {intrinsic}", f"fs.{name}({{0}})", exact=True)


def _function(
    name: str,
    cost: int,
    meaning: Callable[..., Any],
    module: str,
    *,
    arity: int = 1,
    float64: str = "",
    approximate: str = "",
    on_gpus: bool = True,
    aten: str = "",
    derivative: str = "",
) -> OpRow:
    """A function of floating numbers that a module of `math` emits, and one of the same name in Triton's support.

    `float64` is the module of its form for that type, if it has one; `approximate` names the renderers with one for
    results rounded to bfloat16 at once.
    """
    operands = "({0})" if arity == 1 else "({0}, {1})"
    llvm = {"f32": f"math.{module}:{name}"}
    triton = {"f": f"fs.{name}{operands}"} if on_gpus else {}
    if float64:
        llvm["f64"] = f"math.{float64}:{name}"
    if "llvm" in approximate:
        llvm[APPROXIMATE] = f"math.approximate:{name}"
    if "triton" in approximate:
        triton[APPROXIMATE] = f"fs.approximate_{name}{operands}"
    return OpRow(name, arity, "f", cost, meaning, llvm, triton, aten=aten, derivative=derivative)


def _bitwise(name: str, meaning: Callable[..., Any], sign: str, names: str) -> OpRow:
    return OpRow(name, 2, "bi", 1, meaning, f"binary {name}", f"({{0}} {sign} {{1}})", aten=names)


_ROWS: tuple[OpRow, ...] = (
    OpRow("add", 2, "if", 1, torch.add, "add", "({0} + {1})"),
    OpRow("sub", 2, "if", 1, torch.sub, "sub", "({0} - {1})"),
    OpRow("mul", 2, "if", 1, torch.mul, "mul", "({0} * {1})"),
    OpRow("div", 2, "f", 8, torch.div, "div", "fs.div({0}, {1})"),
    OpRow(
        "idiv", 2, "i", 30, lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        {"i": "ops:quotient s", "u": "ops:quotient u"}, "({0} // {1})",
    ),
    # Shifts are by less than the number of bits, and not by negative numbers.
    OpRow("shl", 2, "i", 1, torch.bitwise_left_shift, "binary shl", "({0} << {1})"),
    OpRow("shr", 2, "i", 1, torch.bitwise_right_shift, {"i": "binary ashr", "u": "binary lshr"}, "({0} >> {1})"),
    OpRow(
        "fmod", 2, "if", 30, torch.fmod, {"f32": "math.elementary:fmod", "i": "binary srem"},
        {"f": "fs.fmod({0}, {1})", "i": "fs.fmod_integer({0}, {1})"},
    ),
    _function("floordiv", 20, torch.floor_divide, "elementary", arity=2),
    _function("pow", 80, torch.pow, "via_float64", arity=2, float64="float64_pow"),
    _function("atan2", 60, torch.atan2, "trigonometric", arity=2, aten="atan2"),
    _function("hypot", 30, torch.hypot, "via_float64", arity=2, aten="hypot"),
    _function("logaddexp", 45, torch.logaddexp, "logarithmic", arity=2, aten="logaddexp"),
    _function("logaddexp2", 45, torch.logaddexp2, "logarithmic", arity=2, aten="logaddexp2"),
    OpRow(
        "neg", 1, "if", 1, torch.neg, {"f": "ops:negative", "i": "neg"}, {"f": "({0} * -1.0)", "i": "(-{0})"},
        exact=True,
    ),
    OpRow(
        "abs", 1, "if", 1, torch.abs, {"f": "ops:magnitude", "i": "ops:absolute"}, "tl.abs({0})", exact=True,
    ),
    _extreme("max", "gt", torch.maximum),
    _extreme("min", "lt", torch.minimum),
    OpRow(
        "copysign", 2, "f", 2, torch.copysign, "ops:copysign", "fs.copysign({0}, {1})",
        aten="copysign.Tensor copysign.Scalar", exact=True,
    ),
    _compared("eq", torch.eq, "==", "bif"),
    _compared("ne", torch.ne, "!=", "bif"),
    _compared("lt", torch.lt, "<"),
    _compared("le", torch.le, "<="),
    _compared("gt", torch.gt, ">"),
    _compared("ge", torch.ge, ">="),
    OpRow("isnan", 1, "f", 1, torch.isnan, "ops:is_nan", "({0} != {0})", "b1"),
    OpRow("signbit", 1, "f", 1, torch.signbit, "ops:sign_bit", "fs.signbit({0})", "b1"),
    _bitwise("and", torch.bitwise_and, "&", "bitwise_and.Tensor bitwise_and.Scalar"),
    _bitwise("or", torch.bitwise_or, "|", "bitwise_or.Tensor bitwise_or.Scalar"),
    _bitwise("xor", torch.bitwise_xor, "^", "bitwise_xor.Tensor"),
    OpRow("not", 1, "bi", 1, torch.bitwise_not, "ops:inverse", {"b": "({0} == 0)", "i": "(~{0})"}, aten="bitwise_not"),
    OpRow("where", 3, "bif", 1, torch.where, "select", "tl.where({0}, {1}, {2})", exact=True, chooses=True),
    # The value of an element that is replaced, given the old one.
    OpRow("put", 2, "bif", 0, lambda old, new: new, "ops:second", "{1}", exact=True, chooses=True),
    OpRow("sqrt", 1, "f", 12, torch.sqrt, "intrinsic sqrt", {"f64": "tl.sqrt({0})", "f": "fs.sqrt({0})"}, aten="sqrt"),
    OpRow(  # f32 is named: one of the types with an emitter of its own (`has_own`)
        "rsqrt", 1, "f", 20, torch.rsqrt, {"f32": "math.elementary:rsqrt", "f": "math.elementary:rsqrt"},
        {"f64": "(1.0 / tl.sqrt({0}))", "f": "fs.rsqrt({0})"}, aten="rsqrt",
    ),
    _function("exp", 20, torch.exp, "elementary", float64="float64", aten="exp"),
    _function("exp2", 18, torch.exp2, "elementary", float64="float64", aten="exp2"),
    _function("expm1", 28, torch.expm1, "elementary", float64="float64", aten="expm1"),
    _function("log", 25, torch.log, "elementary", float64="float64", aten="log"),
    _function("log2", 28, torch.log2, "elementary", float64="float64", aten="log2"),
    _function("log10", 28, torch.log10, "elementary", float64="float64", aten="log10"),
    _function("log1p", 32, torch.log1p, "elementary", float64="float64", aten="log1p"),
    _function("sin", 40, torch.sin, "trigonometric", float64="float64", aten="sin"),
    _function("cos", 40, torch.cos, "trigonometric", float64="float64", aten="cos"),
    _function("tanh", 30, torch.tanh, "elementary", float64="float64", aten="tanh"),
    _function("erf", 45, torch.erf, "elementary", float64="float64", aten="erf"),
    _function("sigmoid", 26, torch.sigmoid, "elementary", float64="float64", approximate="llvm triton", aten="sigmoid"),
    _rounded("floor", "floor", torch.floor),
    _rounded("ceil", "ceil", torch.ceil),
    _rounded("round", "rint", torch.round),
    _rounded("trunc", "trunc", torch.trunc),
    _function("tan", 50, torch.tan, "trigonometric", aten="tan"),
    _function("asin", 50, torch.asin, "trigonometric", aten="asin"),
    _function("acos", 50, torch.acos, "trigonometric", aten="acos"),
    _function("atan", 50, torch.atan, "trigonometric", aten="atan"),
    _function("sinh", 45, torch.sinh, "elementary", aten="sinh"),
    _function("cosh", 40, torch.cosh, "elementary", aten="cosh"),
    _function("asinh", 80, torch.asinh, "via_float64", aten="asinh"),
    _function("acosh", 80, torch.acosh, "via_float64", aten="acosh"),
    _function("atanh", 45, torch.atanh, "elementary", aten="atanh"),
    _function("erfc", 50, torch.erfc, "activations", aten="erfc"),
    _function("erfinv", 60, torch.erfinv, "logarithmic", aten="erfinv"),
    _function("lgamma", 100, torch.lgamma, "gamma", aten="lgamma"),
    _function("digamma", 70, torch.digamma, "gamma", on_gpus=False, aten="digamma"),
    _function("i0", 130, torch.special.i0, "bessel", aten="i0"),
    _function("i1", 130, torch.special.i1, "bessel", aten="special_i1"),
    _function("i0e", 130, torch.special.i0e, "bessel", on_gpus=False, aten="special_i0e"),
    _function("i1e", 130, torch.special.i1e, "bessel", on_gpus=False, aten="special_i1e"),
    # NaN at both infinities, as where oneDNN computes it.
    _function(
        "gelu", 45, lambda x: aten.gelu(x) + x * 0.0, "activations", approximate="llvm triton", derivative="dgelu",
    ),
    _function(
        "gelu_tanh", 45, lambda x: aten.gelu(x, approximate="tanh"), "activations", approximate="triton",
        derivative="dgelu_tanh",
    ),
    _function("silu", 35, aten.silu, "activations", approximate="triton", aten="silu", derivative="dsilu"),
    _function("mish", 40, aten.mish, "activations", aten="mish", derivative="dmish"),
    _function("dgelu", 45, _derivative(aten.gelu_backward), "activations"),
    _function("dgelu_tanh", 60, _derivative(aten.gelu_backward, approximate="tanh"), "activations"),
    _function("dsilu", 45, _derivative(aten.silu_backward), "activations"),
    _function("dmish", 55, _derivative(aten.mish_backward), "activations"),
)  # fmt: skip

OPS: dict[str, OpRow] = {row.name: row for row in _ROWS}


@dataclass(frozen=True, slots=True)
class ReductionRow:
    """A reduction: the operation that combines two values, the kinds it takes, its start value and its meaning.

    `triton` is its text, with the tile, the axis, and whether dimensions are kept; a function of the support module by
    default.
    """

    name: str
    combine: str
    kinds: str
    start: Callable[[str], bool | int | float]
    meaning: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    triton: str = "fs.reduce_{name}({x}, {axis}, {keep})"


def _prod(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, dtype=x.dtype)
    return x


_REDUCTIONS: tuple[ReductionRow, ...] = (
    ReductionRow("sum", "add", "if", lambda d: 0.0 if d[0] == "f" else 0, lambda x, dims: x.sum(dims, dtype=x.dtype)),
    ReductionRow("prod", "mul", "if", lambda d: 1.0 if d[0] == "f" else 1, _prod),
    ReductionRow("max", "max", "if", lambda d: extremes(d)[0], lambda x, dims: x.amax(dims)),
    ReductionRow("min", "min", "if", lambda d: extremes(d)[1], lambda x, dims: x.amin(dims)),
    ReductionRow("any", "or", "b", lambda d: False, lambda x, dims: torch.any(x, dims)),
    ReductionRow("all", "and", "b", lambda d: True, lambda x, dims: torch.all(x, dims)),
)

REDUCTIONS: dict[str, ReductionRow] = {row.name: row for row in _REDUCTIONS}

#: The kind of a scan whose steps are expressions of what is carried (`ir.expr.Recurrence`).
STEPS = "steps"
#: Rows that may be scanned: combined up to each point.
SCANS: dict[str, ReductionRow] = {
    **{name: REDUCTIONS[name] for name in ("sum", "prod", "max", "min")},
    "logsumexp": ReductionRow("logsumexp", "logaddexp", "f", lambda d: extremes(d)[0], torch.logsumexp),
}

#: ATen's convolutions -> the positions of their inputs, weights, and gradients of results.
CONVOLUTIONS: dict[object, tuple[int, int, int | None]] = {
    aten.convolution.default: (0, 1, None),
    aten.convolution_backward.default: (1, 2, 0),
}
#: ATen's attention on the CPU.
CPU_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
