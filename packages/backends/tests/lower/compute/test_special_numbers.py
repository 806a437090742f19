"""Activations, their gradients and normalisations at infinities, zeros and what overflows, for every type and layout.

Results that eager mode chooses by an element's lane in a vector register are left out: see docs/known-limitations.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from case_selection.sweeps import examples
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends import CpuBackend

aten = torch.ops.aten
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float64: 1e-11}
Function = Callable[..., Any]


def _slope(operator: Function, *settings: Any, **named: Any) -> Function:
    return lambda x: operator(torch.ones_like(x), x, *settings, **named)


FUNCTIONS: dict[str, Function] = {
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 2.0, 5.0), "selu": F.selu, "elu": lambda x: F.elu(x, 2.5),
    "elu_falling": lambda x: F.elu(x, -1.5), "elu_infinite": lambda x: F.elu(x, math.inf), "relu6": F.relu6,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "leaky_relu": F.leaky_relu, "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid, "hardshrink": F.hardshrink, "softshrink": F.softshrink,
    "dgelu": _slope(aten.gelu_backward), "dgelu_tanh": _slope(aten.gelu_backward, approximate="tanh"),
    "dsilu": _slope(aten.silu_backward), "dmish": _slope(aten.mish_backward),
    "dsoftplus": _slope(aten.softplus_backward, 2.0, 5.0), "dhardswish": _slope(aten.hardswish_backward),
    "dhardsigmoid": _slope(aten.hardsigmoid_backward), "dhardtanh": _slope(aten.hardtanh_backward, -1.0, 2.0),
    "dleaky_relu": _slope(aten.leaky_relu_backward, 0.01, False),
    "delu": lambda x: aten.elu_backward(torch.ones_like(x), -1.5, 1.0, 1.0, False, x),
}  # fmt: skip


def _run(function: Function, x: torch.Tensor) -> Any:
    return CpuBackend().compile(trace(function, [x]), [x])([x])


@pytest.mark.sampled(32)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(name: str, dtype: torch.dtype, strided: bool) -> None:
    # Not between the roots of the largest number and its half: oneDNN's gelu doubles before it halves.
    large = torch.finfo(dtype).max
    sizes = [0.0, math.inf, large / 4, 2 * large**0.5, large**0.5 / 2, 2 * large ** (1 / 3), 1.0, 3.0, 6.0, 20.5, 1e-3]
    x = torch.tensor([sign * one for one in sizes for sign in (1, -1)], dtype=torch.float64).to(dtype)
    if strided:
        x = torch.stack([x, x], 1)[:, 0]
    [found], wanted = _run(FUNCTIONS[name], x), FUNCTIONS[name](x)
    torch.testing.assert_close(found, wanted, rtol=RELATIVE[dtype], atol=1e-6, equal_nan=True)
    if name.startswith(("elu", "selu", "gelu", "leaky")):
        by_aten = FUNCTIONS[name](torch.stack([x, x], 1)[:, 0])  # oneDNN's gelu of -0 is 0 without AVX-512
        zeros = (found == 0) & (wanted == 0) & (x == 0)
        assert torch.equal(found.signbit()[zeros], by_aten.signbit()[zeros])


@pytest.mark.parametrize(("dtype", "count"), [(torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 5)])
def test_gelu_of_infinity_depends_on_the_layout(dtype: torch.dtype, count: int) -> None:
    """oneDNN computes that of several contiguous numbers."""
    for x in (torch.full((count,), math.inf, dtype=dtype), torch.full((count, 2), math.inf, dtype=dtype)[:, 0]):
        [found] = _run(F.gelu, x)
        torch.testing.assert_close(found, F.gelu(x), equal_nan=True)


def _laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    rank = x.dim()
    if layout == "channels last" and rank in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if rank == 4 else torch.channels_last_3d)
    if layout == "strided":
        return torch.stack([x, x], -1)[..., 0]
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    # (Of two dimensions, the numbers of a channel would be equal.)
    return x[:1].expand(x.shape) if layout == "expanded" and rank > 2 else x


def _batch_norm(x: torch.Tensor) -> Any:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean, var = torch.zeros(x.shape[1], dtype=wide), torch.ones(x.shape[1], dtype=wide)
    return aten._native_batch_norm_legit_functional(x, None, None, mean, var, True, 0.1, 1e-5)


@settings(max_examples=examples(60), deadline=None)
@given(
    shape=st.lists(st.integers(2, 5), min_size=2, max_size=5),
    layout=st.sampled_from(["contiguous", "channels last", "strided", "transposed", "expanded"]),
    scale=st.sampled_from([1.0, 1e-3, 3e19, 1e30]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_batch_norm_adds_up_as_wide_as_in_eager_mode(
    shape: list[int], layout: str, scale: float, dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = _laid_out((x * scale).to(dtype), layout)
    tolerance = max(RELATIVE[dtype], 1e-4 if dtype != torch.float64 else 0.0)
    for found, wanted in zip(_run(_batch_norm, x), _batch_norm(x), strict=True):
        size = wanted.double().abs().nan_to_num(0, 0, 0).max().item()
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * size, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 9])
@pytest.mark.parametrize("kind", ["layer", "group", "images"])
def test_rows_whose_mean_has_no_square(kind: str, count: int, dtype: torch.dtype) -> None:
    """Those that fill no vector are NaN; of the others these here are 0, but for what lies channels last."""
    lanes = {2: 16, 4: 8, 8: 4}[dtype.itemsize]
    if count % lanes == 0:
        pytest.skip("NaN by the first lane")
    large = 1e160 if dtype == torch.float64 else 3e19
    x = (torch.linspace(0.9, 1, count, dtype=torch.float64) * large).to(dtype).expand(3, count).contiguous()
    if kind == "layer":
        function = lambda x: aten.native_layer_norm(x, [count], None, None, 1e-5)  # noqa: E731
    elif kind == "group":
        function = lambda x: aten.native_group_norm(x, None, None, 1, 3, count, 3, 1e-5)  # noqa: E731
        x = x[None]
    else:
        function = lambda x: aten.native_group_norm(x, None, None, 2, 3, 2 * count, 3, 1e-5)  # noqa: E731
        x = x.view(1, 3, count, 1).expand(2, 3, count, 2).contiguous(memory_format=torch.channels_last)
    found, wanted = _run(function, x)[2], function(x)[2]
    assert torch.equal(found.isnan(), wanted.isnan())
    assert kind != "images" or wanted.isnan().all()


def test_a_small_weight_keeps_a_batch_norm_from_overflowing() -> None:
    x, weight, bias = torch.tensor([[3e38, 1.0], [-3e38, 2.0]]), torch.tensor([0.1, 1.0]), torch.tensor([1.0, -1.0])
    mean, var = torch.tensor([1.0, 0.5]), torch.tensor([0.25, 4.0])

    def function(*given: torch.Tensor) -> Any:
        return aten._native_batch_norm_legit_no_training(*given, 0.1, 1e-5)[:1]

    given = [x, weight, bias, mean, var]
    [found], [wanted] = CpuBackend().compile(trace(function, given), given)(list(given)), function(*given)
    torch.testing.assert_close(found, wanted)
    assert wanted.isfinite().all()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("shape", "dim"), [((2, 1), 1), ((1,), None), ((3, 1, 1), (1, 2))])
def test_the_norm_of_one_number_does_not_overflow(shape: tuple[int, ...], dim: Any, order: int) -> None:
    x = torch.full(shape, -3e38)
    [found] = _run(lambda x: (torch.linalg.vector_norm(x, order, dim),), x)
    assert torch.equal(found, torch.linalg.vector_norm(x, order, dim))
    assert found.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [None, (), -1, (0,)])
def test_the_norm_of_a_tensor_without_dimensions(dim: Any, dtype: torch.dtype) -> None:
    """Torch squares it where its dimension is named, and else does not."""
    for value in (3e38, 1e-30, -2.0, float("inf"), float("nan")):
        x = torch.tensor(value).to(dtype)
        [found] = _run(lambda x: (torch.linalg.vector_norm(x, 2, dim),), x)
        assert torch.equal(found.nan_to_num(7), torch.linalg.vector_norm(x, 2, dim).nan_to_num(7))


def test_short_rows_of_a_length_that_changes() -> None:
    inputs = [torch.randn(5, 12), torch.randn(5, 12)]
    gm = trace_symbolic(lambda x, y: (aten.native_layer_norm(x, [x.shape[1]], None, None, 1e-5)[0] + y,), inputs)
    call = CpuBackend().compile(gm, inputs)
    for size in (4, 7, 8, 12):
        x = torch.randn(3, size)
        x[1, 0] = 3e38
        y = torch.zeros(3, size)
        [found], wanted = call([x, y]), aten.native_layer_norm(x, [size], None, None, 1e-5)[0]
        rows = slice(None) if size < 8 else [0, 2]
        torch.testing.assert_close(found[rows], wanted[rows], equal_nan=True)
        assert found[1].isnan().all() == (size < 8)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0),
        lambda x: x.mean(0),
        lambda x: x[:, :1].sum(1),
        lambda x: torch.sub(x, x - 17, alpha=0),
        lambda x: torch.sub(x, x - 17, alpha=0.0),
        lambda x: torch.rsub(x + 17, x, alpha=0),
    ],
)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_sign_of_a_sum_that_is_zero(function: Function, dtype: torch.dtype) -> None:
    x = torch.full((1, 3), -0.0, dtype=dtype)
    [found] = _run(lambda x: (function(x),), x)
    assert torch.equal(found.signbit(), function(x).signbit())
