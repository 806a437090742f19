"""Softmax, attention and exponentials of -inf and of far arguments go through no subnormal numbers.

On Intel's processors each such step is done by microcode: `exp` of -inf took 18 times the time of `exp` of 0. The
processor tells by itself: of MXCSR the flags *denormal operand* and *underflow*, which stay set until they are cleared.
"""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.launch.native import engine_of
from framesmith_backends.lower.graph import lower_graph

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="another processor than x86")

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

#: What hidden scores and far arguments go through. Steps of gelu, mish and softplus still underflow, and of sigmoid
#: where its result is smaller than the root of the smallest normal number.
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp, "exp2": torch.exp2, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "erf": torch.erf,
    "log": torch.log, "silu": F.silu,
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
    assert not lower_graph(gm).notes, "it is to be a kernel"
    call = CpuBackend().compile(gm, inputs)
    call(list(inputs))
    flags.clear()
    call(list(inputs))
    return flags.found()


def test_the_flags_tell(flags: Flags) -> None:
    tiny = torch.full((64,), 1e-40)
    assert flags_of(flags, lambda x: x * 3.0, tiny) & DENORMAL
    assert flags_of(flags, lambda x: x * 1e-20, torch.full((64,), 1e-20)) & UNDERFLOW
    assert flags_of(flags, lambda x: x * 3.0, torch.ones(64)) == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(flags: Flags, name: str) -> None:
    assert [x for x in FAR if flags_of(flags, FUNCTIONS[name], torch.full((64,), x))] == []


@pytest.mark.parametrize("share", [0.5, 0.97])
def test_softmax_of_hidden_scores(flags: Flags, share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 256, generator=generator) * 3
    x[:, 1:].masked_fill_(torch.rand(8, 255, generator=generator) < share, -math.inf)
    for function in (lambda a: torch.softmax(a, -1), lambda a: torch.log_softmax(a, -1), lambda a: a.logsumexp(-1)):
        assert flags_of(flags, function, x) == 0


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
