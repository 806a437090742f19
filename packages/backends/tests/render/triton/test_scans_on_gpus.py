"""Scans in kernels of GPUs: what they mean, what they are fused with, in Triton's interpreter, and as machine code."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from case_selection.gpus import with_capabilities
from case_selection.sweeps import LONG
from graphs.meaning import flat_memory, run_program
from graphs.tracing import trace
from graphs.tracing_scans import Eager, trace_scans
from interpreter_scripts.run import interpreted
from ir.test_spec import graph_values, memory_of
from sample_programs import steps
from sample_programs.scans import PROGRAMS, Program, back
from sample_programs.steps import PROGRAMS as STEPS

from framesmith_backends import CpuBackend, CudaBackend
from framesmith_backends.ir.kernel import Scan
from framesmith_backends.ir.spec import run_kernel
from framesmith_backends.ir.verify import Malformed, verify_kernel, verify_program
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.render.llvm.loops.kernel import render_kernel
from framesmith_backends.schedule.fusion.group import Group
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.plan import scheduled, stored_names
from framesmith_backends.target import CPU, GPU, host

CUDA = CudaBackend()
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
#: Without FRAMESMITH_LONG these are compiled: each has a construct of its own.
COMPILED = ("rows", "columns", "long back", "largest", "logarithms", "nucleus", "doubles of halves")
PLAIN = [p for p in PROGRAMS if not p.calls]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_how_many_kernels_and_calls(program: Program) -> None:
    stages = CUDA.explain(trace(program.function, program.inputs()))
    assert len(stages.kernels) == program.kernels, stages.text()
    assert len(stages.lowering.notes) == program.calls, stages.lowering.notes
    for kernel in stages.plan.kernels:
        verify_kernel(kernel)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("program", PLAIN, ids=lambda p: p.name)
def test_the_meaning_of_scans(program: Program) -> None:
    inputs = program.inputs()
    gm = trace(program.function, inputs)
    low = lower_graph(gm, GPU)
    verify_program(low.program)
    eager = graph_values(gm, inputs)
    plain = run_program(low.program, memory_of(low.program, eager))
    program_, nodes = scheduled(low.program, GPU)
    verify_program(program_)
    want, memory = (run_program(program_, memory_of(program_, eager)), memory_of(program_, eager))
    stored = stored_names(program_, nodes)
    for name in stored:
        memory[name] = torch.zeros_like(want[name])
    for k, node in enumerate(nodes):
        if isinstance(node, Group):
            run_kernel(build_kernel(f"k{k}", program_, node, stored, scratch=False), memory)
    by_definition = {runtime: node for node, runtime in program_.runtime.items()}
    for name in program_.kept:
        wanted = flat_memory(eager[by_definition[name]], program_.layouts[name])
        for found in (plain[name], want[name], memory[name]):
            torch.testing.assert_close(found, wanted, rtol=1e-2 if wanted.dtype.itemsize == 2 else 1e-4, atol=1e-3)


def text_of(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> str:
    return CUDA.explain(trace(function, inputs)).text()


def test_lines_long_enough_go_in_blocks_with_what_is_carried() -> None:
    held, longer = (text_of(lambda x: x.cumsum(-1), [torch.randn(40, size)]) for size in (5000, 9000))
    assert "for start" not in held and "fs.element_at" not in held
    assert "for start" in longer and "fs.element_at" in longer


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16])
def test_tiles_fit_into_shared_memory(dtype: torch.dtype) -> None:
    """Values that are read along other dimensions than they are scanned along go through it."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.cubins import cubin

    gm = trace(lambda x: (*x.t().cummin(0), *x.cummax(1)), [torch.ones(40, 20_000).to(dtype)])
    for kernel in CUDA.explain(gm).kernels:
        assert cubin(kernel, False, 90).shared <= 48 << 10


def with_sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sums = x.flip(1).cumsum(1)
    return sums, sums.flip(1)


def test_a_flip_before_and_behind_is_a_scan_in_reverse() -> None:
    text = text_of(back, [torch.randn(6, 45)])
    assert "reverse sum scan" in text and "-1*" not in text.partition("# kernels")[2]
    assert "reverse" not in text_of(with_sums, [torch.randn(6, 45)])  # they are asked for themselves


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.cumsum(-1), (1_000_000,)),
        (lambda x: x.cumsum(1), (3, 50_000)),
        (lambda x: (x > 0).cummax(0).values, (5, 6)),
    ],
)
def test_scans_that_stay_with_aten(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    stages = CUDA.explain(trace(function, [torch.randn(shape)]))
    assert any("scan" in note or "few long lines" in note for note in stages.lowering.notes.values())


@pytest.mark.parametrize("program", PROGRAMS[:4], ids=lambda p: p.name)
def test_kernels_of_the_cpu_scan_columns_alone(program: Program) -> None:
    stages = CpuBackend().explain(trace(program.function, program.inputs()))
    columns = program.name != PROGRAMS[0].name
    assert any(kernel.has_scans for kernel in stages.plan.kernels) == columns
    lowered = lower_graph(trace(program.function, program.inputs()), CPU).program
    assert any(d.scan for d in lowered.defs.values()) == columns


def test_the_renderer_of_the_cpu_refuses_scans_without_steps() -> None:
    (kernel,) = CUDA.explain(trace(lambda x: x.cumsum(-1), [torch.randn(50)])).plan.kernels
    with pytest.raises(ValueError, match="a scan without steps"):
        render_kernel(kernel, "scan", host())


def test_scans_are_checked() -> None:
    (kernel,) = CUDA.explain(trace(lambda x: x.cumsum(-1), [torch.randn(4, 5)])).plan.kernels
    (one,) = kernel.passes
    late = (Scan("late", "sum", one.scans[0].value), *one.scans)
    verify_kernel(replace(kernel, passes=(replace(one, scans=late),)))
    with pytest.raises(Malformed, match="earlier reduction or scan"):
        verify_kernel(replace(kernel, passes=(replace(one, scans=()),)))
    with pytest.raises(Malformed, match="along 2 loops"):
        verify_kernel(replace(kernel, outer=(), row=(*kernel.outer, *kernel.row)))


@needs_triton
@pytest.mark.parametrize(
    ("program", "capability"),
    with_capabilities(p for p in PROGRAMS if LONG or p.name in COMPILED),
    ids=lambda one: getattr(one, "name", None),
)
def test_they_compile_to_cubins(program: Program, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.cubins import cubin

    for kernel in CUDA.explain(trace(program.function, program.inputs())).kernels:
        assert cubin(kernel, False, capability).code[:4] == b"\x7fELF"


@needs_triton
@pytest.mark.parametrize("kind", ["", "small", "symbolic"] if LONG else ["small"])
def test_interpreted_numbers_equal_eager(kind: str) -> None:
    assert interpreted("scans", *([kind] if kind else [])).count("ok ") >= (40 if kind else len(PROGRAMS))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_on_a_real_device(program: Program) -> None:
    inputs = [x.cuda() for x in program.inputs()]
    with torch.device("cuda"):
        wanted = program.function(*inputs)
        found = CUDA.compile(trace(program.function, inputs), inputs)(list(inputs))
    wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
    for one, other in zip(found, wanted):
        tolerance = 2e-2 if other.dtype.itemsize == 2 or "half" in program.name else 1e-3
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@needs_triton
@pytest.mark.parametrize(
    ("program", "capability"),
    with_capabilities(p for p in STEPS if LONG or p.name in ("selective", "positions")),
    ids=lambda one: getattr(one, "name", None),
)
def test_steps_compile_to_cubins(program: steps.Program, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.cubins import cubin

    for kernel in CUDA.explain(trace_scans(program.function, program.inputs())).kernels:
        assert cubin(kernel, False, capability).code[:4] == b"\x7fELF"


@needs_triton
def test_interpreted_steps_equal_eager() -> None:
    assert interpreted("steps").count("ok ") == len(STEPS)
    assert interpreted("steps", "symbolic").count("ok ") == len(steps.OTHER_SIZES)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("program", STEPS, ids=lambda p: p.name)
def test_steps_on_a_real_device(program: steps.Program) -> None:
    inputs = [x.cuda() for x in program.inputs()]
    with torch.device("cuda"):
        wanted = program.function(Eager(), *inputs)
        found = CUDA.compile(trace_scans(program.function, inputs), inputs)(list(inputs))
    for one, other in zip(found, wanted, strict=True):
        tolerance = 2e-2 if other.dtype.itemsize == 2 else 1e-4
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
