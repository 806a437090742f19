"""Kernels of all kinds as PTX, thread by thread: results are eager's, and nothing that a device would object to.

In long runs, `FRAMESMITH_LONG=1`, all samples, for two kinds of GPU; else a couple of dozen.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("triton is not installed, or interprets", allow_module_level=True)

from case_selection.sweeps import LONG
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from interpreter_scripts import attention as interpret_attention
from interpreter_scripts import matmuls as interpret_matmuls
from ptx.device import Device
from ptx.launching import Emulated
from sample_programs import float8 as float8_programs
from sample_programs import list_steps, row_column
from sample_programs import scans as scan_programs
from sample_programs.samples import SAMPLES

from framesmith_backends import cuda
from framesmith_backends.cuda import TritonStages, stages_of
from framesmith_backends.ir.fused.attention import FusedAttention
from framesmith_backends.ir.fused.matmul import FusedMatmul
from framesmith_backends.schedule.matmuls import attention
from framesmith_backends.target import GPU

Tensor = torch.Tensor
#: A name, what is computed, of what, how its stages are made, and how near results are to eager's.
Case = tuple[str, Callable[..., Any], list[Tensor], Callable[..., TritonStages], float]
SHORT = (
    "broadcast", "softmax columns", "layer norm", "group norm", "long columns", "long rows", "logsumexp", "permuted",
    "cat", "attention", "channels last", "bf16", "double functions", "gathers", "sums at indices",
    "replaced at indices", "layer norm grad", "tiles", "batch norm grad",
)  # fmt: skip


def explained(function: Callable[..., Any], inputs: Sequence[Tensor]) -> TritonStages:
    return stages_of(trace(function, inputs))


def in_few_parts(function: Callable[..., Any], inputs: Sequence[Tensor]) -> TritonStages:
    """With rows and columns reduced in one pass, though there are few."""
    cuda.GPU = replace(GPU, row_column=replace(GPU.row_column, parts=4, least=2, least_rows=2))
    try:
        stages = explained(function, inputs)
    finally:
        cuda.GPU = GPU
    assert sum("tl.range(" in kernel.source for kernel in stages.kernels) == 1
    return stages


def fused(function: Callable[..., Any], inputs: Sequence[Tensor]) -> TritonStages:
    stages = stages_of(trace(function, inputs), choose=interpret_matmuls.forced(interpret_matmuls.TILE))
    assert stages.plan.items_of(FusedMatmul)
    return stages


def attending(function: Callable[..., Any], inputs: Sequence[Tensor]) -> TritonStages:
    made = attention.tile_for
    try:
        attention.tile_for = lambda *sizes: interpret_attention.SMALL
        stages = explained(function, inputs)
    finally:
        attention.tile_for = made
    assert stages.plan.items_of(FusedAttention)
    return stages


def group_norm_grad(dy: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
    n, c, h, width = x.shape
    _, mean, rstd = torch.ops.aten.native_group_norm(x, w, w, n, c, h * width, 4, 1e-5)
    found = torch.ops.aten.native_group_norm_backward(dy, x, mean, rstd, w, n, c, h * width, 4, [True, True, True])
    return [t for t in found if t is not None]


def of_mixed_layouts(dy: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
    return group_norm_grad(dy.contiguous(), x.contiguous(), w)


def cases() -> Iterator[Case]:
    for sample in SAMPLES:
        if LONG or sample.name in SHORT:
            yield sample.name, sample.function, sample.inputs(interpreted=True), explained, max(sample.tolerance, 2e-5)
    for one in row_column.CASES if LONG else row_column.CASES[:2]:
        yield f"rows and columns: {one.function.__name__}", one.function, one.inputs(48, 96), in_few_parts, 1e-3
    for program in scan_programs.PROGRAMS if LONG else scan_programs.PROGRAMS[:2]:
        yield f"scan: {program.name}", program.function, program.inputs(), explained, 1e-3
    for name in interpret_matmuls.CASES if LONG else ("linear, gelu", "batch, scaled sum", "several results"):
        function, _, count = interpret_matmuls.CASES[name]
        for dtype in (torch.bfloat16, torch.float32) if count else ():
            inputs = interpret_matmuls.inputs_of(name, dtype)
            yield f"matmul: {name}, {dtype}", function, inputs, fused, 0.05 if dtype == torch.bfloat16 else 1e-2
    for name in interpret_attention.CASES if LONG else ("slopes, causal",):
        if interpret_attention.CASES[name].count:
            function = interpret_attention.function_of(interpret_attention.CASES[name])
            yield (
                f"fused attention: {name}",
                function,
                interpret_attention.inputs_of(name, torch.bfloat16),
                attending,
                0.05,
            )
    for name, function, x in float8_programs.programs():
        if LONG or name.startswith(("rows to", "float8_e5m2 moved", "torch.float32 to")):
            yield f"float8: {name}", function, [x], explained, 1e-5
    generator = torch.Generator().manual_seed(0)
    for shape in ((2, 16, 6, 6), (8, 64, 32, 32))[: 1 + LONG]:
        dy, x = (torch.randn(shape, generator=generator) for _ in range(2))
        w = torch.randn(shape[1], generator=generator)
        last = [t.to(memory_format=torch.channels_last) for t in (dy, x)]
        yield f"group norm grad, in rows, {shape}", group_norm_grad, [dy, x, w], explained, 2e-4
        yield f"group norm grad, channels last, {shape}", group_norm_grad, [*last, w], explained, 2e-4
        yield f"group norm grad, one of both, {shape}", of_mixed_layouts, [last[0], x, w], explained, 2e-4
        half = [t.bfloat16() for t in (*last, w)]
        yield f"group norm grad, bfloat16, {shape}", group_norm_grad, half, explained, 0.1


CASES = [*cases()]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("capability", (80, 90) if LONG else (80,))
@pytest.mark.parametrize("case", CASES, ids=[name for name, *_ in CASES])
def test_kernels_compute_on_a_device_what_eager_mode_does(case: Case, capability: int) -> None:
    _, function, inputs, explain, tolerance = case
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
    found = Emulated(capability).compile(explain(function, inputs))(list(inputs))
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        if other.dtype in float8_programs.KINDS:
            assert float8_programs.differing(one, other) == 0
            continue
        scale = float(other.double().nan_to_num(0, 0, 0).abs().max()) if tolerance > 1e-4 and other.numel() else 1.0
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(scale, 1.0), equal_nan=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "one", [x for x in list_steps.LISTS if x.launches == 1 or LONG][: None if LONG else 3], ids=lambda x: x.name
)
def test_lists_of_tensors_in_one_launch(one: list_steps.Lists) -> None:
    """Steps that write to their inputs."""
    many = len(one.shapes)
    inputs, others = one.inputs(), one.inputs()
    steps = [one.step(*others[k::many]) for k in range(many)]
    Emulated().compile(cuda.CudaBackend().explain(one.graph()))(list(inputs))
    for place, at in enumerate(one.written):
        for k in range(many):
            torch.testing.assert_close(inputs[at * many + k], steps[k][place], rtol=2e-5, atol=2e-5)


def test_native_entries_launch_kernels_on_their_tensors() -> None:
    """Parameters, threads, shared memory and grids as an entry hands them to the driver."""
    dy, x = (torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last) for _ in range(2))
    inputs = [dy, x, torch.randn(16)]
    device = Device()
    stages = explained(group_norm_grad, inputs)
    for one, other in zip(device.compile(stages)(list(inputs)), group_norm_grad(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4)
    assert device.launched == [kernel.name for kernel in stages.launched]


def test_native_entries_choose_code_for_the_numbers_of_a_call() -> None:
    """The code for aligned numbers is given no others."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.t() + y

    gm = trace_symbolic(function, [torch.rand(64, 48), torch.rand(48, 64)])
    run = Device().compile(stages_of(gm))
    for rows, columns in ((64, 48), (32, 41), (33, 32), (5, 7)):
        x, y = torch.rand(rows, columns), torch.rand(columns, rows)
        (found,) = run([x, y])
        assert found.equal(function(x, y))


def test_tensors_that_begin_anywhere_are_launched_on_kernel_by_kernel() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).softmax(-1) + x.exp().sum(0)

    device = Device()
    run = device.compile(explained(function, [torch.rand(40, 64), torch.rand(40, 64)]))
    flat = torch.rand(2 * 40 * 64 + 1)
    for start, several in ((0, False), (1, True), (0, False)):
        x, y = (flat[start + k * 2560 :][:2560].view(40, 64) for k in range(2))
        before = device.one_by_one
        (found,) = run([x, y])
        torch.testing.assert_close(found, function(x, y))
        assert (device.one_by_one > before) is several


def test_changing_sizes_of_tensors_that_begin_anywhere() -> None:
    """Symbolic numbers, and the variants of a kernel that they select, in native entries."""

    def function(x: Tensor) -> Tensor:
        return x.softmax(-1)

    device = Device()
    run = device.compile(stages_of(trace_symbolic(function, [torch.rand(8, 5)])))
    for columns in (5, 48, 700):
        x = torch.rand(1 + 6 * columns)[1:].view(6, columns)
        before = device.one_by_one
        (found,) = run([x])
        torch.testing.assert_close(found, function(x))
        assert device.one_by_one > before


def test_lanes_that_nobody_reads_do_not_reach_their_neighbours() -> None:
    """LLVM computes `program & 31` beside `lane << 2`, and of neither what is read of the other."""

    def function(one: Tensor, other: Tensor) -> Tensor:
        below = torch.arange(32)[:, None] >= torch.arange(32)
        return torch.where(below, one.sum(0, True), 0.0) + torch.where(below, other.sum(0, True), 0.0)

    inputs = [torch.rand(4, 4, 32, 32) for _ in range(2)]
    (found,) = Emulated(80).compile(explained(function, inputs))(list(inputs))
    torch.testing.assert_close(found, function(*inputs))
