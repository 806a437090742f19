"""Gradients of group norms: no farther from those in float64 than eager mode's are."""

from __future__ import annotations

import math

import pytest
import torch
from graphs.tracing import trace
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.target import GPU

SHAPES = {
    "images": ((2, 6, 5, 7), 3),
    "lines": ((3, 8, 40), 4),
    "channels alone": ((4, 6), 2),
    "volumes in one group": ((2, 4, 3, 3, 3), 1),
    "one element each": ((3, 4, 1, 1), 4),
    "no images": ((0, 4, 3, 3), 2),
}
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ALLOWED = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def inputs_of(shape: tuple[int, ...], groups: int, dtype: torch.dtype) -> list[Tensor]:
    """Gradient, images, their means and inverse deviations, weights."""
    torch.manual_seed(0)
    gradient, images = torch.randn(shape).to(dtype), (torch.randn(shape) + 1).to(dtype)
    size, weight = (shape[0], shape[1], math.prod(shape[2:])), torch.randn(shape[1]).to(dtype)
    return [gradient, images, *torch.native_group_norm(images, None, None, *size, groups, 1e-5)[1:], weight]


def gradients(groups: int, mask: list[bool]) -> object:
    def function(gradient: Tensor, images: Tensor, mean: Tensor, rstd: Tensor, *weight: Tensor) -> tuple[Tensor, ...]:
        n, c = images.shape[:2]
        size, scale = math.prod(images.shape[2:]), weight[0] if weight else None
        found = torch.ops.aten.native_group_norm_backward(
            gradient, images, mean, rstd, scale, n, c, size, groups, mask
        )  # fmt: skip
        return tuple(one for one, wanted in zip(found, mask, strict=True) if wanted)

    return function


def check(inputs: list[Tensor], groups: int, mask: list[bool]) -> None:
    function = gradients(groups, mask)
    graph = trace(function, inputs)
    assert not inputs[0].numel() or not CpuBackend().explain(graph).lowering.notes
    found = CpuBackend().compile(graph, inputs)(list(inputs))
    exact = function(*(one.double() for one in inputs))
    for ours, theirs, wanted in zip(found, function(*inputs), exact, strict=True):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        if wanted.numel():
            scale = max(float(wanted.abs().max()), 1.0)
            distance, eager = (float((one.double() - wanted).abs().max()) for one in (ours, theirs))
            assert distance <= 1.5 * eager + ALLOWED[ours.dtype] * scale


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_equal_eager(name: str, dtype: torch.dtype) -> None:
    shape, groups = SHAPES[name]
    inputs = inputs_of(shape, groups, dtype)
    check(inputs, groups, [True, True, True])
    check(inputs[:4], groups, [True, False, False])
    check(inputs, groups, [False, True, True])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_images_with_channels_last(dtype: torch.dtype) -> None:
    inputs = inputs_of((2, 6, 5, 7), 3, dtype)
    laid_out = [one.contiguous(memory_format=torch.channels_last) for one in inputs[:2]]
    check([*laid_out, *inputs[2:]], 3, [True, True, True])


def test_images_far_from_zero_keep_their_gradients() -> None:
    """ATen takes the difference of two large sums, of which little is left; distances are taken first here."""
    gradient, images, _, _, weight = inputs_of((2, 4, 16, 16), 2, torch.float32)
    images = images + 1e4
    statistics = torch.native_group_norm(images, None, None, 2, 4, 256, 2, 1e-5)[1:]
    inputs = [gradient, images, *statistics, weight]
    function = gradients(2, [True, True, True])
    found = CpuBackend().compile(trace(function, inputs), inputs)(list(inputs))
    exact = function(*(one.double() for one in inputs))
    for ours, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, True], [False, False, True]])
def test_on_gpus_all_of_them_is_on_the_gpu(mask: list[bool]) -> None:
    """Intermediates too, where the first result is not wanted."""
    given = inputs_of((2, 6, 5, 7), 3, torch.float32)
    every = gradients(3, mask)
    with new_fake_mode():
        fakes = [torch.empty(one.shape, device="cuda") for one in given]
        graph = make_fx(lambda *values: [one for one in every(*values) if one is not None])(*fakes)
    graph.graph.eliminate_dead_code()
    lowered = lower_graph(graph, GPU, "cuda")
    assert "native_group_norm_backward" not in lowered.notes
    assert {layout.device for layout in lowered.program.layouts.values()} == {"cuda:0"}
