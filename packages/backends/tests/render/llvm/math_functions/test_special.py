"""Special functions against float64: at most 2 ULP over the whole range, roots and all; at special values as eager."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable

import pytest
import torch
from graphs.tracing import trace
from render.llvm.math_functions.accuracy import errors
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_backends import CpuBackend
from framesmith_backends.ir.ops import OPS, emitter
from framesmith_backends.launch.llvm import engine as native
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.target import CPU, GPU, Processor

special = torch.special
Function = Callable[..., torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "erfinv": torch.erfinv, "lgamma": torch.lgamma, "digamma": torch.digamma,
    "i0": special.i0, "i0e": special.i0e, "i1": special.i1, "i1e": special.i1e,
}  # fmt: skip
SUMS: dict[str, Function] = {"logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2}
POLES = [0.0, -0.0, -1.0, -2.0, -3.0, -8388607.0, -8388608.0, -1e30]
TINY = [s * x for x in (1e-45, 1e-40, 2.9e-39, 3e-39, 1e-38, 1e-30, 1e-8) for s in (1, -1)]
SPECIAL = [math.inf, -math.inf, math.nan, 1.0, 2.0, -8388607.5, 3.4e38, 4e36, 4.1e36, 1e30, 95.0, -104.0, *POLES, *TINY]


def run(function: Function, *inputs: torch.Tensor) -> torch.Tensor:
    gm = trace(function, inputs)
    assert not lower_graph(gm, CPU).notes, "it is to be a kernel"
    (found,) = CpuBackend().compile(gm, inputs)(list(inputs))
    return found


def arguments() -> torch.Tensor:
    """Bit patterns from all over float32, more where the functions are interesting, most at the roots between poles."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.arange(0, 2**32, 19937, dtype=torch.int64)
    everywhere = (raw - (raw >= 2**31).long() * 2**32).to(torch.int32).view(torch.float32)
    near = [torch.randn(50000, generator=generator) * scale for scale in (1e-3, 0.3, 1, 3, 10, 60, 1e4)]
    inside = torch.rand(50000, generator=generator) * 2 - 1
    ends = 1 - torch.rand(50000, generator=generator) ** 8
    roots = [
        root + torch.arange(-200, 200) * 2.0**-22
        for root in (1, 1.4616321, 2, -0.504083, -1.573498, -2.457025, -2.610721, -2.747683, -3.143581, -3.95529, -10)
    ]
    return torch.cat([everywhere, *near, inside, ends, -ends, *roots])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_two_units(name: str) -> None:
    function = FUNCTIONS[name]
    x = arguments()
    found, exact = run(function, x), function(x.double())
    error = errors(found, exact)
    worst = int(error.argmax())
    assert error[worst] <= 2, f"{name}({x[worst].item()!r}) is {error[worst].item():.3f} ULP off"
    known = ~exact.isnan()
    assert torch.equal(found.signbit()[known], exact.signbit()[known])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_eagers(name: str) -> None:
    x = torch.tensor(SPECIAL)
    found, wanted = run(FUNCTIONS[name], x), FUNCTIONS[name](x)
    # Eager's i1 is 0 at the smallest subnormal, half of which may be rounded to it.
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1.5e-45, equal_nan=True)
    known = ~wanted.isnan()
    assert torch.equal(found.signbit()[known], wanted.signbit()[known])


def half_errors(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """In units of the last place of the type, subnormal ones too; 0 where the result is the rounded one."""
    digits, least = (8, -133) if found.dtype == torch.bfloat16 else (11, -24)
    unit = torch.ldexp(torch.ones_like(exact), (torch.frexp(exact)[1] - digits).clamp(min=least))
    right = (found == exact.to(found.dtype)) | (found.isnan() & exact.isnan())
    return torch.where(right, 0.0, (found.double() - exact).abs() / unit)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_half_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    found, exact = run(function, x), function(x.double())
    # At the poles float64 is as eager is.
    error = half_errors(found, exact)
    assert error.max() <= 0.502, f"{name}({x[error.argmax()].item()!r}) is {error.max().item():.3f} units off"
    assert torch.equal(found.isnan(), function(x).isnan())


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Ordinary numbers, such that differ by little or much, and all special ones with each other."""
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(200000, generator=generator) * 10 for _ in range(2))
    grid = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor([*SPECIAL, -87.1, -90.0, -103.0, -126.5, -140.0]))
    return torch.cat([x, x, x * 10, grid[:, 0]]), torch.cat([y, x + y * 1e-3, y * 10, grid[:, 1]])


@pytest.mark.parametrize("name", SUMS)
def test_logarithms_of_sums_within_two_units(name: str) -> None:
    """Given the rounded difference. Where the larger argument and the rest cancel, of the rest: up to log(2), or 1."""
    function = SUMS[name]
    x, y = pairs()
    found, wanted = run(function, x, y), function(x, y)
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
    larger = torch.maximum(x, y).double()
    distance = torch.where(x == y, 0.0, (x - y).abs().double())
    rest = distance.neg().exp2().log1p() / math.log(2.0) if name == "logaddexp2" else distance.neg().exp().log1p()
    unit = 2.0**-23 if name == "logaddexp2" else 2.0**-24
    exact = larger + rest
    error = torch.where((larger < 0) & (larger > -2), (found.double() - exact).abs() / unit, errors(found, exact))
    worst = int(error.argmax())
    assert error[worst] <= 2, f"{name}({x[worst].item()!r}, {y[worst].item()!r}) is {error[worst].item():.3f} ULP off"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SUMS)
def test_logarithms_of_sums_of_halves(name: str, dtype: torch.dtype) -> None:
    x, y = (one.to(dtype) for one in pairs())
    found, wanted = run(SUMS[name], x, y), SUMS[name](x, y)
    torch.testing.assert_close(found, wanted, rtol=torch.finfo(dtype).eps, atol=1e-7, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*FUNCTIONS, *SUMS])
@pytest.mark.parametrize("size", [1, 2, 5, 16, 40])
def test_every_width_agrees_with_the_widest(name: str, size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    function = (FUNCTIONS | SUMS)[name]
    inputs = [torch.rand(80, generator=generator) * 2 - 1 for _ in range(2 if name in SUMS else 1)]
    given = [x[:size].clone() for x in inputs]
    torch.testing.assert_close(run(function, *given), run(function, *inputs)[:size], rtol=0, atol=0)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of other processors")
@pytest.mark.parametrize(("processor", "width"), [("x86-64", 16), ("x86-64-v3", 32)])
def test_other_processors(processor: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = native.machine()
    other = native.Machine(Processor(processor, "", width, width > 16), known.llvm, known.bytes_to_handle)
    monkeypatch.setattr(native, "machine", lambda: other)
    x = torch.cat([arguments()[::50], torch.tensor(SPECIAL)])
    for name, function in FUNCTIONS.items():
        found, exact = run(function, x), function(x.double())
        assert errors(found, exact)[: -len(SPECIAL)].max() <= 2, name
        torch.testing.assert_close(found, exact.float(), rtol=1e-6, atol=1.5e-45, equal_nan=True)
    one, two = (part[::50] for part in pairs())
    for function in SUMS.values():
        wanted = function(one, two)
        torch.testing.assert_close(run(function, one, two), wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_float64_stays_atens() -> None:
    x = torch.rand(20, dtype=torch.float64)
    for function in FUNCTIONS.values():
        gm = trace(function, [x])
        assert any("float64" in why for why in lower_graph(gm, CPU).notes.values())
        (found,) = CpuBackend().compile(gm, [x])([x])
        assert torch.equal(found, function(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_no_device_library_stay_with_aten_on_gpus(name: str) -> None:
    gm = trace(FUNCTIONS[name], [torch.rand(20)])
    with FakeTensorMode():
        for node in gm.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = torch.empty(20, device="cuda")
    notes = lower_graph(gm, GPU, "cuda").notes
    assert [*notes.values()] == ([] if emitter(OPS[name].triton, "f32") else [f"{name} on a GPU"])


SIGNS: dict[str, Function] = {
    "neg": torch.neg, "abs": torch.abs, "copysign": lambda x: torch.copysign(x, x.flip(0)),
    "in a sum": lambda x: (-x) * x.flip(0) + x.abs() - (-x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", SIGNS)
def test_signs_are_eagers(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([*SPECIAL, -math.nan] * 5).to(dtype)
    found, wanted = run(SIGNS[name], x), SIGNS[name](x)
    torch.testing.assert_close(found, wanted, rtol=0 if name != "in a sum" else 0.01, atol=0, equal_nan=True)
    if name != "in a sum":
        assert torch.equal(found.signbit(), wanted.signbit())
