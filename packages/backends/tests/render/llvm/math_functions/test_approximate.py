"""Functions that are rounded to bfloat16 at once, on all 65,536 numbers of it, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.render.llvm import module
from framesmith_backends.render.llvm.loops.kernel import render_kernel
from framesmith_backends.render.llvm.ops import functions

Function = Callable[[torch.Tensor], torch.Tensor]


def gelu(x: torch.Tensor) -> torch.Tensor:
    t = x.abs().clamp(max=50)
    tail = t * torch.special.erfc(t * 0.5**0.5) / 2
    return torch.where(x < 0, x * 0 - tail, x - tail)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, 1) / (1 + e)


#: Name: (the function, the same in float64 without cancellation).
MODELS: dict[str, tuple[Function, Function]] = {"gelu": (F.gelu, gelu), "sigmoid": (torch.sigmoid, sigmoid)}
#: Functions whose exact form is rounded; NaN among their arguments is to stay NaN.
OTHERS: tuple[Function, ...] = (torch.exp, torch.log, torch.sin, torch.tanh, torch.erf, F.silu, F.mish, torch.rsqrt)


def every() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


def run(function: Function, x: torch.Tensor) -> torch.Tensor:
    (found,) = CpuBackend().compile(trace(function, [x]), [x])([x])
    return found


def errors(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """In units of the last place of bfloat16, subnormal ones too."""
    exponent = torch.frexp(exact.abs().clamp(min=2.0**-126))[1]
    unit = torch.ldexp(torch.ones_like(exact), exponent - 8)
    same = (found.double() == exact) | exact.isnan()
    return torch.where(same, torch.zeros_like(exact), (found.double() - exact).abs() / unit)


@pytest.mark.parametrize("name", functions("bf16"))
def test_as_good_as_eager(name: str) -> None:
    function, model = MODELS[name]
    x = every()
    found, exact = run(function, x), model(x.double())
    exact[x.isinf()] = function(x)[x.isinf()].double()
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.signbit()[~exact.isnan()], exact.signbit()[~exact.isnan()])
    # Eager's gelu is NaN at the largest numbers.
    error, eager = errors(found, exact), errors(function(x), exact).nan_to_num(float("inf"))
    assert error.max() <= 0.504, f"{error.max()} units off at {x[error.argmax()]}"
    assert error.max() <= eager.max() and error.mean() <= eager.mean()
    assert (error > eager).sum() <= 8, "nearly all are rounded to the nearest"


@pytest.mark.parametrize("function", OTHERS, ids=lambda f: f.__name__)
def test_results_of_bfloat16_are_nan_where_eagers_are(function: Function) -> None:
    x = every()
    assert torch.equal(run(function, x).isnan(), function(x).isnan())


def test_any_nan_of_float32_stays_one() -> None:
    """Rounding adds to the bits, which of such a NaN would make a number."""
    x = torch.tensor([0x7FFFFFFF, 0x7FFF8000, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert run(lambda v: v.to(torch.bfloat16), x).isnan().all()
    assert run(lambda v: F.gelu(v).to(torch.bfloat16), x).isnan().all()
    half = torch.tensor([0x7FFF, 0x7C01], dtype=torch.int16).view(torch.float16)
    assert run(lambda v: v.to(torch.bfloat16), half).isnan().all()
    assert run(lambda v: (v.float() + v.bfloat16()).to(torch.bfloat16), half).isnan().all()


def test_a_value_that_is_kept_in_float32_is_exact() -> None:
    x = torch.linspace(-5, 5, 1000)
    wide, half = run_two(lambda v: (F.gelu(v), F.gelu(v).to(torch.bfloat16)), x)
    assert torch.equal(wide, run(F.gelu, x))
    assert (half.double() - gelu(x.double())).abs().max() < 2**-6


def run_two(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], x: torch.Tensor
) -> list[torch.Tensor]:
    return list(CpuBackend().compile(trace(function, [x]), [x])([x]))


CHOOSING: dict[str, Function] = {
    "clamp": lambda x: torch.clamp(x, -1.5, 2.0),
    "largest": lambda x: torch.maximum(x, -x).neg(),
    "where": lambda x: torch.where(x > 1, x.abs(), x.flip(0)),
    "copysign": lambda x: torch.copysign(x.flip(0), x),
    "whole": lambda x: x.floor() + 0 * x.round(),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CHOOSING)
def test_choices_are_not_rounded(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def kept(*args: Any, **options: Any) -> Any:
        found = render_kernel(*args, **options)
        texts.append(found[0])
        return found

    monkeypatch.setattr(module, "render_kernel", kept)
    x = every().view(dtype)
    found, wanted = run(CHOOSING[name], x), CHOOSING[name](x)
    assert torch.equal(found.isnan(), wanted.isnan())
    known = ~wanted.isnan()
    assert torch.equal(found.view(torch.int16)[known], wanted.view(torch.int16)[known])
    rounded = sum("32767" in line or "fptrunc" in line for text in texts for line in text.splitlines())
    sums, stored = 3 if name == "whole" else 0, 1 if dtype == torch.float16 else 0
    assert rounded <= 4 * (sums + stored)
    assert texts
