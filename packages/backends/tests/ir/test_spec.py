"""Every pass keeps the meaning of a program: the interpreter gives the same values before and after it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from graphs.meaning import flat_memory, run_program
from graphs.tracing import trace
from sample_programs.samples import SAMPLES, Sample
from torch import fx

from framesmith_backends.ir.program import Program
from framesmith_backends.ir.spec import Memory, run_kernel
from framesmith_backends.ir.verify import verify_kernel, verify_program
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.fusion.definitions import needed
from framesmith_backends.schedule.fusion.group import Group
from framesmith_backends.schedule.fusion.inline import inline
from framesmith_backends.schedule.fusion.split import split_reductions
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.plan import scheduled, stored_names
from framesmith_backends.target import CPU, GPU, Target

PURE = [s for s in SAMPLES if s.name not in ("attention", "linear grad")]


def graph_values(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The value of every node by running the graph eagerly."""
    values: dict[str, torch.Tensor] = {}

    class Capturer(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            values[n.name] = result = super().run_node(n)
            return result

    Capturer(gm).run(*inputs)
    return values


def memory_of(program: Program, values: dict[str, torch.Tensor]) -> Memory:
    return {
        name: flat_memory(values[name], program.layouts[name]).clone()
        for name in (*program.inputs, *program.calls)
        if name in program.layouts
    }


def check(found: torch.Tensor, wanted: torch.Tensor, sample: Sample) -> None:
    torch.testing.assert_close(found, wanted, rtol=sample.tolerance, atol=sample.tolerance, equal_nan=True)


@pytest.mark.sampled(33)
@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("sample", PURE, ids=lambda s: s.name)
def test_passes_keep_the_meaning(sample: Sample, target: Target) -> None:
    inputs = sample.inputs()
    gm = trace(sample.function, inputs)
    program = needed(lower_graph(gm, CPU).program)
    eager = graph_values(gm, inputs)
    verify_program(program)
    want = run_program(program, memory_of(program, eager))
    by_definition = {runtime: node for node, runtime in program.runtime.items()}
    for name in program.kept:
        check(want[name], flat_memory(eager[by_definition[name]], program.layouts[name]), sample)
    for step in (partial(split_reductions, target=target), partial(inline, cheap=target.inline)):
        program = step(program)
        verify_program(program)
        found = run_program(program, memory_of(program, eager))
        for name in program.kept:
            check(found[name], want[name], sample)


@pytest.mark.sampled(28)
@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("sample", PURE, ids=lambda s: s.name)
def test_kernels_mean_what_the_program_says(sample: Sample, target: Target) -> None:
    inputs = sample.inputs()
    gm = trace(sample.function, inputs)
    program, nodes = scheduled(lower_graph(gm, CPU).program, target)
    eager = graph_values(gm, inputs)
    want = run_program(program, memory_of(program, eager))
    stored = stored_names(program, nodes)
    memory = memory_of(program, eager)
    for name in stored:
        memory[name] = torch.zeros_like(want[name])
    kernels = [build_kernel(f"k{k}", program, n, stored) for k, n in enumerate(nodes) if isinstance(n, Group)]
    assert kernels
    for kernel in kernels:
        verify_kernel(kernel)
        run_kernel(kernel, memory)
    for name in stored:
        if program.defs[name].buffer is None:  # its memory is that of what updates it
            check(memory[name], want[name], sample)
