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


def run(name: str, x: Array) -> Array:
    given = torch.from_numpy(x)
    gm = trace(lambda v: getattr(torch, name)(v), [given])
    assert not lower_graph(gm, CPU).notes, "it is to be a kernel"
    (found,) = CpuBackend().compile(gm, [given])([given])
    return found.numpy()


def errors(found: Array, exact: Array) -> Array:
    """The error in units of the last place of the double nearest the exact value; infinite if a NaN is wrong."""
    exponent = np.frexp(np.clip(abs(exact), Long(2.0**-1022), Long(1.7e308)))[1]
    unit = np.maximum(np.ldexp(Long(1), exponent - 53), Long(2.0**-1074))
    same = (found == exact.astype(np.float64)) & ~np.isfinite(found)
    error = np.where(same | np.isnan(exact), Long(0), abs(found - exact) / unit)
    return np.where(np.isnan(found) != np.isnan(exact), Long(np.inf), error)


def test_every_function_has_a_model() -> None:
    assert set(MODELS) == set(functions("f64"))


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
