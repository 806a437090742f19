"""No step of an elementary function gives a subnormal number, unless its result is one: Note [No subnormal steps].

Steps are counted in the interpreter of their IR, in the variants of all processors. The processor's own
flags are read, too: of MXCSR the flags *denormal operand* and *underflow*, which stay set until they are cleared.
"""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable

import numpy as np
import pytest
import torch
from graphs.tracing import trace
from render.llvm.math_functions.ir_interpreter import LEAST, Array, interpret
from torch.nn import functional as F

from framesmith_backends import CpuBackend
from framesmith_backends.ir.ops import OPS
from framesmith_backends.launch.llvm.engine import engine_of
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.render.llvm.ops import functions
from framesmith_backends.target import CPU

on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="another processor than x86")
TABLES = {dtype: functions(dtype) for dtype in ("f32", "f64", "bf16")}
#: Of two numbers that are divided, quotients and rests of such sizes are no subnormal ones.
ORDINARY = {"atan2": (2.0**-40, 2.0**40), "fmod": (2.0**-48, 2.0**76), "floordiv": (2.0**-48, 2.0**76)}


def every_size(kind: type[np.floating], count: int | None = None) -> Array:
    """Normal numbers of every exponent and sign, the ends of powers and of angles, and special numbers."""
    least, most = int(np.log2(float(np.finfo(kind).tiny))), np.finfo(kind).maxexp
    heads = np.array([1.0, 1.0000001, 1.25, 1.4142135, 1.5, 1.75, 1.9999999])
    sizes = np.ldexp(heads[None], np.arange(least, most)[:, None]).reshape(-1)
    whole = np.arange(-160, 161)
    span = 7 * most
    edges = [np.linspace(-span, span, 40 * 121) / 8, whole, whole * np.log(2) / 2, whole * (np.pi / 2), whole * 8.0]
    found = np.concatenate([sizes, -sizes, *edges]).astype(kind)
    if count is not None:
        found = found[:: len(found) // count]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 0.5, -104.0, -103.98, 88.7]
    return np.concatenate([found, np.array(special, kind)])


def arguments(name: str, kind: type[np.floating]) -> tuple[Array, ...]:
    if OPS[name].arity == 1:
        return (every_size(kind),)
    some = every_size(kind, 500)
    low, high = ORDINARY.get(name, (0.0, np.inf))
    some = some[~((abs(some) < low) & (some != 0)) & ~((abs(some) > high) & np.isfinite(some))]
    one, other = np.meshgrid(some, some)
    return one.reshape(-1), other.reshape(-1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("scalef", [False, True], ids=["without", "avx512"])
@pytest.mark.parametrize(("table", "name"), [(table, name) for table, rows in TABLES.items() for name in rows])
def test_no_step_is_subnormal(table: str, name: str, scalef: bool) -> None:
    """Nor one that is 0 where an exact one would not be. Not asked of arguments beyond a function's domain."""
    inputs = arguments(name, np.float64 if table == "f64" else np.float32)
    lanes = 16 if scalef and table != "f64" else 8
    found, steps = interpret(TABLES[table][name], *inputs, scalef=scalef, lanes=lanes)
    asked = np.ones(len(found), bool)
    for x in (*inputs, found):
        asked &= ~((abs(x) < LEAST[x.dtype]) & (x != 0))
    asked &= ~np.isnan(found) | np.any([np.isnan(x) for x in inputs], axis=0)
    wrong = [
        (step.text, *(float(x[lane]) for x in inputs))
        for step in steps
        for lane in np.flatnonzero(step.lanes & asked)[:1]
    ]
    assert wrong == []


def test_steps_are_counted() -> None:
    """The interpreter finds what there is to find."""
    x = np.array([1e-30, 1.0, -2.0], np.float32)
    squares, steps = interpret(lambda b, v: b.mul(v, v), x, scalef=False, lanes=8)
    assert squares.tolist() == [0.0, 1.0, 4.0] and [step.lanes.tolist() for step in steps] == [[True, False, False]]
    _, steps = interpret(lambda b, v: b.mul(v, 2.0**-126), x, scalef=False, lanes=8)
    assert [step.lanes.tolist() for step in steps] == [[True, False, False]]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("table", "name"), [(table, name) for table, rows in TABLES.items() for name in rows])
def test_both_variants_agree(table: str, name: str) -> None:
    """That of processors with AVX-512 and that of others, of which a machine runs one."""
    inputs = arguments(name, np.float64 if table == "f64" else np.float32)
    one, other = (
        interpret(TABLES[table][name], *inputs, scalef=scalef, lanes=16 if scalef and table != "f64" else 8)[0]
        for scalef in (False, True)
    )
    unit = np.maximum(abs(np.spacing(one)), np.finfo(one.dtype).smallest_subnormal)
    with np.errstate(invalid="ignore"):
        distance = np.where(one == other, 0.0, abs(one - other) / unit)
    assert np.array_equal(np.isnan(one), np.isnan(other))
    assert np.nanmax(distance) <= 5


#: Bits of MXCSR: an operand was subnormal; a result was too small for a normal number, and rounded.
DENORMAL, UNDERFLOW, ALL_FLAGS = 1 << 1, 1 << 4, 0x3F

MODULE = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i32 @fs.flags() {
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %found = load i32, ptr %place
  ret i32 %found
}
define void @fs.set_flags(i32 %flags) {
  %place = alloca i32
  store i32 %flags, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  ret void
}
"""

#: Functions of hidden scores and far arguments.
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp, "exp2": torch.exp2, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "erf": torch.erf,
    "log": torch.log, "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish, "softplus": F.softplus, "logsigmoid": F.logsigmoid, "elu": F.elu, "erfc": torch.erfc,
    "sinh": torch.sinh, "cosh": torch.cosh, "expm1": torch.expm1, "pow": lambda x: torch.pow(x.abs(), 2.5),
}  # fmt: skip
#: Far ones, and those that other numbers are shifted to.
FAR = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 20.0, 80.0, -20.0, -160.0, -1e4, -3e38, 3e38]


class Flags:
    """The processor's flags, of this thread."""

    def __init__(self) -> None:
        self.engine = engine_of("module", MODULE)
        self._get = ctypes.CFUNCTYPE(ctypes.c_uint32)(self.engine.get_function_address("fs.flags"))
        self._set = ctypes.CFUNCTYPE(None, ctypes.c_uint32)(self.engine.get_function_address("fs.set_flags"))

    def clear(self) -> None:
        self._set(self._get() & ~ALL_FLAGS)

    def found(self) -> int:
        return int(self._get()) & (DENORMAL | UNDERFLOW)


@pytest.fixture(scope="module")
def flags() -> Flags:
    return Flags()


def flags_of(flags: Flags, function: Callable[..., object], *inputs: torch.Tensor) -> int:
    gm = trace(function, inputs)
    assert not lower_graph(gm, CPU).notes, "it is to be a kernel"
    call = CpuBackend().compile(gm, inputs)
    call(list(inputs))
    flags.clear()
    call(list(inputs))
    return flags.found()


@on_x86
def test_the_flags_are_read(flags: Flags) -> None:
    tiny = torch.full((64,), 1e-40)
    assert flags_of(flags, lambda x: x * 3.0, tiny) & DENORMAL
    assert flags_of(flags, lambda x: x * 1e-20, torch.full((64,), 1e-20)) & UNDERFLOW
    assert flags_of(flags, lambda x: x * 3.0, torch.ones(64)) == 0


@pytest.mark.sampled(3)
@on_x86
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(flags: Flags, name: str) -> None:
    assert [x for x in FAR if flags_of(flags, FUNCTIONS[name], torch.full((64,), x))] == []


@on_x86
@pytest.mark.parametrize("share", [0.5, 0.97])
def test_softmax_of_hidden_scores(flags: Flags, share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 256, generator=generator) * 3
    x[:, 1:].masked_fill_(torch.rand(8, 255, generator=generator) < share, -math.inf)
    for function in (lambda a: torch.softmax(a, -1), lambda a: torch.log_softmax(a, -1), lambda a: a.logsumexp(-1)):
        assert flags_of(flags, function, x) == 0


@on_x86
def test_attention_on_hidden_keys(flags: Flags) -> None:
    query, key, value = torch.randn(3, 1, 2, 64, 32, generator=torch.Generator().manual_seed(0))
    hidden = torch.zeros(64, 64)
    hidden[:, 1::2] = -math.inf
    call = lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m)  # noqa: E731
    gm = trace(call, [query, key, value, hidden])
    run = CpuBackend().compile(gm, [query, key, value, hidden])
    run([query, key, value, hidden])
    flags.clear()
    run([query, key, value, hidden])
    assert flags.found() == 0
