"""The vector math against float64: at most 2 ULP over the whole range of float32, special values exact."""

from __future__ import annotations

import pytest
import torch
from graphs.tracing import trace
from render.llvm.math_functions.accuracy import errors

from framesmith_backends import CpuBackend

FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "rsqrt", "sqrt",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc",
)  # fmt: skip
SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e-40, -1e-40, 3.4e38, -3.4e38]


def arguments() -> torch.Tensor:
    """Bit patterns from all over float32, and more where the functions are interesting."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.arange(0, 2**32, 9973, dtype=torch.int64)
    everywhere = (raw - (raw >= 2**31).long() * 2**32).to(torch.int32).view(torch.float32)
    near = [torch.randn(100000, generator=generator) * scale for scale in (1e-3, 1, 10, 60, 1e4)]
    ones = 1 + torch.randn(100000, generator=generator) * 1e-3
    return torch.cat([everywhere, *near, ones, torch.tensor(SPECIAL)])


def run(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    function = getattr(torch, name)
    (found,) = CpuBackend().compile(trace(lambda *xs: function(*xs), inputs), inputs)(list(inputs))
    return found


@pytest.mark.sampled(33)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_two_units(name: str) -> None:
    x = arguments()
    error = errors(run(name, x), getattr(torch, name)(x.double()))
    worst = int(error.argmax())
    assert error[worst] <= 2, f"{name}({x[worst].item()!r}) is {error[worst].item():.3f} ULP off"


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers from all over float32, ordinary ones, and all special ones with each other."""
    generator = torch.Generator().manual_seed(3)
    x = arguments()
    several = [x[torch.randint(len(x), (300000,), generator=generator)] for _ in range(2)]
    ordinary = [torch.randn(300000, generator=generator) * scale for scale in (1, 3)]
    special = torch.tensor([*SPECIAL, 2.0, 1e-20, 1e20, 2.0**22, 2.0**23 + 1])
    grid = torch.cartesian_prod(special, special)
    return torch.cat([several[0], ordinary[0], grid[:, 0]]), torch.cat([several[1], ordinary[1], grid[:, 1]])


@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_functions_of_two_numbers_within_two_units(name: str) -> None:
    x, y = pairs()
    exact = getattr(torch, name)(x.double(), y.double())
    found = run(name, x, y)
    error = errors(found, exact)
    worst = int(error.argmax())
    assert error[worst] <= 2, f"{name}({x[worst].item()!r}, {y[worst].item()!r}) is {error[worst].item()} ULP off"
    known = ~exact.isnan()
    assert torch.equal(found.signbit()[known], exact.signbit()[known])


def test_fmod_is_exact() -> None:
    x, y = pairs()
    exact, found = torch.fmod(x.double(), y.double()).float(), run("fmod", x, y)
    known = ~exact.isnan()
    assert torch.equal(found.isnan(), ~known) and torch.equal(found[known], exact[known])
    assert torch.equal(found.signbit()[known], exact.signbit()[known])


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [1, 2, 5, 16, 40])
def test_every_width_agrees_with_the_widest(name: str, size: int) -> None:
    x = torch.randn(40, generator=torch.Generator().manual_seed(1)).abs() + 0.01
    torch.testing.assert_close(run(name, x[:size].clone()), run(name, x)[:size], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "name", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "expm1", "log1p", "sqrt"]
)
def test_odd_functions_keep_the_sign_of_zero(name: str) -> None:
    assert run(name, torch.tensor([0.0, -0.0])).signbit().tolist() == [False, True]


def test_pow_within_two_units() -> None:
    generator = torch.Generator().manual_seed(2)
    x = arguments()
    x = x[torch.randint(len(x), (300000,), generator=generator)]
    y = torch.randn(300000, generator=generator) * 4
    whole = torch.randint(-9, 10, (100000,), generator=generator).float()
    special = torch.tensor([*SPECIAL, 2.0, -2.0, 3.0, -3.0, 0.5, -2.5, 16777217.0])
    grid = torch.cartesian_prod(special, special)
    x = torch.cat([x.abs(), x[:100000], grid[:, 0]])
    y = torch.cat([y, whole, grid[:, 1]])
    exact = torch.pow(x.double(), y.double())
    found = run("pow", x, y)
    error = errors(found, exact)
    worst = int(error.argmax())
    assert error[worst] <= 2, f"pow({x[worst].item()!r}, {y[worst].item()!r}) is {error[worst].item()} ULP off"
    known = ~exact.isnan()
    assert torch.equal(found.signbit()[known], exact.signbit()[known])
