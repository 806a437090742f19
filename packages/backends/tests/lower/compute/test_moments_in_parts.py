"""Statistics computed in parts, as for many threads: the same numbers as eager mode's, whatever the parts are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from case_selection.sweeps import examples
from graphs.meaning import flat_memory
from graphs.tracing import trace
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.reduction_splits import Split, split_of
from framesmith_backends.ir.spec import Memory, run_kernel
from framesmith_backends.ir.verify import verify_kernel
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.fusion.group import Group
from framesmith_backends.schedule.kernels.build import build_kernel
from framesmith_backends.schedule.plan import scheduled, stored_names
from framesmith_backends.target import CPU, GPU, SLACK, SplitPolicy, Target

#: Cuts whatever it can.
EAGER_TO_CUT = SplitPolicy(
    many=4, few=1 << 30, wanted=12, most_parts=1 << 10, least=1, fewest=1, columns=4, balanced=False
)
aten = torch.ops.aten


def in_parts(by: SplitPolicy) -> Target:
    """A machine whose results are the CPU's, and whose statistics are cut."""
    return replace(CPU, in_order=False, statistics=by)


def results(function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
    """The results of the kernels of a function, and their number."""
    gm = trace(function, inputs)
    lowering = lower_graph(gm, in_parts(EAGER_TO_CUT))
    assert not lowering.program.calls, lowering.notes
    program, nodes = scheduled(lowering.program, replace(GPU, split=EAGER_TO_CUT))
    stored = stored_names(program, nodes)
    memory: Memory = {
        name: flat_memory(value, program.layouts[name]).clone()
        for name, value in zip(program.inputs, inputs, strict=True)
    }
    for name in stored:
        layout = program.layouts[name]
        memory[name] = torch.zeros_like(
            flat_memory(torch.empty_strided(layout.shape, layout.strides, dtype=DTYPES[layout.dtype].torch), layout)
        )
    for count, node in enumerate(nodes):
        assert isinstance(node, Group)
        kernel = build_kernel(f"k{count}", program, node, stored)
        verify_kernel(kernel)
        run_kernel(kernel, memory)
    found = []
    for name in program.outputs:
        layout = program.layouts[str(name)]
        found.append(memory[str(name)].as_strided(layout.shape, layout.strides))
    return found, len(nodes)


def check(function: Callable[..., object], *inputs: torch.Tensor, tolerance: float = 1e-5) -> int:
    wanted = function(*inputs)
    found, count = results(function, inputs)
    for mine, theirs in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
    return count


def normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> object:
    return aten._native_batch_norm_legit_functional(x, w, b, mean, var, True, 0.1, 1e-5)


def normed_grad(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> object:
    rest = (mean, (var.abs() + 0.5).rsqrt(), True, 1e-5, [True, True, True])
    return aten.native_batch_norm_backward(grad.relu(), x, w, None, None, *rest)


SIZES = st.tuples(st.integers(1, 5), st.integers(2, 9), st.integers(1, 12), st.integers(2, 12))


@settings(max_examples=examples(40), deadline=None)
@given(sizes=SIZES, last=st.booleans(), far=st.booleans())
def test_batch_norms(sizes: tuple[int, ...], last: bool, far: bool) -> None:
    assume(not far or sizes[0] * sizes[2] * sizes[3] >= 16)  # of few numbers the variance may be next to nothing
    torch.manual_seed(0)
    x = torch.randn(sizes) + (1000.0 if far else 0.0)
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    w, b, mean, var = (torch.rand(sizes[1]) + 0.5 for _ in range(4))
    check(normed, x, w, b, mean, var, tolerance=1e-3 if far else 1e-5)
    grad = torch.randn(sizes).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    check(normed_grad, grad, x, w, mean, var, tolerance=1e-2 if far else 1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.var_mean(x, (0, 2, 3)),
        lambda x: torch.var_mean(x, correction=0),
        lambda x: x.std((0, 1), keepdim=True),
        lambda x: x.var(-1, correction=3),
        lambda x: torch.var_mean(x.permute(3, 0, 2, 1), (0, 1)),
        lambda x: torch.var_mean(x[:, 1:, ::2], (0, 2, 3)),
        lambda x: F.group_norm(x, 2),
        lambda x: F.layer_norm(x, x.shape[1:]),
    ],
)
def test_other_statistics(function: Callable[..., object]) -> None:
    assert check(function, torch.randn(6, 4, 8, 12)) > 1
    assert check(function, torch.randn(6, 4, 8, 12).contiguous(memory_format=torch.channels_last)) > 1


def test_a_single_number_has_no_parts() -> None:
    assert (
        check(
            lambda x: (x.var(0, correction=0), *torch.var_mean(x, -1, correction=0)),
            torch.randn((), dtype=torch.float64),
        )
        == 1
    )


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e30])
def test_numbers_at_the_edge(value: float) -> None:
    x = torch.randn(4, 3, 4, 6)
    x[2, 1, 3, 4] = value
    check(lambda x: torch.var_mean(x.double(), (0, 2, 3)) if abs(value) == 1e30 else torch.var_mean(x, (0, 2, 3)), x)


def test_reductions_of_the_same_points_are_split_equally() -> None:
    """One kernel for the first halves of both sums, and one for the second halves: each is read once."""
    assert (
        check(lambda x, y: (x.sum(0), (x * y * x.sin() * y.cos()).sum(0)), *torch.randn(2, 64, 3), tolerance=1e-4) == 2
    )


@pytest.mark.parametrize(
    ("reduced", "kept", "in_columns", "cut"),
    [
        ((8, 6), 4, False, Split((), {0: 4})),
        ((8, 6), 4, True, Split((0,), {1: 2})),
        ((7, 6), 1, False, Split((0,), {1: 2})),
        ((7, 5), 1, False, Split((0,), {})),
        ((13,), 1, False, None),
    ],
)
def test_cuts(reduced: tuple[int, ...], kept: int, in_columns: bool, cut: Split | None) -> None:
    assert split_of(reduced, kept, in_columns, 4, EAGER_TO_CUT) == cut


def test_little_work_is_not_cut() -> None:
    assert split_of((4, 64, 64), 64, True, 12, GPU.split) == Split((0,), {1: 32})
    assert split_of((4, 4), 512, True, 12, GPU.split) is None
    assert split_of((256, 1024), 512, False, 12, GPU.split) is None  # as many results as there are processors


@settings(max_examples=300, deadline=None)
@given(
    reduced=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
    kept=st.integers(1, 300),
    in_columns=st.booleans(),
    read=st.integers(1, 32),
)
def test_parts_are_within_their_bounds(reduced: list[int], kept: int, in_columns: bool, read: int) -> None:
    cut = split_of(reduced, kept, in_columns, read, GPU.split)
    if cut is None:
        return
    each, by = math.prod(reduced), GPU.split
    parts = math.prod(reduced[k] for k in cut.whole) * math.prod(cut.parts.values())
    assert all(reduced[k] % n == 0 for k, n in cut.parts.items()) and 2 <= parts < each
    units = max(1, kept // by.columns if in_columns else kept)
    assert parts <= SLACK * max(2, min(by.wanted, each * kept // by.fewest) // units)
    assert kept == 1 or parts <= SLACK * max(2, math.isqrt(each // 2))


def test_channels_that_lie_last_are_columns() -> None:
    """32 of them are a unit: with the channels first, each is one, and there are enough of them."""
    x = torch.empty(8, 160, 20, 20)
    for images, count in ((x, 1), (x.contiguous(memory_format=torch.channels_last), 2)):
        gm = trace(lambda x: torch.var_mean(x, (0, 2, 3)), [images])
        lowering = lower_graph(gm, in_parts(GPU.split))
        assert len(scheduled(lowering.program, GPU)[1]) == count


def test_values_between_lie_as_the_result_does() -> None:
    """So that what is kept of them is read and written side by side."""
    x = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    gm = trace(normed, [x, *torch.rand(4, 8)])
    program = lower_graph(gm, in_parts(GPU.split)).program
    same = [d.layout.strides for d in program.defs.values() if d.layout.shape == x.shape]
    assert same and set(same) == {x.stride()}
