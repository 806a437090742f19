"""float8: kernels read, round and move them as eager mode does, and compute with none."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from interpreter_scripts.run import interpreted
from sample_programs.float8 import KINDS, differing, every, moved, per_row, programs

from framesmith_backends import CpuBackend, CudaBackend

Tensor = torch.Tensor
CPU = CpuBackend()
PROGRAMS = [*programs()]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def assert_same(found: Any, wanted: Any) -> None:
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert [differing(one, other) for one, other in zip(found, wanted, strict=True)] == [0] * len(wanted)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("function", "x"), [one[1:] for one in PROGRAMS], ids=[one[0] for one in PROGRAMS])
def test_results_are_eagers(function: Callable[..., Any], x: Tensor) -> None:
    gm = trace(function, [x])
    stages = CPU.explain(gm)
    assert stages.plan.kernels
    if function is not moved:  # which has a matmul
        assert not stages.lowering.notes
    assert_same(CPU.compile(gm, [x])([x]), function(x))
    last = x[3:]  # begins anywhere
    assert_same(CPU.compile(trace(function, [last]), [last])([last]), function(last))


@pytest.mark.parametrize("kind", KINDS)
def test_changing_sizes(kind: torch.dtype) -> None:
    function = per_row(kind)
    call = CPU.compile(trace_symbolic(function, [torch.randn(4, 7)]), [torch.randn(4, 7)])
    for sizes in ((4, 7), (3, 200), (1, 1), (64, 33)):
        x = torch.randn(sizes)
        assert_same(call([x]), function(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x, lambda x: x * 2, lambda x: -x, lambda x: x.sum(), lambda x: x.amax(-1), lambda x: x.sort(),
        lambda x: x.cumsum(0), lambda x: x > x, lambda x: x.relu(),
    ],
)  # fmt: skip
def test_operators_that_eager_mode_refuses_are_refused(function: Callable[..., Any], kind: torch.dtype) -> None:
    x = every(kind)
    with pytest.raises(NotImplementedError):
        function(x)
    with pytest.raises(NotImplementedError):
        CPU.compile(trace(function, [x]), [x])([x])


@needs_triton
def test_interpreted_numbers_are_eagers() -> None:
    assert interpreted("float8").count("ok ") == len(PROGRAMS)


@needs_triton
@pytest.mark.parametrize("capability", (80, 90, 100))
def test_kernels_compile_where_there_are_no_such_instructions(capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.cubins import cubin

    for kind in KINDS:
        for kernel in CudaBackend().explain(trace(per_row(kind), [torch.randn(9, 70)])).kernels:
            assert cubin(kernel, False, capability).code


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("function", "x"), [one[1:] for one in PROGRAMS], ids=[one[0] for one in PROGRAMS])
def test_on_a_real_device(function: Callable[..., Any], x: Tensor) -> None:
    with torch.device("cuda"):
        x = x.cuda()
        assert_same(CudaBackend().compile(trace(function, [x]), [x])([x]), function(x))
