"""The layout of threads in tiles: as Triton's own layouts say."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from sample_programs import row_column

from framesmith_backends import CudaBackend
from framesmith_backends.render.triton.tile_rules import tile_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="triton is not installed, or interprets",
)


@pytest.mark.parametrize(
    "shape", [(2, 3, 64, 64), (4, 16, 32, 128), (1, 200, 6, 20)], ids=lambda shape: "x".join(map(str, shape))
)
def test_neighbouring_threads_read_neighbouring_elements_of_windows(shape: tuple[int, ...]) -> None:
    """No load along a line is contiguous there: Triton spread the threads of two dimensions across the lines."""
    from framesmith_backends.launch.cuda.triton_jit import compiled

    (kernel,) = CudaBackend().explain(trace(lambda x: F.max_pool2d(x, 2), [torch.randn(shape)])).kernels
    layouts = re.findall(r"#ttg\.blocked<\{[^}]*order = \[([\d, ]+)\]", compiled(kernel, 90).asm["ttgir"])
    assert layouts and all(order in ("0", "1, 0") for order in layouts)


def test_lines_of_a_flat_tile_are_read_in_whole_vectors() -> None:
    from framesmith_backends.launch.cuda.triton_jit import compiled

    (kernel,) = CudaBackend().explain(trace(lambda x: x[:, :64] * 2, [torch.randn(300, 80)])).kernels
    assert "tl.arange(0, 1024) // 64" in kernel.source
    assert "ld.global.v4.b32" in compiled(kernel, 90).asm["ptx"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_thread_has_few_elements_where_they_are_strided(dtype: torch.dtype) -> None:
    from framesmith_backends.launch.cuda.triton_jit import compiled

    x = torch.randn(2, 4, 128, 128).to(dtype)
    (kernel,) = CudaBackend().explain(trace(lambda x: F.max_pool2d(x, 3, 2, 1), [x])).kernels
    sizes = re.findall(r"#ttg\.blocked<\{sizePerThread = \[([\d, ]+)\]", compiled(kernel, 90).asm["ttgir"])
    assert sizes and all(math.prod(map(int, size.split(", "))) <= 2 for size in sizes)
    (dense,) = CudaBackend().explain(trace(lambda x: x * 2, [torch.randn(1 << 16).to(dtype)])).kernels
    assert dense.warps * 4 == kernel.warps


@pytest.mark.parametrize(("columns", "rows", "warps"), [(32, 256, 16), (8192, 256, 16), (1 << 17, 16, 8)])
def test_few_programs_read_more_at_once(columns: int, rows: int, warps: int) -> None:
    (kernel,) = CudaBackend().explain(trace(lambda x: x.sum(0), [torch.randn(640, columns)])).kernels
    assert f"range(0, 640, {rows})" in kernel.source and kernel.warps == warps


def test_rows_in_blocks_are_read_once_for_the_largest_element_and_what_is_below() -> None:
    (kernel,) = CudaBackend().explain(trace(lambda x: x.softmax(-1), [torch.randn(400, 65536)])).kernels
    assert kernel.source.count("tl.load") == 2
    (held,) = CudaBackend().explain(trace(lambda x: x.softmax(-1), [torch.randn(4, 4096)])).kernels
    assert "fs.negative_distance" not in held.source


def test_rows_in_blocks_are_read_once_for_their_moments() -> None:
    x = torch.randn(400, 1 << 16)
    (kernel,) = CudaBackend().explain(trace(lambda x: F.layer_norm(x, (1 << 16,)), [x])).kernels
    loops = re.findall(r"for \w+ in range\(0, (\d+), (\d+)\)", kernel.source)
    assert [int(end) // int(block) for end, block in loops] == [2, 32, 32]


@pytest.mark.parametrize(
    ("columns", "dtype", "several"),
    [(2048, "float32", 1), (2048, "bfloat16", 2), (384, "float32", 4), (4096, "bfloat16", 1)],
)
def test_rows_in_turn_are_on_their_way_as_far_as_a_launch_has_memory(columns: int, dtype: str, several: int) -> None:
    from framesmith_backends.launch.cuda.triton_jit import compiled
    from framesmith_backends.target import most_shared

    case = row_column.CASES[0]
    inputs = case.inputs(4096, columns, getattr(torch, dtype))
    (kernel, _) = (
        CudaBackend().explain(trace(row_column.given_statistics, [*inputs, *map(torch.randn, [(4096, 1)] * 2)])).kernels
    )
    assert f"tl.range(0, 16, {several}, num_stages=3)" in kernel.source
    found = compiled(kernel, 90)
    assert found.metadata.shared <= most_shared(90) and kernel.warps == 8
    assert "cp.async" in found.asm["ptx"]


def embedded(positions: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(positions + patches.flatten(2).transpose(1, 2), (384,))


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 8), (torch.bfloat16, 16)], ids=str)
def test_rows_that_lie_across_are_read_by_whole_sectors(dtype: torch.dtype, rows: int) -> None:
    from framesmith_backends.launch.cuda.triton_jit import compiled

    inputs = [torch.randn(196, 384, dtype=dtype), torch.randn(8, 384, 14, 14, dtype=dtype)]
    stages = CudaBackend().explain(trace(embedded, inputs))
    (kernel,) = stages.plan.kernels
    assert [axis.block for axis in tile_of(kernel).axes] == [rows, 512]
    code = compiled(stages.kernels[0], 90).asm["ttgir"]
    sizes = r"sizePerThread = \[(\d+), 1\], threadsPerWarp = \[(\d+), \d+\]"
    blocked = re.findall(r"#ttg\.blocked<\{" + sizes + r"[^}]*order = \[0, 1\]", code)
    assert blocked and all(int(elements) * int(threads) == rows for elements, threads in blocked)


@pytest.mark.parametrize(
    ("columns", "blocks"), [(3000, [4, 4096]), (12_000, [8, 1024])], ids=["that are held", "in blocks"]
)
def test_long_rows_that_lie_across_are_as_many_as_registers_hold(columns: int, blocks: list[int]) -> None:
    inputs = [torch.randn(640, columns), torch.randn(columns, 640)]
    (kernel,) = CudaBackend().explain(trace(lambda x, y: (x + y.t()).softmax(-1), inputs)).plan.kernels
    assert [axis.block for axis in tile_of(kernel).axes] == blocks


def test_few_rows_that_lie_across_are_spread_over_programs() -> None:
    (kernel,) = CudaBackend().explain(trace(embedded, [torch.randn(16, 384), torch.randn(1, 384, 4, 4)])).plan.kernels
    assert tile_of(kernel).elements == 512


def test_results_of_neighbouring_rows_are_of_one_program() -> None:
    def counts(x: torch.Tensor) -> torch.Tensor:
        return (x[..., None] == torch.arange(64)).sum(1)

    (kernel,) = CudaBackend().explain(trace(counts, [torch.zeros(4096, 128, dtype=torch.int64)])).plan.kernels
    rows, _ = tile_of(kernel).axes
    assert rows.var.size == 64 and rows.block == 8


def test_short_rows_fill_a_warp() -> None:
    (kernel,) = CudaBackend().explain(trace(lambda x: x.sum(-1), [torch.randn(40, 12, 8)])).plan.kernels
    assert tile_of(kernel).elements == 32


@pytest.mark.parametrize(
    "function",
    [lambda x: F.group_norm(x.relu(), 8), lambda x: x.unflatten(1, (8, 8)).sum((2, 3, 4))],
    ids=["moments", "sums"],
)
def test_parts_of_groups_are_of_images_as_they_lie(function: Any) -> None:
    images = torch.randn(4, 64, 64, 64).to(memory_format=torch.channels_last)
    first, second, *_ = CudaBackend().explain(trace(function, [images])).plan.kernels
    assert first.lane is not None and first.lane.size == 64 and first.lane in first.outer
    assert all(any(axis.var is loop for axis in tile_of(second).axes) for loop in second.row)


def test_rows_of_long_loops_are_read_by_many_lanes() -> None:
    images = torch.randn(8, 64, 32, 32).to(memory_format=torch.channels_last)
    stages = CudaBackend().explain(trace(lambda x: x.unflatten(1, (8, 8)).exp().sum((2, 3, 4)), [images]))
    assert tile_of(stages.plan.kernels[0]).elements >= 4096 and stages.kernels[0].warps >= 8


def test_rows_of_two_short_loops_are_held() -> None:
    stages = CudaBackend().explain(trace(lambda x: x.softmax(0).sum((0, 2)), [torch.randn(30, 500, 12)]))
    kernel = stages.plan.kernels[-1]
    tile = tile_of(kernel)
    assert tile.flat and [axis.block for axis in tile.axes] == [32, 16] and " range(" not in stages.kernels[-1].source


BETWEEN = {
    "halves of short lines": (lambda x: x.repeat_interleave(2, -1) * 2, (64, 64, 32), 2),
    "upsampled": (lambda x: F.interpolate(x, scale_factor=2), (4, 16, 64, 64), 2),
    "threes": (lambda x: x.repeat_interleave(3, 1) * 2, (512, 1024), 3),
    "three channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous() * 2, (4, 3, 64, 64), 3),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_elements_between_neighbouring_lanes_are_of_one_program(name: str) -> None:
    function, shape, count = BETWEEN[name]
    kernel = CudaBackend().explain(trace(function, [torch.randn(shape)])).plan.kernels[-1]
    tile = tile_of(kernel)
    *_, lane, inner = tile.axes
    assert tile.flat and inner.var.size == count and lane.var is kernel.lane and tile.elements == 1024


def test_few_lanes_are_not_spread_for_what_lies_between_them() -> None:
    (kernel,) = (
        CudaBackend().explain(trace(lambda x: x.repeat_interleave(3, 1) * 2, [torch.randn(512, 8)])).plan.kernels
    )
    assert tile_of(kernel).elements >= 128
