"""Copies onto inputs become writes of the kernels, wherever nothing sees the difference."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graphs.tracing import mutating
from graphs.tracing_symbolic import trace_symbolic
from sample_programs.random_graphs import random_program
from stand_ins.gpu_schedule import plan_for_gpus, scheduled_for_gpus

from framesmith_backends import CpuBackend
from framesmith_backends.ir.dtypes import DTYPES, NUMBERS
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.plan import Plan, make_plan
from framesmith_backends.schedule.steps import Allocate, CallStep, CopyStep, Drop, Run, step_text
from framesmith_backends.target import CPU

Tensor = torch.Tensor
copy = torch.ops.aten.copy_.default


def check(function: Callable[..., Any], inputs: Sequence[Tensor], written: Sequence[int]) -> Plan:
    """Runs the graph as kernels and as it is, compares results and inputs, and gives the plan.

    Kernels are scheduled as for the CPU, and as for a GPU.
    """
    gm = mutating(function, inputs, written)
    plain, compiled, copied = ([x.clone() for x in inputs] for _ in range(3))
    wanted = gm(*plain)
    found = CpuBackend().compile(gm, inputs)(list(compiled))
    other = scheduled_for_gpus(gm)(list(copied))
    for one, again, two in zip([*found, *compiled], [*other, *copied], [*wanted, *plain], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(again, two, rtol=1e-5, atol=1e-5)
    return make_plan(lower_graph(gm, CPU).program, CPU)


def copies(plan: Plan) -> int:
    return sum(isinstance(step, CallStep) and step.call.node.target is copy for step in plan.steps)


def allocations(plan: Plan) -> int:
    return sum(isinstance(step, Allocate) for step in plan.steps)


X, Y = torch.linspace(-1, 1, 35).reshape(5, 7), torch.linspace(2, 3, 35).reshape(5, 7)


def test_a_step_of_an_optimizer_copies_nothing() -> None:
    def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
        return p - m / (v.sqrt() + 1e-8), m, v

    plan = check(step, [X, Y, X * 2, Y * 2], [0, 2, 3])
    assert copies(plan) == allocations(plan) == 0


def test_values_are_exchanged() -> None:
    plan = check(lambda x, y: (y * 1, x * 1), [X, Y], [0, 1])
    assert [kernel.name for kernel in plan.kernels] == ["kernel0", "kernel1", "copy0"]
    plan = check(lambda x, y: (y * x.sin(), x * y.cos(), x + y), [X, Y], [0, 1])
    assert copies(plan) == 0


def test_an_input_is_read_elsewhere_before_it_is_written() -> None:
    plan = check(lambda x, y: (x * 2, (x + 1).t().contiguous() * 2), [X, Y], [0])
    assert copies(plan) <= 1
    check(lambda x, y: (x * 2, x.flip(0) + y), [X, Y], [0])
    check(lambda x, y: (x.flip(0), y * 2), [X, Y], [0])
    check(lambda x, y: (x * 2, x.sum(0) + y), [X, Y], [0])
    check(lambda x, y: (x - x.sum(0), y * 2), [X, Y], [0])
    check(lambda x, y: (x - x.amax(1, keepdim=True), x.mean()), [X, Y], [0])
    check(lambda x, y: (x[:1] + y, x[0] * y), [X, Y], [0])


def test_a_returned_tensor_is_no_input() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        value = x * 2
        return value, value

    gm = mutating(both, [X, Y], [0])
    x = X.clone()
    (found,) = CpuBackend().compile(gm, [x, Y])([x, Y])
    assert found.data_ptr() != x.data_ptr()
    torch.testing.assert_close(found, x)


def test_an_input_keeps_its_elements_where_a_call_fails() -> None:
    index = torch.tensor([0, 99])
    gm = mutating(lambda x, y, at: (x * 2, torch.index_select(y * 3, 0, at)), [X, Y, index], [0])
    x = X.clone()
    call = CpuBackend().compile(gm, [x, Y, index])
    with pytest.raises((IndexError, RuntimeError)):
        call([x, Y, index])
    assert torch.equal(x, X)


def test_other_layouts_and_types_are_copied() -> None:
    assert copies(check(lambda x, y: (x.t().contiguous().t() * 2,), [X, Y], [0])) <= 1
    assert copies(check(lambda x, y: ((x * 2).double(),), [X, Y], [0])) == 1
    assert copies(check(lambda x, y: (y.sum(0) * 2,), [X, Y], [0])) == 1  # the copy broadcasts


def two_statistics(x: Tensor, y: Tensor, count: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    y = y * 2 + x.mean(1)
    return y, count + 1, torch.linalg.cholesky_ex(z, check_errors=True).L, x.t() * y


def test_no_call_copies_equal_layouts() -> None:
    assert copies(check(lambda x, y: (value := x + y, value), [X, Y], [0, 1])) == 0
    inputs = [X, torch.ones(5), torch.tensor(3), torch.eye(3)]
    plan = check(two_statistics, inputs, [1, 2])
    assert copies(plan) == 0
    assert isinstance(plan.steps[-1], Run | Drop) and plan.kernels[-1].name == "copy1"


def test_a_gpu_copies_each_type_by_one_call() -> None:
    inputs = [X, torch.ones(5), torch.tensor(3), torch.eye(3)]

    def statistics(x: Tensor, y: Tensor, count: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        y, count = two_statistics(x, y, count, z)[:2]
        return x + 1, y, count

    check(statistics, inputs, [0, 1, 2])
    steps = plan_for_gpus(mutating(statistics, inputs, [0, 1, 2])).steps
    (together,) = [step for step in steps if isinstance(step, CopyStep)]
    assert len(together.targets) == step_text(together).count(" <- ") == 2
    alone = [step for step in steps if isinstance(step, CallStep) and step.call.node.target is copy]
    assert [step.call.needs[0] for step in alone] == ["x2"]  # the only one of its type


@pytest.mark.parametrize("shown", [lambda y: y.t(), lambda y: y.reshape(5, 5), lambda y: y.view(25)])
def test_copies_returned_as_views(shown: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x, y = x + 1, y * 2
        return x, y, shown(x), shown(y.t().contiguous()), torch.linalg.cholesky(x @ x.t() + 10 * torch.eye(5))

    check(function, [torch.randn(5, 5), torch.randn(5, 5)], [0, 1])


def test_counts_share_a_kernel_right_before_they_are_copied() -> None:
    def step(x: Tensor, *counts: Tensor) -> tuple[Tensor, ...]:
        first, *rest = (count + 1 for count in counts)
        return first, *rest, x / first, (x @ x).sin() @ x

    inputs = [torch.eye(4), *(torch.tensor(k) for k in range(6))]
    written = [1, 2, 3, 4, 5, 6]
    check(step, inputs, written)
    plan = plan_for_gpus(mutating(step, inputs, written))
    numbers = [kernel for kernel in plan.kernels if not kernel.outer and not kernel.row]
    assert len(numbers) == 2  # the first count, which another kernel reads, and the others


def test_counts_read_inputs_before_any_copy() -> None:
    def step(x: Tensor, first: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return torch.linalg.cholesky(x @ x.t()).sum().long(), first + 1.5, b * 2.5

    check(step, [torch.eye(4), torch.tensor(3), torch.tensor(0.5), torch.tensor(7.5)], [1, 2, 3])


def test_nothing_is_copied_where_a_call_fails() -> None:
    inputs = [X, torch.ones(5), torch.tensor(3), -torch.eye(3)]
    call = CpuBackend().compile(mutating(two_statistics, inputs, [1, 2]), inputs)
    with pytest.raises(RuntimeError, match="positive-definite"):
        call([*inputs])
    assert torch.equal(inputs[1], torch.ones(5)) and inputs[2] == 3


def test_nothing_is_copied_where_a_check_fails() -> None:
    def chosen(x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        value = x.sin()
        return value, value, x[at]

    inputs = [X.clone(), torch.tensor([0, 99])]
    call = CpuBackend().compile(mutating(chosen, inputs, [0]), inputs)
    with pytest.raises(IndexError):
        call([*inputs])
    assert torch.equal(inputs[0], X)


def test_what_runs_behind_a_check_writes_in_place() -> None:
    def updated(p: Tensor, m: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        gradient = torch.zeros_like(p).index_add(0, at, m[at])
        m = m * 0.9 + gradient.softmax(1)
        return p - m.sin(), m

    inputs = [X, Y, torch.tensor([0, 3, 3])]
    plan = check(updated, inputs, [0, 1])
    assert copies(plan) == 0 and not any(kernel.name.startswith("copy") for kernel in plan.kernels)
    assert any(kernel.checks for kernel in plan.kernels) and sum(isinstance(step, Run) for step in plan.steps) == 1
    call = CpuBackend().compile(mutating(updated, inputs, [0, 1]), inputs)
    given = [X.clone(), Y.clone(), torch.tensor([0, 5, 3])]
    with pytest.raises(IndexError):
        call([*given])
    assert torch.equal(given[0], X) and torch.equal(given[1], Y)


def test_a_buffer_begun_before_a_check_is_copied() -> None:
    def added(p: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros(5, 7).index_put((at,), p[at].sin(), accumulate=True),)

    check(added, [X, torch.tensor([0, 3, 3])], [0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("launch", ["native", "python"])
@pytest.mark.parametrize("dtype", [row.torch for row in DTYPES.values()])
def test_kernels_copy_each_type_as_it_is(dtype: torch.dtype, launch: str) -> None:
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.1, 3.0] * 9)
    special = torch.arange(63) * (2**57 + 1) if not dtype.is_floating_point else special
    given = special.to(dtype).reshape(7, 9).t()

    def transposed(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        value = y.flip(0).t().contiguous().t()
        return (
            value,
            value.relu() if dtype in NUMBERS and dtype is not torch.bool else value.float(),
            torch.linalg.cholesky_ex(z).L,
        )

    gm = mutating(transposed, [torch.zeros_like(given), given, torch.eye(2)], [0])
    x = torch.zeros_like(given)
    CpuBackend().compile(gm, [x, given, torch.eye(2)], options={"launch": launch})([x, given, torch.eye(2)])
    assert copies(make_plan(lower_graph(gm, CPU).program, CPU)) == 0
    found, given = (x, given) if dtype in NUMBERS else (x.float(), given.float())
    torch.testing.assert_close(found, given.flip(0), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.isnan(), given.flip(0).isnan())


def test_kernels_copy_as_much_as_a_call_has() -> None:
    def halves(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        value = x * y.amax(1, keepdim=True)
        lower = torch.linalg.cholesky_ex(z).L
        x.copy_(value)
        return lower

    gm = trace_symbolic(halves, [X.clone(), Y.clone(), torch.eye(2)])
    plan = make_plan(lower_graph(gm, CPU).program, CPU)
    assert copies(plan) == 0 and plan.kernels[-1].name == "copy0"
    call = CpuBackend().compile(gm, [X, Y, torch.eye(2)])
    for rows, columns in ((5, 7), (2, 3), (300, 500), (3, 2)):
        x, y = torch.randn(rows, columns), torch.randn(rows, columns)
        expected = x * y.amax(1, keepdim=True)
        call([x, y, torch.eye(2)])
        torch.testing.assert_close(x, expected)


@pytest.mark.sampled(36)
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_that_write_to_their_inputs(seed: int) -> None:
    function, inputs = random_program(seed, 8)
    choose = random.Random(seed)
    written = choose.sample(range(len(inputs)), choose.randint(1, len(inputs)))
    mixed = [choose.randrange(len(inputs)) for _ in written]

    def changing(*args: Tensor) -> tuple[Tensor, ...]:
        results = function(*args)
        scales = [result.mean() for result in results]
        new = [args[at] * scales[0] + args[other].sin().mean() for at, other in zip(written, mixed)]
        new = [args[at].cos() if choose_small else value for at, value, choose_small in zip(written, new, flags)]
        return (*new, *results)

    flags = [choose.random() < 0.5 for _ in written]
    check(changing, inputs, written)
