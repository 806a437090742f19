"""The vector math of float64 against the C library's in long double: at most 1.5 ULP, special values exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.render.llvm.ops import functions
from framesmith_backends.target import CPU

Array = np.ndarray[Any, np.dtype[Any]]
Long = np.longdouble

pytestmark = pytest.mark.skipif(np.finfo(Long).nmant < 63, reason="this platform's long double is a double")


def sigmoid(x: Array) -> Array:
    e = np.exp(-abs(x))
    return np.where(x >= 0, Long(1), e) / (1 + e)


def erf(x: Array) -> Array:
    """2 / sqrt(pi) e**-x**2 (x + 2 x**3 / 3 + 4 x**5 / (3 * 5) + ...), whose terms are all of one sign."""
    total = term = np.clip(x, -7, 7)
    for k in range(1, 400):
        term = term * (2 * x * x) / (2 * k + 1)
        total = np.where(abs(x) < 7, total + term, total)
    series = total * np.exp(-x * x) / np.sqrt(np.arctan(Long(1)))
    return np.where(abs(x) < 7, series, np.copysign(Long(1), x) + 0 * np.where(np.isnan(x), x, Long(0)))


MODELS: dict[str, Callable[[Array], Array]] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tanh")},
    "sigmoid": sigmoid,
    "erf": erf,
}
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-310, -1e-310, 5e-324, 1.79e308, -1.79e308, 1e6, 999999.0)


def arguments() -> Array:
    """Bit patterns from all over float64, and more where the functions are interesting."""
    generator = np.random.default_rng(0)
    everywhere = generator.integers(0, 2**64, 200000, dtype=np.uint64).view(np.float64)
    near = [generator.standard_normal(100000) * scale for scale in (1e-8, 1e-3, 0.1, 1, 10, 60, 300, 1e4)]
    ones = 1 + generator.standard_normal(100000) * 1e-3
    # Where reductions are at their ends, or lose most.
    halves, powers = np.arange(-1080, 1030) * 0.5, 2.0 ** np.arange(-1074, 1024)
    edges = np.concatenate([halves * np.log(2), np.arange(-9000, 9000) * (np.pi / 2), powers, powers * np.sqrt(2)])
    edges = np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf)])
    return np.concatenate([everywhere, *near, ones, edges, SPECIAL])


def run(name: str, *arrays: Array) -> Array:
    given = [torch.from_numpy(x) for x in arrays]
    gm = trace(lambda *values: getattr(torch, name)(*values), given)
    assert not lower_graph(gm, CPU).notes, "it is to be a kernel"
    (found,) = CpuBackend().compile(gm, given)([*given])
    return found.numpy()


def errors(found: Array, exact: Array) -> Array:
    """The error in units of the last place of the double nearest the exact value; infinite if a NaN is wrong."""
    exponent = np.frexp(np.clip(abs(exact), Long(2.0**-1022), Long(1.7e308)))[1]
    unit = np.maximum(np.ldexp(Long(1), exponent - 53), Long(2.0**-1074))
    same = (found == exact.astype(np.float64)) & ~np.isfinite(found)
    error = np.where(same | np.isnan(exact), Long(0), abs(found - exact) / unit)
    return np.where(np.isnan(found) != np.isnan(exact), Long(np.inf), error)


def test_every_function_has_a_model() -> None:
    assert {*MODELS, "pow"} == set(functions("f64"))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", MODELS)
def test_within_one_and_a_half_units(name: str) -> None:
    x = arguments()
    if name == "erf":  # the model is slow
        generator = np.random.default_rng(1)
        x = np.concatenate([generator.uniform(-6.5, 6.5, 20000), generator.uniform(0.9, 1.1, 20000), x[::200], SPECIAL])
    with np.errstate(all="ignore"):
        exact, found = MODELS[name](x.astype(Long)), run(name, x)
        error = errors(found, exact)
    worst = int(error.argmax())
    assert error[worst] <= 1.5, f"{name}({x[worst]!r}) is {error[worst]:.3f} ULP off"
    known = ~np.isnan(exact)
    assert np.array_equal(np.signbit(found[known]), np.signbit(exact[known]))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [1, 2, 5, 16, 40])
def test_every_width_agrees_with_the_widest(name: str, size: int) -> None:
    x = np.random.default_rng(2).uniform(0.01, 30, 40)
    assert np.array_equal(run(name, x[:size].copy()), run(name, x)[:size])


def bases_and_exponents() -> tuple[Array, Array]:
    """Every pair of special values and of wholes, and random ones whose powers are spread over all doubles."""
    generator = np.random.default_rng(3)
    wholes = [-3.0, -2.5, 0.5, 2.0, 3.0, 1074.0, -1075.0, 2.0**53 - 1, 2.0**53 + 2, 1 + 2.0**-52, 1 - 2.0**-53]
    first, second = np.meshgrid([*SPECIAL, *wholes], [*SPECIAL, *wholes])
    bases = [np.exp(generator.uniform(-700, 700, 50000)), 1 + generator.standard_normal(50000) * 1e-3]
    bases += [1 + generator.standard_normal(50000) * 1e-9, generator.uniform(0.5, 2, 50000)]
    exponents = [generator.uniform(-1080, 1080, 50000) / np.log2(base) for base in bases]
    counts = generator.integers(1, 5000, 50000).astype(np.float64)
    rates = generator.choice([0.9, 0.99, 0.999, 0.95], 50000)
    return np.concatenate([first.ravel(), *bases, rates]), np.concatenate([second.ravel(), *exponents, counts])


def test_powers_are_within_about_a_unit_and_those_of_special_values_exact() -> None:
    x, y = bases_and_exponents()
    with np.errstate(all="ignore"):
        exact, found = np.power(x.astype(Long), y.astype(Long)), run("pow", x, y)
        error = errors(found, exact)
    worst = int(error.argmax())
    assert error[worst] <= 1.1, f"pow({x[worst]!r}, {y[worst]!r}) is {error[worst]:.3f} ULP off"
    known = ~np.isnan(exact)
    assert np.array_equal(np.signbit(found[known]), np.signbit(exact[known]))


@pytest.mark.parametrize("size", [1, 2, 5, 16, 40])
def test_powers_of_every_width_agree_with_the_widest(size: int) -> None:
    x, y = np.random.default_rng(4).uniform(0.01, 30, (2, 40))
    assert np.array_equal(run("pow", x[:size].copy(), y[:size].copy()), run("pow", x, y)[:size])
