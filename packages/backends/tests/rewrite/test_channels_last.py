"""Convolutions in channels-last: the same results in the same strides, and why a convolution stays as it was traced."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_backends import CpuBackend
from framesmith_backends.ir.ops import CONVOLUTIONS
from framesmith_backends.native_ops.matmul.operator import OPERATOR
from framesmith_backends.native_ops.matmul.rewrite import SMALLEST_MATMUL, move_matmuls
from framesmith_backends.rewrite import convolution_layouts as preferred_layouts
from framesmith_backends.rewrite.channels_last import channels_last
from framesmith_backends.rewrite.convolution_layouts import ON_CPU, ON_CUDA, why_not_on_cpu, why_not_on_cuda

CONVOLUTION = torch.ops.aten.convolution.default


def in_channels_last(gm: fx.GraphModule) -> list[bool]:
    """For each convolution, whether its images have the channels last."""
    nodes = gm.graph.find_nodes(op="call_function", target=CONVOLUTION)
    return [node.args[0].meta["val"].is_contiguous(memory_format=torch.channels_last) for node in nodes]


def conversions(gm: fx.GraphModule) -> int:
    return len(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default))


def check(function: Callable[..., object], *inputs: torch.Tensor) -> fx.GraphModule:
    """The graph as it is laid out; what the backend computes is compared with eager."""
    gm = trace(function, inputs)
    found = CpuBackend().compile(gm, inputs)(list(inputs))
    traced = CpuBackend().compile(gm, inputs, options={"layout": "traced"})(list(inputs))
    wanted = function(*inputs)
    for mine, kept, theirs in zip(found, traced, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert mine.stride() == kept.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kept, theirs, rtol=1e-4, atol=1e-5)
    return channels_last(gm, ON_CPU)


def weights(*channels: int, size: int = 3) -> list[torch.Tensor]:
    return [torch.randn(o, i, size, size) / (i * size) for i, o in pairwise(channels)]


def test_operators_between_convolutions_follow() -> None:
    x, (a, b, c) = torch.randn(2, 4, 32, 32), weights(4, 8, 8, 16)
    statistics = [torch.rand(8), torch.rand(8) + 0.5, torch.rand(8), torch.rand(8)]

    def network(x: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c, *statistics = parameters
        y = F.conv2d(x, a, padding=1)
        y = torch.ops.aten._native_batch_norm_legit_no_training(y, *statistics, 0.1, 1e-5)[0].relu()
        z = F.conv2d(y, b, padding=1) + y
        z = F.max_pool2d(z, 2)
        z = F.interpolate(F.conv2d(z, c, padding=1), scale_factor=2, mode="bilinear")
        small = F.max_pool2d(torch.cat([z, y], 1), 4)
        return small, small.flatten(1), z.mean((2, 3)), x + 1

    gm = check(network, x, a, b, c, *statistics)
    assert in_channels_last(gm) == [True, True, True]
    assert conversions(gm) == 2  # the images, and what is returned and flattened: once


def test_a_linear_layer_behind_convolutions_has_its_provider_in_either_order() -> None:
    """The pipeline converts layouts first: what is flattened is contiguous again, so providers match as before."""
    x, (a, b, c) = torch.randn(8, 16, 8, 8), weights(16, 16, 16, 16)
    weight, bias = torch.randn(1024, 1024) / 32, torch.randn(1024)
    assert x.shape[0] * weight.numel() == SMALLEST_MATMUL

    def network(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *linear: torch.Tensor) -> object:
        y = F.conv2d(F.conv2d(F.conv2d(x, a, padding=1).relu(), b, padding=1).relu(), c, padding=1).relu()
        return F.linear(y.flatten(1), *linear), y.mean((2, 3))

    inputs = (x, a, b, c, weight, bias)
    gm = trace(network, inputs)
    for laid in (
        move_matmuls(channels_last(gm, ON_CPU), "native"),
        channels_last(move_matmuls(gm, "native"), ON_CPU),
    ):
        assert in_channels_last(laid) == [True] * 3
        assert len(laid.graph.find_nodes(op="call_function", target=OPERATOR)) == 1
    for provider in ("aten", "onednn", "native"):
        found = CpuBackend().compile(gm, inputs, options={"matmul": provider})(list(inputs))
        torch.testing.assert_close(found, network(*inputs), rtol=1e-4, atol=1e-5)


def test_late_layers_stay() -> None:
    x, (a, b) = torch.randn(2, 8, 40, 40), weights(8, 8, 256)

    def network(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        early = F.conv2d(F.conv2d(x, a, padding=1).relu(), a, padding=1)
        return F.conv2d(F.max_pool2d(early, 8), b)

    assert in_channels_last(check(network, x, a, b)) == [True, True, False]


def test_in_groups_and_transposed() -> None:
    x, (a, b) = torch.randn(2, 8, 32, 32), weights(8, 8, 8)
    depthwise, paired = torch.randn(8, 1, 3, 3), torch.randn(8, 2, 3, 3)

    def network(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        hidden = F.conv2d(F.conv2d(x, a).relu(), d, groups=8, stride=2, padding=1)
        hidden = F.conv_transpose2d(F.conv2d(hidden, p, groups=4, dilation=2).relu(), b, stride=2, output_padding=1)
        return F.conv_transpose2d(hidden.sigmoid(), p, groups=4).mean((2, 3))

    assert in_channels_last(check(network, x, a, b, depthwise, paired)) == [True] * 5


def test_more_conversions_than_gain() -> None:
    x, (a,) = torch.randn(2, 8, 32, 32), weights(8, 8)
    gm = check(lambda x, a: F.conv2d(x, a, padding=1), x, a)
    assert in_channels_last(gm) == [False]


def test_images_of_one_channel_are_not_copied() -> None:
    x, (a, b, c) = torch.randn(2, 1, 28, 28), weights(1, 8, 8, 1)

    def network(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last = F.conv2d(F.conv2d(F.conv2d(x, a).relu(), b).relu(), c)
        return last, last.sigmoid(), last.view(-1) + 1

    gm = check(network, x, a, b, c)
    assert in_channels_last(gm) == [True] * 3 and conversions(gm) == 0
    last, _, _ = CpuBackend().compile(trace(network, [x, a, b, c]), [x, a, b, c])([x, a, b, c])
    assert not last._is_view() and last.untyped_storage().nbytes() == last.numel() * 4


def test_the_convolution_that_gains_least_stays_if_all_cost_too_much() -> None:
    x, y, (a, b) = torch.randn(2, 8, 32, 32), torch.randn(2, 8, 24, 24), weights(8, 8, 8)

    def network(
        x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inside = F.conv2d(F.conv2d(x, a, padding=1).relu(), b, padding=1).relu()
        return inside.mean((2, 3)), F.conv2d(y, a, padding=1)

    assert in_channels_last(check(network, x, y, a, b)) == [True, True, False]


def test_tensors_in_the_traced_layout_are_read_so() -> None:
    x, (a, b) = torch.randn(2, 8, 48, 48), weights(8, 64, 64)

    def network(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        early = F.max_pool2d(F.conv2d(x, a, padding=1).relu(), 8)
        late = F.conv2d(early, b, padding=1).relu() + early
        return F.conv2d(late, b, padding=1) + late

    gm = check(network, x, a, b)
    assert in_channels_last(gm) == [True, False, False]
    assert conversions(gm) == 2  # the images, and once what the late layers read


def test_layouts_of_the_program_stay() -> None:
    x, (a, b) = torch.randn(2, 8, 32, 32).contiguous(memory_format=torch.channels_last), weights(8, 8, 8)
    gm = check(lambda x, a, b: F.conv2d(F.conv2d(x, a, padding=1).relu(), b, padding=1), x, a, b)
    assert conversions(gm) == 0


@pytest.mark.parametrize(
    ("function", "images", "weight", "reason"),
    [
        (F.conv1d, (2, 8, 32), (8, 8, 3), "no inputs"),
        (lambda x, w: F.conv2d(x.double(), w.double()), (2, 8, 32, 32), (8, 8, 3, 3), "float64"),
        (F.conv2d, (2, 8, 8, 8), (8, 8, 8, 8), "or of one pixel"),
        (F.conv2d, (2, 1, 32, 32), (1, 1, 3, 3), "one channel"),
        (F.conv2d, (1, 8, 4, 4), (64, 8, 3, 3), "more weights than pixels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_why_not(
    function: Callable[..., torch.Tensor], images: tuple[int, ...], weight: tuple[int, ...], reason: str
) -> None:
    gm = trace(function, [torch.randn(images), torch.randn(weight)])
    (node,) = gm.graph.find_nodes(op="call_function", target=CONVOLUTION)
    assert reason in (why_not_on_cpu(node) or "")
    assert channels_last(gm, ON_CPU) is gm


def step(
    x: torch.Tensor, gradient: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Three convolutions around a pool and a split, and their gradients, as a joint graph has them."""
    aten, ones, none = torch.ops.aten, [1, 1], [0, 0]

    def backward(gradient: torch.Tensor, x: torch.Tensor, w: torch.Tensor, first: bool = False) -> tuple[Any, ...]:
        mask = [not first, True, True]
        return aten.convolution_backward(gradient, x, w, [w.shape[0]], ones, ones, ones, False, none, 1, mask)

    y = F.conv2d(x, a, padding=1).relu()
    pooled, where = aten.max_pool2d_with_indices(y, [2, 2])
    z = F.conv2d(pooled, b, padding=1).relu()
    both = torch.cat([pooled, z], 1)
    result = F.conv2d(both, c, padding=1)
    of_both, of_c, bias_c = backward(gradient, both, c)
    left, right = of_both[:, : a.shape[0]], of_both[:, a.shape[0] :]
    of_pooled, of_b, bias_b = backward(aten.threshold_backward(right, z, 0), pooled, b)
    of_y = aten.max_pool2d_with_indices_backward(of_pooled + left, y, [2, 2], [], [0, 0], [1, 1], False, where)
    _, of_a, bias_a = backward(aten.threshold_backward(of_y, y, 0), x, a, first=True)
    return result, of_a, of_b, of_c, bias_a, bias_b, bias_c


@pytest.mark.parametrize("channels", [1, 3])
def test_a_training_step_is_laid_out_as_a_whole(channels: int) -> None:
    x, a = torch.randn(2, channels, 24, 24), torch.randn(8, channels, 3, 3)
    inputs = [x, torch.randn(2, 8, 12, 12), a, torch.randn(8, 8, 3, 3) / 8, torch.randn(8, 16, 3, 3) / 16]
    gm = trace(step, inputs)
    graph = CpuBackend().transform_step(gm.graph)
    assert graph is not None and CpuBackend().transform_step(gm.graph, {"layout": "traced"}) is None
    for target in CONVOLUTIONS:
        nodes = graph.find_nodes(op="call_function", target=target)
        values = [node.args[0].meta["val"] for node in nodes]
        assert len(nodes) == 3 and all(v.is_contiguous(memory_format=torch.channels_last) for v in values)
    laid_out = fx.GraphModule({}, graph)
    wanted = step(*inputs)
    for found in (laid_out(*inputs), CpuBackend().compile(laid_out, inputs, "forward")(list(inputs))):
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    images = 0 if channels == 1 else 1
    assert conversions(laid_out) <= images + 5  # the images, the gradient, the result, three weights' gradients


def test_few_multiplications_are_lost_to_statistics_of_the_batch() -> None:
    def network(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            y = F.conv2d(x, w, padding=1)
            x = torch.ops.aten._native_batch_norm_legit_functional(y, *rest, True, 0.1, 1e-5)[0].relu()
        return x.mean((2, 3))

    for channels, chosen in ((8, False), (32, True)):
        x, w = torch.randn(2, channels, 48, 48), torch.randn(channels, channels, 3, 3)
        gm = trace(network, [x, w, *torch.ones(4, channels)])
        assert (CpuBackend().transform_step(gm.graph) is not None) is chosen


def test_a_graph_of_training_alone_is_not_converted() -> None:
    x, (a, b) = torch.randn(2, 8, 32, 32), weights(8, 8, 8)
    inputs = [x, a, b]
    gm = trace(lambda x, a, b: F.conv2d(F.conv2d(x, a, padding=1).relu(), b, padding=1), inputs)
    for role in ("inference", "forward"):
        (found,) = CpuBackend().compile(gm, inputs, role)(list(inputs))  # type: ignore[arg-type]
        assert found.is_contiguous()


@pytest.mark.parametrize(
    ("dtype", "groups", "reason"),
    [
        (torch.bfloat16, 1, None),
        (torch.float32, 1, None),
        (torch.float64, 1, "float64"),
        (torch.bfloat16, 4, "in groups"),
    ],
)
def test_convolutions_for_tensor_cores(
    dtype: torch.dtype, groups: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferred_layouts, "_gives_channels_last", lambda node: True)
    with new_fake_mode():
        x = torch.empty(2, 8, 32, 32, dtype=dtype, device="cuda")
        w = torch.empty(8, 8 // groups, 3, 3, dtype=dtype, device="cuda")

        def network(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = F.conv2d(x, w, padding=1, groups=groups).relu()
            return x

        gm = make_fx(network)(x, w)
    node, *_ = gm.graph.find_nodes(op="call_function", target=CONVOLUTION)
    why = why_not_on_cuda(node)
    assert why is None if reason is None else reason in (why or "")
    changed = channels_last(gm, ON_CUDA)
    assert (changed is gm) == (reason is not None)
    weights = [node.args[1].meta["val"] for node in changed.graph.find_nodes(op="call_function", target=CONVOLUTION)]
    assert all(w.is_contiguous(memory_format=torch.channels_last) == (reason is None) for w in weights)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert (channels_last(gm, ON_CUDA) is gm) == (reason is not None or dtype == torch.float32)
    assert why_not_on_cpu(node) is not None


@pytest.mark.parametrize("takes", [True, False])
def test_convolutions_have_a_precision_of_their_own(takes: bool) -> None:
    """`torch.backends.cudnn.allow_tf32` raises where recurrent layers have another."""
    cudnn = torch.backends.cudnn
    before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    try:
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = ("tf32", "ieee") if takes else ("ieee", "tf32")
        assert preferred_layouts.tensor_cores_take(torch.float32) is takes
        assert preferred_layouts.tensor_cores_take(torch.bfloat16)
    finally:
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before


def test_kernels_of_another_layout_stay() -> None:
    """Without cuDNN, ATen chooses a kernel that knows no channels-last."""
    if torch.backends.cudnn.is_available():
        pytest.skip("this torch has cuDNN")
    with new_fake_mode():
        x, w = torch.empty(2, 8, 32, 32, device="cuda"), torch.empty(16, 8, 3, 3, device="cuda")
        gm = make_fx(F.conv2d)(x, w)
    (node,) = gm.graph.find_nodes(op="call_function", target=CONVOLUTION)
    assert why_not_on_cuda(node) == "ATen's kernel for it gives another layout"
