"""Fusion: definitions that share a kernel, and those that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from sample_programs.samples import vjp

from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.fusion.domains import merged_axes, refine, variables_of
from framesmith_backends.schedule.plan import Plan, make_plan
from framesmith_backends.schedule.steps import Allocate, CallStep, Run
from framesmith_backends.target import CPU


def plan_of(function: Callable[..., object], *shapes: tuple[int, ...]) -> Plan:
    return make_plan(lower_graph(trace(function, [torch.randn(s) for s in shapes]), CPU).program, CPU)


def kernels_of(function: Callable[..., object], *shapes: tuple[int, ...]) -> list[Kernel]:
    return plan_of(function, *shapes).kernels


COUNTS: tuple[tuple[str, Callable[..., object], tuple[tuple[int, ...], ...], int], ...] = (
    ("chain", lambda x, y: F.gelu(x * y + 1).sin() * torch.sigmoid(y), ((50,), (50,)), 1),
    ("softmax", lambda x: torch.softmax(x, -1), ((20, 30),), 1),
    ("norm with prologue and epilogue", lambda x, w: F.layer_norm(F.gelu(x), (30,), w) * 2, ((20, 30), (30,)), 1),
    ("two norms of one", lambda x: F.layer_norm(F.layer_norm(x, (30,)), (30,)), ((20, 30),), 1),
    ("reshaped in between", lambda x: (x * 2).view(4, 5, 30).softmax(-1).view(20, 30) + 1, ((20, 30),), 1),
    ("rows and columns", lambda x: (x.sum(0), x.sum(1)), ((20, 30),), 2),
    ("sums of one source", lambda x: (x.sum(1), x.amax(1), (x * x).mean(1)), ((20, 30),), 1),
    ("column sum with its source", lambda x: (lambda v: (v, v.sum(0)))(x.tanh()), ((20, 30),), 1),
    ("batch norm", lambda x: F.relu(F.batch_norm(x, None, None, training=True)), ((4, 8, 5, 5),), 1),
    ("layer norm gradient", vjp(lambda x, w: F.layer_norm(x, (30,), w), 2), ((20, 30), (30,), (20, 30)), 2),
    ("different sizes", lambda x, y: (x + 1, y + 1), ((20,), (30,)), 2),
)


@pytest.mark.parametrize(("function", "shapes", "count"), [c[1:] for c in COUNTS], ids=[c[0] for c in COUNTS])
def test_number_of_kernels(function: Callable[..., object], shapes: tuple[tuple[int, ...], ...], count: int) -> None:
    assert len(kernels_of(function, *shapes)) == count


def test_a_call_between_separates() -> None:
    plan = plan_of(lambda x: torch.relu(torch.relu(x + 1) @ x) + 1, (9, 9))
    kinds = [type(s) for s in plan.steps if isinstance(s, (Run, CallStep))]
    assert kinds == [Run, CallStep, Run]


def test_expensive_values_are_kept_for_later_passes() -> None:
    (kernel,) = kernels_of(lambda x: F.layer_norm(F.gelu(x), (30,)), (20, 30))
    assert len(kernel.scratch) == 1
    assert kernel.text().count("gelu(") == 1


def test_contiguous_loops_are_merged() -> None:
    (kernel,) = kernels_of(lambda x: x.exp(), (4, 5, 6))
    assert [v.size for v in kernel.outer] == [120]


def test_lanes_follow_the_memory() -> None:
    x = torch.randn(8, 5).t()
    gm = trace(lambda a: a.exp(), [x])
    (kernel,) = make_plan(lower_graph(gm, CPU).program, CPU).kernels
    assert kernel.lane is not None
    assert kernel.lane.size == 40


def test_a_full_reduction_is_split_into_parallel_parts() -> None:
    first, second = kernels_of(lambda x: x.sum(), (512, 512))
    assert sum(v.size > 1 for v in first.outer) == 1
    assert second.points < first.points // 100


def test_dead_buffers_are_used_again() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            weights = torch.softmax(x, 1)
            x = (x * 2) @ x + weights
        return x

    plan = plan_of(function, (20, 20))
    allocations = [s for s in plan.steps if isinstance(s, Allocate)]
    assert any(a.reuse for a in allocations)


def test_nothing_dead_is_computed() -> None:
    gm = trace(lambda x: (x + 1, torch.softmax(x, 0)), [torch.randn(4, 5)])
    output = next(n for n in gm.graph.nodes if n.op == "output")
    output.args = (output.args[0][:1],)
    (kernel,) = make_plan(lower_graph(gm, CPU).program, CPU).kernels
    assert "exp" not in kernel.text()


def test_refinements() -> None:
    assert refine((4, 6), (2, 2, 6)) == (2, 2, 6)
    assert refine((24,), (4, 6)) == (4, 6)
    assert refine((4, 6), (6, 4)) is None
    assert refine((4, 6), (5, 5)) is None
    variables = variables_of((2, 2, 6))
    assert [repr(i) for i in merged_axes((4, 6), (2, 2, 6), variables)] == ["2*x0 + x1", "x2"]


def test_long_chains_are_several_kernels() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = (x * x).sin() + x.tanh()
        return x

    plan = plan_of(function, (70,))
    assert 2 <= len(plan.kernels) <= 10
    assert len(plan.text()) < 20000
    assert max(len(k.text()) for k in plan.kernels) < 20000
