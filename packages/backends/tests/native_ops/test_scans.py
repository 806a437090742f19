"""The native scans beside eager mode and float64: cumulative sums, products, extremes, log-sum-exps."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import platform
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from case_selection.sweeps import a_part, examples
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db

from framesmith_backends import CpuBackend
from framesmith_backends.launch.llvm import engine as native
from framesmith_backends.native_ops.scans import operator as scans
from framesmith_backends.native_ops.scans.operator import (
    ATENS,
    EXTREMES,
    EXTREMES_SCANNED,
    FEWEST,
    FEWEST_LOGARITHMS,
    RESULTS,
    SCAN,
    SCANNED,
    scan_into,
)
from framesmith_backends.native_ops.scans.render import KINDS, MOST_WIDTH
from framesmith_backends.native_ops.scans.rewrite import with_scans
from framesmith_backends.target import Processor

NAMES = ("cummax", "cummin", "cumprod", "cumsum", "logcumsumexp")
PLAIN = ("sum", "prod")
#: Of one line, or of few: those of vectors and squares, with what is left beside them; wide tiles.
COUNTS = st.one_of(st.integers(1, 5), st.sampled_from([7, 8, 9, 15, 16, 17, 31, 33, 48, 70]))
INNER = st.one_of(st.integers(1, 3), st.sampled_from([15, 16, 17, 33, 40, MOST_WIDTH - 1, MOST_WIDTH + 5]))
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1e30)
#: The largest error of logarithms, relative to the number or to 1.
LOGARITHMS = {torch.float32: 1.2e-7, torch.float64: 1e-13, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


@pytest.fixture
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are scanned by the native operators, too."""
    for name in ("FEWEST", "FEWEST_LOGARITHMS", "FEWEST_ACROSS", "SHORTEST"):
        monkeypatch.setattr(scans, name, 1)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2
    return values > 0 if dtype == torch.bool else values.to(dtype)


def same(found: Any, wanted: Any) -> None:
    """Bit for bit, but that any NaN is as good as another."""
    for one, other in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, check_stride=True)
        if other.is_complex():
            continue
        zeros = other == 0
        assert torch.equal(torch.signbit(one[zeros]), torch.signbit(other[zeros]))


def near(found: torch.Tensor, x: torch.Tensor, dim: int) -> None:
    """Logarithms of sums, beside those that float64 gives."""
    wanted, bound = torch.logcumsumexp(x.double(), dim), LOGARITHMS[found.dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=bound, atol=bound, equal_nan=True)


def check(x: torch.Tensor, dim: int, kind: str, dtype: torch.dtype | None = None, reverse: bool = False) -> None:
    if KINDS[kind].has_indices:
        return same(EXTREMES_SCANNED(x, dim, kind), tuple(ATENS[kind](x, dim)))
    result = dtype or (x.dtype if x.is_floating_point() else torch.int64)
    found, moved = SCANNED(x, dim, kind, result, reverse), x.to(result).flip(dim) if reverse else x.to(result)
    if kind == "logsumexp":
        return near(found.flip(dim) if reverse else found, moved, dim)
    wanted = ATENS[kind](moved, dim)
    same(found, wanted.flip(dim).contiguous() if reverse else wanted)


def clear() -> None:
    """Forget machine code of another processor."""
    SCAN.clear()
    scans._lanes.cache_clear()


def kinds_of(dtype: torch.dtype) -> list[str]:
    kinds = [kind for kind in KINDS if not KINDS[kind].has_indices or dtype in EXTREMES]
    return kinds if dtype.is_floating_point else [kind for kind in kinds if kind != "logsumexp"]


@pytest.mark.sampled(24)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [*EXTREMES, torch.bool, torch.uint8, torch.int8, torch.int16])
def test_all_types_along_all_dimensions(dtype: torch.dtype, reverse: bool) -> None:
    for shape in ((40, 33), (3, 17, 5), (2, 9, 300), (7,), (1, 3), (130, 2)):
        for dim in range(-len(shape), len(shape)):
            for kind in kinds_of(dtype):
                check(numbers(shape, dtype, dim % len(shape)), dim, kind, reverse=reverse)


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_around_those_of_blocks(kind: str) -> None:
    @settings(max_examples=examples(60), deadline=None)
    @given(st.integers(1, 3), COUNTS, INNER, st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), st.data())
    def run(outer: int, count: int, inner: int, dtype: torch.dtype, data: st.DataObject) -> None:
        shape = (outer * data.draw(COUNTS), count) if inner == 1 else (outer, count, inner)
        x = numbers(shape, dtype, count)
        reverse = not KINDS[kind].has_indices and data.draw(st.booleans())
        check(x, 1, kind, reverse=reverse)

    run()


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("kind", KINDS)
def test_special_numbers(kind: str) -> None:
    @settings(max_examples=examples(100), deadline=None)
    @given(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=40), st.booleans())
    def run(values: list[float], across: bool) -> None:
        line = torch.tensor(values)
        lines = torch.stack([line.roll(k) for k in range(19)], 1 if across else 0)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            check(lines.to(dtype), 0 if across else 1, kind)

    run()


def test_the_ends_of_integers() -> None:
    for dtype in (torch.int64, torch.int32):
        ends = torch.iinfo(dtype)
        x = torch.tensor([ends.min, ends.max, 0, -1, 3, 3, ends.min, ends.max]).to(dtype).repeat(500, 3)
        for dim in (0, 1):
            for kind in kinds_of(dtype):
                check(x, dim, kind)


SOURCES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.int16)


@pytest.mark.parametrize(
    ("source", "result", "kind"),
    a_part(itertools.product(SOURCES, [*RESULTS, torch.int32], ["sum", "prod"]), 5),
)
def test_types_that_are_asked_for(kind: str, source: torch.dtype, result: torch.dtype) -> None:
    for shape, dim in (((100, 90), 1), ((100, 90), 0)):
        check(numbers(shape, source), dim, kind, result)


@pytest.mark.usefixtures("all_sizes")
def test_layouts() -> None:
    base = numbers((18, 40, 20), torch.float32)
    for x in (base.permute(2, 0, 1), base[::2, 1:, ::3], base[:, :1].expand(18, 50, 20), base.transpose(0, 2)):
        for dim in range(3):
            for kind in KINDS:
                check(x, dim, kind)
    moved = base.permute(2, 0, 1)
    for op in (SCANNED(moved, 1, "sum", torch.float32, False), *EXTREMES_SCANNED(moved, 1, "min")):
        assert op.is_contiguous()


@pytest.mark.usefixtures("all_sizes")
def test_no_elements_and_no_dimensions() -> None:
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 4), ()):
        for dim in range(-max(len(shape), 1), max(len(shape), 1)):
            for kind in KINDS:
                check(numbers(shape, torch.float32), dim, kind)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 37), (17, 16), (3, 9, 21), (4, 5, 600), (40_001,)])
def test_nothing_else_is_written(kind: str, shape: tuple[int, ...]) -> None:
    size, before = math.prod(shape), 64
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = numbers(shape, dtype)
        frames = [torch.full((size + 2 * before,), 7, dtype=one) for one in (dtype, torch.int64)]
        values, indices = (frame[before : size + before].view(shape) for frame in frames)
        for dim in range(len(shape)):
            for reverse in (False, True):
                scan_into(x, dim, kind, values, indices if KINDS[kind].has_indices else None, reverse)
                assert all((frame[:before] == 7).all() and (frame[size + before :] == 7).all() for frame in frames)


@pytest.mark.sampled(4)
@pytest.mark.skipif(platform.system() != "Linux", reason="pages of Linux")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(8, 32), (17, 37), (3, 9, 21), (4, 5, 600), (20_000,)])
def test_nothing_else_is_read(kind: str, shape: tuple[int, ...]) -> None:
    """The tensor lies between pages that nobody may read."""
    size, page = 4 * math.prod(shape), mmap.PAGESIZE
    whole = -(-size // page) * page
    pages = mmap.mmap(-1, whole + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for guard in (address, address + page + whole):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), page, 0) == 0
    for start in (page, page + whole - size):
        x = torch.frombuffer(pages, dtype=torch.float32, count=math.prod(shape), offset=start).view(shape)
        x.fill_(1)
        values, indices = torch.empty(shape), torch.empty(shape, dtype=torch.int64)
        for dim in range(len(shape)):
            for reverse in (False, True):
                scan_into(x, dim, kind, values, indices if KINDS[kind].has_indices else None, reverse)


@pytest.mark.sampled(36)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(90_001,), (2, 70_000), (600, 130), (70, 600, 2), (5, 130, 300)])
def test_threads(threads: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = numbers(shape, dtype)
    for kind in kinds_of(dtype):
        for dim in range(len(shape)):
            few = len(shape) < 3 and dim == len(shape) - 1 and math.prod(shape[:-1]) < 4
            if KINDS[kind].has_indices:  # each element is one
                check(x.sort(dim, kind == "min").values, dim, kind)
            for reverse in (False, *([] if KINDS[kind].has_indices else [True])):
                if not few or KINDS[kind].has_indices or not dtype.is_floating_point:
                    check(x, dim, kind, reverse=reverse)
                elif kind in PLAIN:
                    _as_near_as_eager(x / 4 if kind == "sum" else (1 + x / 1000), dim, kind, reverse)


def _as_near_as_eager(x: torch.Tensor, dim: int, kind: str, reverse: bool) -> None:
    """One long line is joined in another order: no farther from the true numbers than eager mode."""
    found = SCANNED(x.flip(dim) if reverse else x, dim, kind, x.dtype, reverse)
    found = found.flip(dim) if reverse else found
    exact = ATENS[kind](x.double(), dim)
    if x.dtype == torch.float64:  # of such numbers, sums of doubles are near enough
        torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-11)
        return
    ours, eager = ((one.double() - exact).abs() for one in (found, ATENS[kind](x, dim)))
    finite = eager.isfinite()
    assert ours[finite].max() <= eager[finite].max() * 1.01


def test_the_logarithm_of_a_long_sum() -> None:
    x = numbers((100_000,), torch.float64)
    within = torch.logcumsumexp(x, 0)
    torch.testing.assert_close(SCANNED(x, 0, "logsumexp", x.dtype, False), within, rtol=1e-12, atol=1e-12)
    tiny = torch.tensor([0.0, *[-25.0] * 600])  # what is beside 1 counts where its logarithm is taken
    near(SCANNED(tiny, 0, "logsumexp", tiny.dtype, False), tiny, 0)
    assert (SCANNED(tiny, 0, "logsumexp", tiny.dtype, False)[1:] > 0).all()


GRAPHS: dict[str, Callable[..., Any]] = {
    "sums": lambda x: (x.cumsum(1) + 1, x.cumsum(-2), (x > 0).cumsum(0), x.cumsum(1, dtype=torch.float64)),
    "others": lambda x: (x.cumprod(1), *x.cummax(0), *(x + 1).cummin(-1)),
    "moved": lambda x: (x.t().cumsum(0), x[:, ::2].cumsum(1)),
    "backwards": lambda x: (x * 2).flip(1).cumsum(1).flip(-1) + 1,
    "backwards, twice read": lambda x: ((y := x.flip(1)).cumsum(1).flip(1), y + 1, y.cumprod(1).flip([1])),
    "flipped alone": lambda x: (x.flip(1).cumsum(1), x.flip(0).cumsum(1).flip(0), x.flip(0, 1).cumsum(1).flip(1)),
    "flipped along nothing": lambda x: (x.flip(1).cumsum(1).flip([]), x.flip([]).cumsum(1).flip(1)),
    "read flipped": lambda x: ((y := x.flip(1).cumsum(1)).flip(1), y + 1),
    "columns backwards, twice read": lambda x: ((y := x.flip(0)).cumsum(0).flip(0), y + 1, y.cumprod(0).flip([0])),
    "columns flipped alone": lambda x: (x.flip(0).cumsum(0), x.flip(1).cumsum(0).flip(1), x.flip(0, 1).cumsum(0)),
    "columns read flipped": lambda x: ((y := x.flip(0).cumsum(0)).flip(0), y + 1),
    "columns of columns": lambda x: ((x * 2).cumsum(0).cumsum(0) + 1, torch.stack([x, x + 1]).cumsum(1)),
    "columns of bools": lambda x: ((x > 0).cumsum(0), (x > 0).cumsum(0, dtype=torch.float32) + 1),
    "columns, transposed": lambda x: (x.cumsum(0).t().contiguous() + 1, x.cumsum(0, dtype=torch.float64)),
    "columns in bfloat16": lambda x: (x.bfloat16().cumsum(0), x.bfloat16().cumprod(0), x.half().cumsum(0)),
}  # fmt: skip


def calls(gm: torch.fx.GraphModule) -> list[Any]:
    return [node for node in gm.graph.nodes if node.target in (SCANNED, EXTREMES_SCANNED)]


def is_scanned(gm: torch.fx.GraphModule) -> bool:
    """Whether a native operator or a kernel scans."""
    return bool(calls(with_scans(gm))) or any(k.has_scans for k in CpuBackend().explain(gm).plan.kernels)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [(60, 200), (2, 5), (300, 20), (33, 70)])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, shape: tuple[int, int]) -> None:
    x = numbers(shape, torch.float32)
    gm = trace(GRAPHS[name], [x])
    assert math.prod(shape) < FEWEST or is_scanned(gm)
    wanted = GRAPHS[name](x)
    same(tuple(CpuBackend().compile(gm, [x])([x])), wanted if isinstance(wanted, tuple) else (wanted,))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_dynamic_shapes(name: str) -> None:
    x = numbers((40, 70), torch.float32)
    call = CpuBackend().compile(trace_symbolic(GRAPHS[name], [x]), [x])
    for shape in ((40, 70), (3, 5), (300, 33), (20, 600), (70, 160)):
        x = numbers(shape, torch.float32)
        wanted = GRAPHS[name](x)
        same(tuple(call([x])), wanted if isinstance(wanted, tuple) else (wanted,))


def test_scans_between_flips_are_reversed() -> None:
    x = numbers((100, 90), torch.float32)

    def flips_and_backwards(name: str) -> tuple[int, list[bool]]:
        gm = with_scans(trace(GRAPHS[name], [x]))
        flips = [node for node in gm.graph.nodes if node.target is torch.ops.aten.flip.default]
        return len(flips), [node.args[4] for node in calls(gm)]

    assert flips_and_backwards("backwards") == (0, [True])
    assert flips_and_backwards("backwards, twice read") == (1, [True, True])
    assert flips_and_backwards("flipped alone")[1] == [False] * 3
    assert flips_and_backwards("flipped along nothing")[1] == [False] * 2
    assert flips_and_backwards("read flipped") == (2, [False])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_elements_of_a_type_that_kernels_do_not_read(dtype: torch.dtype) -> None:
    x = numbers((100, 90), torch.float32).to(torch.float8_e4m3fn)
    gm = trace(lambda x: x.cumsum(0, dtype=dtype), [x])
    assert is_scanned(gm)
    torch.testing.assert_close(CpuBackend().compile(gm, [x])([x])[0], x.to(dtype).cumsum(0), equal_nan=True)


def test_scans_that_stay_with_aten() -> None:
    x = numbers((100, 90), torch.float32)
    for function, given_ in (
        (lambda x: x.cumsum(0), x.flatten()[: FEWEST - 1]),
        (lambda x: x.logcumsumexp(0), x.flatten()[: FEWEST_LOGARITHMS - 1]),
        (lambda x: x.cumsum(0), x.to(torch.complex64)),
        (lambda x: x.cumsum(0, dtype=torch.int32), x),
        (lambda x: x.cummax(0), x.to(torch.int8)),
        (lambda x: x + 1, x),
    ):
        gm = trace(function, [given_])
        assert with_scans(gm) is gm


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("name", NAMES)
def test_torchs_own_samples(name: str) -> None:
    [op] = [op for op in op_db if op.name == name and not op.variant_test_name]
    served = 0
    for dtype in sorted({*EXTREMES, torch.bool, torch.uint8, torch.complex64} & op.supported_dtypes("cpu"), key=str):
        for sample in op.sample_inputs("cpu", dtype):
            function = lambda x, sample=sample: op(x, *sample.args, **sample.kwargs)  # noqa: E731
            gm = trace(function, [sample.input])
            found = tuple(CpuBackend().compile(gm, [sample.input])([sample.input]))
            wanted = function(sample.input)
            wanted = tuple(wanted) if isinstance(wanted, tuple) else (wanted,)
            served += is_scanned(gm)
            if name == "logcumsumexp":
                torch.testing.assert_close(found, wanted, equal_nan=True, check_stride=True)
            else:
                same(found, wanted)
    assert served >= 10


@pytest.mark.sampled(9)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of other processors")
@pytest.mark.parametrize(("name", "width"), [("x86-64", 16), ("x86-64-v3", 32)])
def test_other_processors(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = native.machine()
    other = native.Machine(Processor(name, "", width, width > 16), known.llvm, known.bytes_to_handle)
    monkeypatch.setattr(native, "machine", lambda: other)
    clear()
    try:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool):
            for shape in ((19, 37), (2, 9, 21), (300,)):
                for dim in range(len(shape)):
                    for kind in kinds_of(dtype):
                        check(numbers(shape, dtype), dim, kind, reverse=not KINDS[kind].has_indices and dim > 0)
    finally:
        clear()
