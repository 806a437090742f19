"""Kernels run as late as memory asks for, and results lie where what they are made of is dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from graphs.tracing import trace
from torch import fx

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.memory.reuse import bytes_made
from framesmith_backends.schedule.plan import Plan, make_plan
from framesmith_backends.schedule.steps import Allocate, CallStep, Drop, Run
from framesmith_backends.target import CPU

Tensor = torch.Tensor
MIB = 1 << 20


def planned(function: Callable[..., Any], inputs: list[Tensor]) -> Plan:
    """The plan, after a look at what it computes."""
    gm: fx.GraphModule = trace(function, inputs)
    found = CpuBackend().compile(gm, inputs)([one.clone() for one in inputs])
    wanted = function(*inputs)
    for one, two in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    return make_plan(lower_graph(gm, CPU).program, CPU, native=True)


def peak(plan: Plan) -> int:
    """The most bytes alive of what the plan makes."""
    alive: dict[str, int] = {}
    most = 0
    for step in plan.steps:
        if isinstance(step, Allocate) and step.reuse is not None:
            alive[step.name] = alive.pop(step.reuse)
        elif isinstance(step, Allocate):
            alive[step.name] = bytes_made(step)
        elif isinstance(step, CallStep):
            alive[step.call.name] = bytes_made(step)
        elif isinstance(step, Drop):
            for name in step.names:
                alive.pop(name, None)
        most = max(most, sum(alive.values()))
    return most


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def images(count: int) -> list[Tensor]:
    """So many of 1 MiB, behind a weight."""
    return [torch.randn(4, 4, 3, 3) / 6, *(torch.randn(1, 4, 256, 256) for _ in range(count))]


def test_recomputed_kernels_wait_for_their_reader() -> None:
    def backward(w: Tensor, grad: Tensor, *saved: Tensor) -> Tensor:
        again = [one.clamp(0.0, 6.0) for one in saved]
        for one, before in zip(again, saved, strict=True):
            grad = convolved(grad * 0.5 + one, w) * before.cos()
        return grad

    assert peak(planned(backward, images(6))) <= 3 * MIB  # not one for each that is saved


def test_results_that_share_a_small_buffer_are_separate_kernels() -> None:
    def backward(at: Tensor, grad: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        again = [one[at] for one in saved]
        return tuple(grad.t() @ one for one in again)

    table = [torch.randn(64, 64) for _ in range(6)]
    plan = planned(backward, [torch.arange(64).repeat(64), torch.randn(4096, 64) / 64, *table])
    assert peak(plan) < 2.5 * MIB  # of 6


def test_a_kernel_that_frees_as_much_as_it_makes_stays_early() -> None:
    def function(w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        early = convolved(a, w).clamp(0.0, 6.0).sum((2, 3), keepdim=True)
        return convolved(convolved(b, w), w) + early

    kinds = [type(step) for step in planned(function, images(2)).steps if isinstance(step, (CallStep, Run))]
    assert kinds == [CallStep, Run, CallStep, CallStep, Run]


def test_a_matmul_that_frees_what_it_reads_comes_first() -> None:
    """Two large matrices, the activations and one gradient; three if these are still there when that is made."""
    size = 256

    def function(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        before = x @ w
        hidden = before.sigmoid()
        change = g + hidden @ w.t()
        grad = change @ w
        weight = change.t() @ hidden
        return weight, (grad * before.cos()).sum(0)

    plan = planned(function, [torch.randn(4096, 64), torch.randn(64, size) / 8, torch.randn(4096, 64)])
    names = [item.name for run in plan.runs for item in run.items if item.name.startswith("mm")]
    assert names == ["mm_default", "mm_default_1", "mm_default_3", "mm_default_2"]
    assert peak(plan) < 2.6 * 4096 * size * 4


def large(plan: Plan) -> list[Allocate]:
    steps = [step for step in plan.steps if isinstance(step, Allocate)]
    return [step for step in steps if step.layout.numel >= MIB // 8]


def test_results_of_calls_are_written_over() -> None:
    plan = planned(lambda w, x: (F.silu(convolved(F.silu(convolved(x, w)) + x, w)) * 2,), images(1))
    assert len(large(plan)) == 2 and all(step.reuse is not None for step in large(plan))
    assert peak(plan) < 2.1 * MIB


def test_a_result_that_is_viewed_lies_in_what_has_another_shape() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        hidden = (x @ w).reshape(64, 64, 64).abs() * 2
        return hidden.reshape(4096, 64) @ w

    plan = planned(function, [torch.randn(4096, 64).double(), torch.randn(64, 64).double() / 8])
    [made] = large(plan)
    assert made.reuse is not None and made.layout.shape == (4096, 64)


def test_buffers_returned_or_read_again_are_not_written_over() -> None:
    def function(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        first, second = convolved(x, w), convolved(x + 1, w)
        return first, first.sin(), second.cos(), second.flip(3) + 1

    planned(function, images(1))

    def parts(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        one, two = torch.ops.aten.unsafe_split.Tensor(convolved(x, w), 2, 1)
        return one, two.exp()

    planned(parts, images(1))
