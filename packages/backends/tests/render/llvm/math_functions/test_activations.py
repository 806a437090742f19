"""Activations and their derivatives against float64, in the tails down to underflow too; special values as in eager."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from render.llvm.math_functions.accuracy import errors

from framesmith_backends import CpuBackend
from framesmith_backends.render.llvm.math import activations

aten = torch.ops.aten
Function = Callable[[torch.Tensor], torch.Tensor]
BETA, KAPPA = math.sqrt(2.0 / math.pi), 0.044715


def normal(x: torch.Tensor) -> torch.Tensor:
    return torch.special.erfc(-x * math.sqrt(0.5)) / 2


def density(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def logit_of_tanh(x: torch.Tensor) -> torch.Tensor:
    return 2 * BETA * (x + KAPPA * x**3)


def gelu_tanh_slope(x: torch.Tensor) -> torch.Tensor:
    z = logit_of_tanh(x)
    return z.sigmoid() * (1 + 2 * BETA * (x + 3 * KAPPA * x**3) * (-z).sigmoid())


def tanh_of_softplus(x: torch.Tensor) -> torch.Tensor:
    n = x.exp() * (x.exp() + 2)
    return n / (n + 2)


def mish_slope(x: torch.Tensor) -> torch.Tensor:
    e = x.exp()
    return tanh_of_softplus(x) + x * x.sigmoid() * 4 * (e + 1) ** 2 / (e * (e + 2) + 2) ** 2


def derivative(backward: Callable[..., torch.Tensor], **options: str) -> Function:
    return lambda x: backward(torch.ones_like(x), x, **options)


def softplus_slope(x: torch.Tensor) -> torch.Tensor:
    return aten.softplus_backward(torch.ones_like(x), x, 1, 20)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


# Name: (the function compiled, the same in float64 without cancellation or overflow for |x| <= 110, the bound).
FORWARD: dict[str, tuple[Function, Function, float]] = {
    "gelu": (F.gelu, lambda x: x * normal(x), 2.75),
    "gelu_tanh": (gelu_tanh, lambda x: x * logit_of_tanh(x).sigmoid(), 2.0),
    "silu": (F.silu, lambda x: x * x.sigmoid(), 2.5),
    "mish": (F.mish, lambda x: x * tanh_of_softplus(x), 2.5),
    "softplus": (F.softplus, lambda x: torch.where(x > 20, x, x.exp().log1p()), 2.0),
    "logsigmoid": (F.logsigmoid, lambda x: x.clamp(max=0) - (-x.abs()).exp().log1p(), 2.0),
}
# Near the root of silu' and of the derivative of gelu in its tanh form the error is absolute: the last field is where.
BACKWARD: dict[str, tuple[Function, Function, float, tuple[float, float]]] = {
    "gelu": (derivative(aten.gelu_backward), lambda x: normal(x) + x * density(x), 3.0, (0, 0)),
    "gelu_tanh": (derivative(aten.gelu_backward, approximate="tanh"), gelu_tanh_slope, 6.0, (-1.4, -0.4)),
    "silu": (derivative(aten.silu_backward), lambda x: x.sigmoid() * (1 + x * (-x).sigmoid()), 4.0, (-2.0, -0.8)),
    "mish": (derivative(aten.mish_backward), mish_slope, 7.0, (0, 0)),
    "softplus": (softplus_slope, torch.sigmoid, 2.5, (0, 0)),
}


def arguments() -> torch.Tensor:
    """Bit patterns up to 110, and more where tails begin and end."""
    raw = torch.arange(0, 0x42DC0000, 40009, dtype=torch.int64).to(torch.int32).view(torch.float32)
    generator = torch.Generator().manual_seed(0)
    ranges = ((-15, -5), (-5, 5), (-1.5, -0.5), (-20, 20), (-109, -80), (-109, 109))
    parts = [torch.empty(30000).uniform_(low, high, generator=generator) for low, high in ranges]
    return torch.cat([raw, -raw, *parts])


def run(function: Function, x: torch.Tensor) -> torch.Tensor:
    (found,) = CpuBackend().compile(trace(function, [x]), [x])([x])
    return found


def check(function: Function, exact: Function, x: torch.Tensor, bound: float) -> None:
    error = errors(run(function, x), exact(x.double()))
    worst = int(error.argmax())
    assert error[worst] <= bound, f"{error[worst].item():.3f} ULP off at {x[worst].item()!r}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str) -> None:
    function, exact, bound = FORWARD[name]
    check(function, exact, arguments(), bound)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", BACKWARD)
def test_derivative(name: str) -> None:
    function, exact, bound, (low, high) = BACKWARD[name]
    x = arguments()
    check(function, exact, x[(x <= low) | (x >= high)], bound)
    near = x[(x > low) & (x < high)]
    torch.testing.assert_close(run(function, near), exact(near.double()).float(), rtol=0, atol=3e-7)


@pytest.mark.parametrize("name", ["gelu"])
def test_without_lookups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors without AVX-512 compute it by fractions."""
    monkeypatch.setattr(activations, "_has_lookups", lambda b, x: False)
    test_forward(name)
    test_derivative(name)
    test_forward_at_the_limits_as_in_eager(name)
    test_derivative_at_the_limits(name)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gelu_is_nan_where_eagers_is(dtype: torch.dtype, step: int) -> None:
    """OneDNN computes what is contiguous, with AVX-512 as NaN at both infinities; ATen does at the negative one alone.

    Without AVX-512, oneDNN's gelu of -0 is 0.
    """
    x = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 0.0, 1.0, -1e30, 3.0] * 40, dtype=dtype)[::step]
    found, wanted = run(F.gelu, x), F.gelu(x)
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
    known = ~wanted.isnan()
    by_aten = F.gelu(torch.stack([x, x], 1)[:, 0])
    assert torch.equal(found.signbit()[known], by_aten.signbit()[known])


LIMITS = [0.0, -0.0, -math.inf, math.nan, 3.4e38, -3.4e38, -1e10, 1e-45, -1e-45]


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "mish"])
def test_forward_at_the_limits_as_in_eager(name: str) -> None:
    """Eager computes gelu of float32 with an approximation that is infinite at 3.4e38 and NaN at infinity: elsewhere
    float64 is the model."""
    function = FORWARD[name][0]
    x = torch.tensor([*LIMITS, math.inf])
    found, wanted = run(function, x), function(x.double()).float()
    wanted[-1] = function(x)[-1]
    # 1e-45 is the smallest subnormal, which half of may be rounded to.
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1.5e-45, equal_nan=True)
    known = ~wanted.isnan()
    assert torch.equal(found.signbit()[known], wanted.signbit()[known])


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "mish"])
def test_derivative_at_the_limits(name: str) -> None:
    """NaN at the infinities, that of the tanh form also where squares overflow; at other large numbers 0 and 1."""
    at_zero, at_large = 0.6 if name == "mish" else 0.5, [math.nan] * 2 if name == "gelu_tanh" else [1.0, 0.0]
    wanted = [at_zero, at_zero, math.nan, math.nan, *at_large, 0.0, at_zero, at_zero, math.nan]
    found = run(BACKWARD[name][0], torch.tensor([*LIMITS, math.inf]))
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-7, atol=0, equal_nan=True)
