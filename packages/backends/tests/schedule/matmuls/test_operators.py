"""Matmuls that run between kernels: the bits of ATen's, whatever the layouts; what they leave to ATen, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import by_eager, takes, trace_symbolic

from framesmith_backends import CpuBackend
from framesmith_backends.ir.matmul import Matmul
from framesmith_backends.launch.llvm.libraries import why_no_blas
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.render.llvm.module import PART
from framesmith_backends.reporting import Refusal
from framesmith_backends.schedule.matmuls.operators import blas_matmul
from framesmith_backends.schedule.plan import make_plan
from framesmith_backends.schedule.steps import CallStep
from framesmith_backends.target import CPU

Tensor = torch.Tensor
R = torch.randn

#: name -> (function, inputs)
TAKEN: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "rows": (lambda a, b: torch.mm(a, b), [R(5, 7), R(7, 9)]),
    "second transposed": (lambda a, b: torch.mm(a, b.t()), [R(5, 7), R(9, 7)]),
    "first transposed": (lambda a, b: torch.mm(a.t(), b), [R(7, 5), R(7, 9)]),
    "both transposed": (lambda a, b: torch.mm(a.t(), b.t()), [R(7, 5), R(9, 7)]),
    "bias": (lambda c, a, b: torch.addmm(c, a, b.t()), [R(9), R(5, 7), R(9, 7)]),
    "bias that is a part": (lambda c, a, b: torch.addmm(c[3:12], a, b.t()), [R(14), R(5, 7), R(9, 7)]),
    "kernels around": (lambda a, b: torch.mm(a + 1, b.exp()).relu().sum(0), [R(5, 7), R(7, 9)]),
    "columns of more": (lambda a, b: torch.mm(a[:, 2:9], b[1:, :9]), [R(5, 11), R(8, 12)]),
    "a chunk of heads": (lambda a, b: torch.mm(a.chunk(3, 1)[1], b), [R(5, 21), R(7, 9)]),
    "one of a batch": (lambda a, b: torch.mm(a[1], b[2].t()), [R(2, 5, 7), R(3, 9, 7)]),
    "one after the other": (lambda a, b, c: torch.mm(torch.mm(a, b), c), [R(5, 7), R(7, 9), R(9, 4)]),
    "the square": (lambda a: torch.mm(a, a), [R(6, 6)]),
    "the square, transposed": (lambda a: torch.mm(a.t(), a), [R(6, 5)]),
    "of a sum of one element": (lambda a, b: torch.mm(a, b), [R(5, 1), R(1, 9)]),
    "result seen as a view": (lambda a, b: torch.mm(a, b).t(), [R(5, 7), R(7, 9)]),
    "operand returned": (lambda a, b: (lambda h: (torch.mm(h, b), h, h.t()))(a * 2), [R(5, 7), R(7, 9)]),
    "behind other ATen calls": (lambda a, b: torch.mm(a.sort(1)[0], b).cumsum(0) + 1, [R(5, 7), R(7, 9)]),
    "large": (lambda c, a, b: torch.addmm(c, a, b).tanh(), [R(64), R(128, 96), R(96, 64)]),
}  # fmt: skip
#: name -> (function, inputs, the reason)
LEFT: dict[str, tuple[Callable[..., Any], list[Tensor], str]] = {
    "a row": (lambda a, b: torch.mm(a, b), [R(1, 7), R(7, 9)], "a row or a column"),
    "a column": (lambda a, b: torch.mm(a, b), [R(5, 7), R(7, 1)], "a row or a column"),
    "double": (lambda a, b: torch.mm(a, b), [R(5, 7).double(), R(7, 9).double()], "elements of type f64"),
    "nothing": (lambda a, b: torch.mm(a, b), [R(5, 0), R(0, 9)], "no elements"),
    "scaled": (lambda c, a, b: torch.addmm(c, a, b, alpha=2), [R(9), R(5, 7), R(7, 9)], "scaled"),
    "a bias for all": (lambda c, a, b: torch.addmm(c, a, b), [R(5, 9), R(5, 7), R(7, 9)], "a bias that is not"),
    "gaps": (lambda a, b: torch.mm(a[:, ::2], b), [R(5, 14), R(7, 9)], "neither rows nor columns"),
    "overlaps": (lambda a, b: torch.mm(a.as_strided((5, 7), (1, 1)), b), [R(40), R(7, 9)], "neither rows nor columns"),
}


def reasons(function: Callable[..., Any], inputs: list[Tensor]) -> list[str]:
    program = lower_graph(trace(function, inputs), CPU).program
    found = [blas_matmul(program, call) for call in program.calls.values()]
    return [one.reason for one in found if isinstance(one, Refusal)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", TAKEN)
def test_the_bits_of_eager(name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    function, inputs = TAKEN[name]
    gm = trace(function, inputs)
    plan = make_plan(lower_graph(gm, CPU).program, CPU, native=True)
    matmuls = [step for step in plan.steps if isinstance(step, CallStep) and "mm" in str(step.call.node.target)]
    assert plan.items_of(Matmul) and not matmuls, plan.text()
    by_hand = CpuBackend().compile(gm, inputs, options={"launch": "python", "matmul": "aten"})
    native = CpuBackend().compile(gm, inputs, options={"matmul": "aten"})
    for _ in range(2):
        for one, other, eager in zip(native(list(inputs)), by_hand(list(inputs)), gm(*inputs), strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride() == eager.stride()
            torch.testing.assert_close(one, eager)


@pytest.mark.parametrize("name", LEFT)
def test_matmuls_that_stay_with_aten(name: str) -> None:
    function, inputs, reason = LEFT[name]
    (found,) = reasons(function, inputs)
    assert reason in found
    gm = trace(function, inputs)
    for one, eager in zip(CpuBackend().compile(gm, inputs)(list(inputs)), gm(*inputs), strict=True):
        assert torch.equal(one, eager)


def test_nothing_is_allocated_between_matmuls() -> None:
    inputs = [R(8, 16), *(R(16, 16) for _ in range(6))]

    def chain(x: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights:
            x = torch.mm(x, weight.t()).relu()
        return x

    text = make_plan(lower_graph(trace(chain, inputs), CPU).program, CPU, native=True).text()
    # The result, and one arena of two buffers.
    assert text.count(" = new ") == 2 and f"new u8[{2 * 8 * 16 * 4}]" in text, text


@pytest.mark.skipif(why_no_blas() is not None, reason=f"matmuls are torch's own calls: {why_no_blas()}")
@pytest.mark.parametrize("tracer", [trace, trace_symbolic])
def test_long_lists_are_several_functions(tracer: Callable[..., Any]) -> None:
    def chain(x: Tensor, factor: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        for k in range(100):
            x = torch.addmm(factor, x, weights[k % 3]).tanh()
        return x, x.t()

    inputs = [R(8, 12), R(12), *(R(12, 12) / 6 for _ in range(3))]
    gm = tracer(chain, inputs)
    functions = CpuBackend().explain(gm).llvm.split("\ndefine ")
    assert max(f.count(" call ") for f in functions) <= PART + 8 and any(".part3(" in f for f in functions)
    for one, eager in zip(CpuBackend().compile(gm, inputs)(list(inputs)), chain(*inputs), strict=True):
        assert one.stride() == eager.stride()
        torch.testing.assert_close(one, eager)


@contextmanager
def rounding(kind: str) -> Iterator[None]:
    torch.backends.mkldnn.matmul.fp32_precision = kind
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


def test_rounded_matmuls_are_atens() -> None:
    inputs = [R(96), R(128, 64), R(96, 64)]
    gm = trace(lambda c, a, b: torch.addmm(c, a, b.t()) + torch.mm(a, b.t()), inputs)
    call = CpuBackend().compile(gm, inputs, options={"matmul": "aten"})
    exact = call(list(inputs))[0]
    with rounding("bf16"):
        assert torch.equal(call(list(inputs))[0], gm(*inputs)[0])
    assert torch.equal(call(list(inputs))[0], exact)
    torch.testing.assert_close(exact, gm(*inputs)[0])


def test_symbolic_sizes() -> None:
    def function(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.addmm(c, x.view(-1, 12), w.t()).relu()
        return torch.mm(h[1:], h[2:].t()) + 1, h

    gm = trace_symbolic(function, [R(3, 5, 12), R(7, 12), R(7)])
    assert make_plan(lower_graph(gm, CPU).program, CPU, native=True).items_of(Matmul)
    served = 0
    call = CpuBackend().compile(gm, [])
    for sizes in ((3, 5, 7), (2, 4, 7), (9, 2, 7), (4, 4, 9), (6, 3, 20)):
        values = [R(*sizes[:2], 12), R(sizes[2], 12), R(sizes[2])]
        if takes(gm, values):
            served += 1
            for one, other in zip(call(list(values)), by_eager(gm, values), strict=True):
                assert torch.equal(one, other) or torch.allclose(one, other, atol=1e-5), sizes
    assert served >= 3


def test_sizes_beyond_32_bits_are_an_error() -> None:
    gm = trace_symbolic(lambda x, w: torch.mm(x, w), [R(6, 4), R(4, 5)])
    call = CpuBackend().compile(gm, [])
    huge = torch.empty(1).expand(1 << 31, 4)
    with pytest.raises((OverflowError, RuntimeError)):
        call([huge, R(4, 5)])
