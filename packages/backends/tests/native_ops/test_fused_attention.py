"""Attention as one kernel of the CPU, with expressions of scores, beside eager mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic

from framesmith_backends import CpuBackend
from framesmith_backends.ir.fused.attention import MOST_DEPTH, FusedAttention
from framesmith_backends.launch.llvm import engine as native
from framesmith_backends.lower.compute.thin_matmuls import LONGEST_VECTOR
from framesmith_backends.native_ops.attention.shape import KEYS
from framesmith_backends.schedule.plan import Plan
from framesmith_backends.target import Processor

Tensor = torch.Tensor
#: Relative and absolute tolerance, by type.
NEAR = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(rows: int, columns: int, depth: int = 16, length: int | None = None, batch: int = 3) -> list[Tensor]:
    """Queries, keys, values, of three dimensions."""
    sizes = (rows, depth), (columns, depth), (columns, depth if length is None else length)
    return [numbers(batch, *size, seed=k) for k, size in enumerate(sizes)]


def scores(q: Tensor, k: Tensor) -> Tensor:
    """In float32, whatever the operands are."""
    return q.float() @ k.float().transpose(-2, -1)


def indices(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(q.shape[-2]).view(-1, 1), torch.arange(k.shape[-2])


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(scores(q, k) * 0.25, -1).to(v.dtype) @ v


def sloping(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = indices(q, k)
    return torch.softmax(scores(q, k) * 0.3 - 0.1 * (i - j).abs(), -1).to(v.dtype) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(4 * torch.tanh(scores(q, k) / 4), -1).to(v.dtype) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = indices(q, k)
    return torch.softmax(torch.where(i >= j, scores(q, k) * 0.25, -math.inf), -1).to(v.dtype) @ v


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows that see nothing are zeros."""
    i, j = indices(q, k)
    seen = ((i - j).abs() < 9) & (i % 5 != 0)
    return torch._safe_softmax(torch.where(seen, scores(q, k) + i, -math.inf), -1).to(v.dtype) @ v


def with_logarithms(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    i, j = indices(q, k)
    found = torch.where(i >= j, scores(q, k) * 0.25, -math.inf)
    return torch._safe_softmax(found, -1).to(v.dtype) @ v, found.logsumexp(-1), found.amax(-1)


ATTENTIONS: tuple[Callable[..., Any], ...] = (plain, sloping, capped, causal, window, with_logarithms)


def plan_of(function: Callable[..., Any], given: list[Tensor]) -> Plan:
    return CpuBackend().explain(trace(function, given)).plan


def check(function: Callable[..., Any], given: list[Tensor], other: list[Tensor] | None = None) -> None:
    """One kernel, which gives what eager mode gives; of other sizes, too."""
    gm = trace(function, given) if other is None else trace_symbolic(function, given)
    assert len(CpuBackend().explain(gm).plan.items_of(FusedAttention)) == 1
    call = CpuBackend().compile(gm, given, options={"verify_ir": True})
    for inputs in (given, other or given):
        found, wanted = call(list(inputs)), function(*inputs)
        near = NEAR[inputs[2].dtype]
        for one, two in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert one.stride() == two.stride()
            torch.testing.assert_close(one, two, rtol=near, atol=near, equal_nan=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("columns", (2, 17, KEYS, KEYS + 1, 2 * KEYS + 5))
@pytest.mark.parametrize("rows", (1, 3, 15, 16, 33, 48, 65, 130))
@pytest.mark.parametrize("function", ATTENTIONS)
def test_sizes(function: Callable[..., Any], rows: int, columns: int) -> None:
    if rows > 1:
        check(function, operands(rows, columns))
    else:  # short vectors multiply in other kernels
        check(function, operands(rows, columns + LONGEST_VECTOR, LONGEST_VECTOR + 1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("depth, length", ((2, 3), (8, 40), (65, 16), (17, MOST_DEPTH), (MOST_DEPTH, 5)))
@pytest.mark.parametrize("function", (sloping, window))
def test_lengths_of_heads(function: Callable[..., Any], depth: int, length: int) -> None:
    check(function, [one / depth**0.5 for one in operands(37, 140, depth, length)])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("function", ATTENTIONS)
def test_low_precision(function: Callable[..., Any], dtype: torch.dtype) -> None:
    check(function, [(one / 2).to(dtype) for one in operands(50, 140, 24)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", (plain, sloping, capped, causal))
def test_symbolic_sizes(function: Callable[..., Any]) -> None:
    def of_known_depth(q: Tensor, k: Tensor, v: Tensor) -> Any:
        assert q.shape[-1] == v.shape[-1] == 16
        return function(q, k, v)

    check(of_known_depth, operands(21, 30, batch=2), operands(67, 301, batch=3))


def test_operands_with_gaps() -> None:
    q, k, v = (one.transpose(1, 2).contiguous().transpose(1, 2) for one in operands(20, 150))
    check(causal, [q, k, v])
    check(causal, [one[:, ::2] for one in operands(40, 300)])


def test_keys_that_are_far_from_zero() -> None:
    """A later block of keys has larger scores by far."""
    q, k, v = operands(20, 3 * KEYS)
    check(plain, [q.abs(), k + torch.arange(3 * KEYS).view(-1, 1) / 8, v])


def test_rows_of_infinities() -> None:
    q, k, v = operands(20, 150)
    for value in (math.inf, math.nan):
        q[:, 3, 0] = value
        check(sloping, [q, k, v])

    def nothing_seen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = indices(q, k)
        return torch.softmax(torch.where(i > j + 2, scores(q, k), -math.inf), -1) @ v

    check(nothing_seen, operands(70, 150))


def test_what_is_as_large_as_scores_is_not_stored() -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        i, j = indices(q, k)
        bias = torch.exp(slopes.view(-1, 1, 1) * (i - j).abs())
        return torch.softmax((scores(q, k) + bias).view(6, 20, 150), -1) @ v

    given = [*operands(20, 150, batch=6), numbers(6).abs() * -0.1]
    check(biased, given)
    elements = [step.layout.numel for step in plan_of(biased, given).steps if hasattr(step, "layout") and step.layout]
    assert max(elements) < 6 * 20 * 150


def test_captured_tensors_and_rows_of_several_heads() -> None:
    table, names = numbers(4, 60, 150), torch.arange(150) // 40

    def grouped(q: Tensor, k: Tensor, v: Tensor, table: Tensor, names: Tensor) -> Tensor:
        rows = scores(q.reshape(2, 120, 16), k).view(2, 2, 60, 150) + table.view(2, 2, 60, 150)
        i, j = torch.arange(60).view(-1, 1), torch.arange(150)
        rows = torch.where((names[i] == names[j]) | (j == 0), rows, -math.inf)
        return torch.softmax(rows, -1).view(2, 120, 150) @ v

    q, k, v = operands(120, 150, batch=2)
    check(grouped, [q, k, v, table, names])


def test_probabilities_that_others_read_stay_in_memory() -> None:
    def shown(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = torch.softmax(scores(q, k), -1)
        return probabilities @ v, probabilities

    assert not plan_of(shown, operands(20, 30)).items_of(FusedAttention)
    deep = operands(20, 30, MOST_DEPTH + 1)
    stages = CpuBackend().explain(trace(plain, deep))
    assert not stages.plan.items_of(FusedAttention) and "heads of 257 elements" in str(stages.refusals)


@pytest.mark.parametrize(("name", "width"), [("x86-64", 16), ("x86-64-v3", 32)])
def test_other_processors(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = native.machine()
    other = native.Machine(Processor(name, "", width, width > 16), known.llvm, known.bytes_to_handle)
    monkeypatch.setattr(native, "machine", lambda: other)
    for rows, columns in ((2, 40), (9, 5), (61, 140)):
        for function in (sloping, window, with_logarithms):
            check(function, operands(rows, columns, 17))
            check(function, [(one / 2).to(torch.bfloat16) for one in operands(rows, columns, 24)])


def test_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends.native_ops.attention.shape import Shape

    monkeypatch.setattr(Shape, "bytes", 1 << 62)
    given = operands(20, 30)
    call = CpuBackend().compile(trace(capped, given), given)
    with pytest.raises(MemoryError, match="attention found no memory"):
        call(list(given))
