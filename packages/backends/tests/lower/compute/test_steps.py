"""Scans with pointwise bodies: kernels that step, beside eager mode and what the IR means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from graphs.meaning import flat_memory, run_program
from graphs.tracing_scans import Eager, trace_scans
from ir.test_spec import graph_values, memory_of
from sample_programs.steps import OTHER_SIZES, PROGRAMS, Program, linear

from framesmith_backends import CpuBackend
from framesmith_backends.ir.spec import run_kernel
from framesmith_backends.ir.verify import verify_program
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.fusion.group import Group
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.plan import scheduled, stored_names
from framesmith_backends.target import CPU, GPU, Target

CPU_BACKEND = CpuBackend()
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-12}


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = TOLERANCE.get(wanted.dtype, 1e-5)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_kernels_compute_what_eager_mode_does(program: Program) -> None:
    inputs = program.inputs()
    gm = trace_scans(program.function, inputs)
    stages = CPU_BACKEND.explain(gm)
    assert len(stages.plan.kernels) == program.kernels, stages.text()
    assert not [note for note in stages.lowering.notes if "scan" in note], stages.lowering.notes
    found = CPU_BACKEND.compile(gm, inputs)(list(inputs))
    for one, wanted in zip(found, program.function(Eager(), *inputs), strict=True):
        assert one.stride() == wanted.stride()
        close(one, wanted)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_passes_keep_the_meaning(program: Program, target: Target) -> None:
    inputs = program.inputs()
    gm = trace_scans(program.function, inputs)
    low = lower_graph(gm, target)
    verify_program(low.program)
    eager = graph_values(gm, inputs)
    made, nodes = scheduled(low.program, target)
    verify_program(made)
    plain, memory = run_program(low.program, memory_of(low.program, eager)), memory_of(made, eager)
    stored = stored_names(made, nodes)
    for name in stored:
        memory[name] = torch.zeros_like(plain[name])
    for k, node in enumerate(nodes):
        if isinstance(node, Group):
            run_kernel(build_kernel(f"k{k}", made, node, stored), memory)
    by_definition = {runtime: node for node, runtime in made.runtime.items()}
    for name in made.kept:
        wanted = flat_memory(eager[by_definition[name]], made.layouts[name])
        for found in (plain[name], memory[name]):
            close(found, wanted)


def test_what_nobody_reads_is_not_computed() -> None:
    inputs = [torch.randn(9, 40), torch.randn(9, 40)]
    (kernel,) = CPU_BACKEND.explain(
        trace_scans(lambda s, a, b: s.associative_scan(linear, (a, b))[1:], inputs)
    ).plan.kernels
    (one,) = kernel.passes
    assert len(one.scans) == len(one.stores) == 1


def test_equal_carried_values_are_carried_once() -> None:
    program = next(p for p in PROGRAMS if p.name == "twisted")
    (kernel,) = CPU_BACKEND.explain(trace_scans(program.function, program.inputs())).plan.kernels
    assert [scan.name for scan in kernel.passes[0].scans] == ["carried:0", "carried:1"]
    assert "steps scan from" in kernel.text()


def test_names_in_a_body_are_its_own() -> None:
    """Nodes of both graphs are called `mul_tensor`, and one of the graph around is called as what is carried."""
    inputs = [torch.randn(6, 20), torch.randn(20)]

    def function(s: Any, x: torch.Tensor, start: torch.Tensor) -> Any:
        return tuple(one + 1 for one in s.scan(lambda c, x: (c * x * 0.5, c * x), (start * 2,), ((x * 3).exp() * 0.1,)))

    gm = trace_scans(function, inputs)
    next(node for node in gm.graph.nodes if node.name == "mul_tensor").name = "carried"
    found = CPU_BACKEND.compile(gm, inputs)(list(inputs))
    for one, wanted in zip(found, function(Eager(), *inputs), strict=True):
        close(one, wanted)


def multiplied(c: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (c @ w + x, c)


def rolled(c: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (c.roll(1, 0) + x, c)


def normed(c: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (c / c.abs().sum(-1, keepdim=True) + x, c)


@pytest.mark.parametrize(
    ("step", "reason"),
    [(multiplied, "is a call: no rule"), (rolled, "at other positions"), (normed, "not pointwise")],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_other_bodies_stay_calls_and_say_why(step: Any, reason: str) -> None:
    inputs = [torch.randn(5, 20, 20), torch.randn(20, 20)]
    captured = (inputs[1],) if step is multiplied else ()

    def function(s: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        return s.scan(step, (x[0],), (x,), (w,) if captured else ())[1:]

    notes = CPU_BACKEND.explain(trace_scans(function, inputs)).lowering.notes
    assert reason in notes["scan"], notes


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name in OTHER_SIZES], ids=lambda p: p.name)
def test_kernels_of_symbolic_sizes(program: Program) -> None:
    inputs = program.inputs()
    gm = trace_scans(program.function, inputs, symbolic=True)
    assert not [note for note in CPU_BACKEND.explain(gm).lowering.notes if "scan" in note]
    call = CPU_BACKEND.compile(gm, inputs)
    for shapes in (program.shapes, *OTHER_SIZES[program.name]):
        values = replace(program, shapes=shapes).inputs()
        for one, wanted in zip(call(list(values)), program.function(Eager(), *values), strict=True):
            close(one, wanted)
