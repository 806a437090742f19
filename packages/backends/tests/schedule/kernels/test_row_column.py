"""Rows and columns of the same points reduced in one kernel: which kernels there are, and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from graphs.tracing import mutating, trace
from sample_programs.row_column import CASES, OTHERS, Case, middle, middle_needed, summed_later, sums_of_sums, two_norms

from framesmith_backends.cpu import CpuBackend
from framesmith_backends.ir.expr import loads
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.spec import run_kernel
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.verify import verify_kernel
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.render.triton.kernel import render_triton
from framesmith_backends.schedule.plan import Plan, make_plan, scheduled
from framesmith_backends.target import CPU, GPU, Target

Tensor = torch.Tensor
#: Rows that come in parts, and that do not: a prime number, and too few.
MANY, PRIME, FEW = 2048, 2039, 512


def cutting(target: Target) -> Target:
    """A machine whose results are the CPU's, and which takes points in no order."""
    return replace(CPU, in_order=False, statistics=target.split)


def planned(case: Case, inputs: list[Tensor], target: Target = GPU) -> Plan:
    program = lower_graph(trace(case.function, inputs), cutting(target)).program
    return make_plan(program, replace(target, scratch=False, index_splitting=False))


def merged(plan: Plan) -> list[Kernel]:
    return [kernel for kernel in plan.kernels if kernel.down]


def large_reads(kernels: list[Kernel]) -> list[str]:
    """The buffers that are read at every point, once for each kernel that reads them."""
    found: list[str] = []
    for kernel in kernels:
        if kernel.points == MANY * 64:
            read = {load for one in kernel.passes for load in loads(*one.values)}
            found += {r.source for r in read if {*kernel.outer, *kernel.row} <= index.variables(r.index[0])}
    return found


def check(case: Case, inputs: list[Tensor], plan: Plan, tolerance: float = 1e-4) -> None:
    """The kernels one after another, by their meaning, beside eager mode in float64."""
    wanted = case.function(*(t.double() for t in inputs))
    assert isinstance(wanted, (tuple, list))
    layouts = {step.name: step.layout for step in plan.steps if hasattr(step, "layout") and hasattr(step, "name")}
    memory = {f"x{k}": t.reshape(-1).clone() for k, t in enumerate(inputs)}
    for kernel in plan.kernels:
        verify_kernel(kernel)
        for param in kernel.params:
            if param.name not in memory:
                layout = layouts[param.name]
                dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
                memory[param.name] = torch.full((int(layout.numel),), float("nan"), dtype=dtype[param.dtype])
        run_kernel(kernel, memory)
    for name, one in zip(plan.outputs, wanted, strict=True):
        found = memory[str(name)].reshape(one.shape)
        assert found.dtype == inputs[0].dtype
        found = found.double()
        torch.testing.assert_close(found, one, rtol=tolerance, atol=tolerance * float(one.abs().max()))


@pytest.mark.sampled(60)
@pytest.mark.parametrize("columns", [64, 96, 300])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.function.__name__)
def test_rows_and_columns_share_a_kernel(case: Case, columns: int) -> None:
    inputs = case.inputs(MANY, columns)
    plan = planned(case, inputs)
    (one,) = merged(plan)
    assert sum(len(p.columns) for p in one.passes) == len(one.after) == case.sums
    assert len({store.buffer for store in one.after}) == case.sums
    assert not one.writes_what_it_reads  # the next row is read before this one is written
    check(case, inputs, plan)
    render_triton(one, "kernel")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.function.__name__)
def test_kernels_are_fewer_and_read_large_tensors_once(case: Case) -> None:
    """All that reads the columns of a large tensor reads its rows as well; one kernel more is for what is left."""
    inputs = case.inputs(MANY, 64)
    together, separate = (planned(case, inputs, target) for target in (GPU, _separate()))
    assert len(together.kernels) < len(separate.kernels)
    fewer, more = (large_reads(plan.kernels) for plan in (together, separate))
    assert len(fewer) < len(more)
    last = [kernel for kernel in together.kernels if not kernel.down and kernel.params[0].name.endswith(".part")]
    assert len(last) == 1


@pytest.mark.parametrize("case", OTHERS, ids=lambda c: c.function.__name__)
def test_others_stay_separate(case: Case) -> None:
    inputs = case.inputs(MANY, 64)
    plan = planned(case, inputs)
    assert not merged(plan)
    assert [k.text() for k in plan.kernels] == [k.text() for k in planned(case, inputs, _separate()).kernels]
    check(case, inputs, plan)


def _separate() -> Target:
    return replace(GPU, row_column=None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("rows", "columns"), [(PRIME, 64), (FEW, 64), (MANY, 16), (MANY, 4096), (MANY, 5000)])
@pytest.mark.parametrize("case", CASES[:2], ids=lambda c: c.function.__name__)
def test_rows_that_do_not_come_in_parts_stay_separate(case: Case, rows: int, columns: int) -> None:
    """Reductions that were not merged are split as usual."""
    inputs = case.inputs(rows, columns)
    plan = planned(case, inputs)
    assert not merged(plan)
    assert [k.text() for k in plan.kernels] == [k.text() for k in planned(case, inputs, _separate()).kernels]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1024, 1200, 3000, 4000, 6144])
def test_each_program_takes_a_fair_number_of_rows(rows: int) -> None:
    inputs = CASES[0].inputs(rows, 64)
    plan = planned(CASES[0], inputs)
    (one,) = merged(plan)
    (programs, taken, _) = (int(v.size) for v in (*one.outer, *one.row))
    assert programs >= 128 and programs * taken == rows
    check(CASES[0], inputs, plan)


@pytest.mark.sampled(60)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.function.__name__)
def test_other_types(case: Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(MANY, 64, dtype)
    plan = planned(case, inputs)
    kernels = merged(plan)
    assert len(kernels) == 1 or (dtype == torch.float64 and case.function is two_norms)
    wide = {store.value.dtype for kernel in kernels for store in kernel.after}
    assert wide <= {"f64" if dtype == torch.float64 else "f32"}
    check(case, inputs, plan, 1e-4 if dtype == torch.float64 else 0.02)


@pytest.mark.parametrize("function", [summed_later, middle_needed])
def test_sums_that_rows_need_come_first(function: Callable[..., object]) -> None:
    """The rows read what the columns come to: a kernel of their own."""
    case = Case(function, 0, False)
    inputs = case.inputs(1 << 14, 64)
    plan = planned(case, inputs)
    assert len(plan.kernels) >= 2 and not merged(plan)
    check(case, inputs, plan)


def test_sums_that_other_sums_need_come_first() -> None:
    case = Case(sums_of_sums, 0, False)
    inputs = case.inputs(1 << 14, 64)
    plan = planned(case, inputs)
    assert all(sum(len(one.columns) for one in kernel.passes) < 2 for kernel in plan.kernels)
    check(case, inputs, plan)


def test_columns_of_many_matrices_are_results() -> None:
    case = Case(middle, 1, False)
    inputs = case.inputs(1 << 14, 64)
    plan = planned(case, inputs)
    assert len(plan.kernels) == len(merged(plan)) == 1
    check(case, inputs, plan)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("columns", [64, 75, 300])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.function.__name__)
def test_the_cpu_shares_kernels_among_few_rows_too(case: Case, columns: int) -> None:
    """Behind the last whole block of lanes, too, every element is added once."""
    inputs = case.inputs(FEW, columns)
    plan = planned(case, inputs, CPU)
    (one,) = merged(plan)
    assert sum(len(p.columns) for p in one.passes) == len(one.after) == case.sums
    check(case, inputs, plan)
    for found, wanted in zip(_run(case, inputs), case.function(*(t.double() for t in inputs)), strict=True):  # type: ignore[arg-type,var-annotated]
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.function.__name__)
def test_the_cpu_shares_kernels_of_other_types(case: Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(FEW, 75, dtype)
    assert len(merged(planned(case, inputs, CPU))) == 1
    tolerance = 1e-9 if dtype == torch.float64 else 0.02
    for found, wanted in zip(_run(case, inputs), case.function(*(t.double() for t in inputs)), strict=True):  # type: ignore[arg-type,var-annotated]
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def _run(case: Case, inputs: list[Tensor]) -> Sequence[Tensor]:
    """Return the results of the machine code for this CPU."""
    found = CpuBackend().compile(trace(case.function, inputs), inputs)(list(inputs))
    assert isinstance(found, (tuple, list))
    return found


@pytest.mark.parametrize(("rows", "columns"), [(63, 64), (257, 64), (FEW, 16), (FEW, 1 << 15)])
def test_the_cpu_takes_rows_in_turn_that_come_in_parts(rows: int, columns: int) -> None:
    """Not a prime number of them, nor few, nor short ones, nor such whose sums fill the cache."""
    inputs = CASES[0].inputs(rows, columns)
    plan = planned(CASES[0], inputs, CPU)
    assert not merged(plan)
    separate = planned(CASES[0], inputs, replace(CPU, row_column=None))
    assert [k.text() for k in plan.kernels] == [k.text() for k in separate.kernels]


@pytest.mark.parametrize("rows", [64, 2048, 1 << 16])
def test_parts_on_the_cpu_have_few_rows(rows: int) -> None:
    (one,) = merged(planned(CASES[0], CASES[0].inputs(rows, 32), CPU))
    programs, taken, _ = (int(v.size) for v in (*one.outer, *one.row))
    assert programs * taken == rows and programs >= 8 and 8 <= taken <= 256


def test_columns_of_many_matrices_are_results_on_the_cpu() -> None:
    case = Case(middle, 1, False)
    inputs = case.inputs(1 << 13, 64)
    plan = planned(case, inputs, CPU)
    assert len(plan.kernels) == len(merged(plan)) == 1
    for found, wanted in zip(_run(case, inputs), case.function(*inputs), strict=True):  # type: ignore[arg-type,var-annotated]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_text_marks_column_reductions() -> None:
    (one,) = merged(planned(CASES[1], CASES[1].inputs(MANY, 64)))
    text = one.text()
    assert "(down)" in text and " = sum down " in text
    assert text.splitlines()[-1].startswith("      ") and ".part[" in text.splitlines()[-1]


def test_a_declined_fusion_leaves_no_trace() -> None:
    """Writes to inputs come after all that reads them, also where kernels were merged in vain."""

    def changing(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (x * 2, *CASES[0].function(dy, x, w, b))

    gm = mutating(changing, CASES[0].inputs(PRIME, 64), [1])
    found = []
    for target in (GPU, _separate()):
        _, nodes = scheduled(lower_graph(gm, cutting(target)).program, target)
        found.append([(node.number, node.before, node.position) for node in nodes])
    assert found[0] == found[1]
