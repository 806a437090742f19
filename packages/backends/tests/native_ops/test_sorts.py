"""The native sorts beside eager mode, bit for bit."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import operator
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
from framesmith_backends.ir.dtypes import NUMBERS
from framesmith_backends.launch.llvm import engine as native
from framesmith_backends.native_ops.sorts import operator as sorts
from framesmith_backends.native_ops.sorts.operator import (
    FEWEST,
    FEWEST_RADIX_OF_ATEN,
    INDICES_SORTED,
    MOST_RANKED,
    MOST_WITH_FEW_TIES,
    SHORTEST_UNSTABLE,
    SORT,
    SORTED,
    VALUES_SORTED,
    short_lines_are_stable,
    sort_into,
)
from framesmith_backends.native_ops.sorts.render import GROUP
from framesmith_backends.native_ops.sorts.rewrite import with_sorts
from framesmith_backends.target import Processor

OURS = (SORTED, VALUES_SORTED, INDICES_SORTED)
TYPES = sorted(NUMBERS, key=str)
FLOATS = [dtype for dtype in TYPES if dtype.is_floating_point]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
COUNTS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 96, 97, 112, 113, 128, 129, 255, 256, 257, 700]))
SPECIAL = (math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1e-42, -1e-42, 3e38)


@pytest.fixture
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are sorted by the native operators, too."""
    for name in ("FEWEST", "FEWEST_UNSTABLE", "SHORTEST_UNSTABLE"):
        monkeypatch.setattr(sorts, name, 1)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    """Some of them equal; of floats some zeros of both signs, and NaNs of several bits."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=draw) * scale
    if dtype == torch.bool:
        return values > 0
    values = (values.round() if seed % 2 else values).to(dtype)
    if dtype.is_floating_point:
        for special in (0.0, -0.0, math.nan, -math.nan, math.inf):
            values[torch.rand(shape, generator=draw) < 0.05] = special
        bits = values.view(BITS[values.element_size()])
        bits[values.isnan() & (torch.rand(shape, generator=draw) < 0.5)] |= 5
    return values


def same(found: Any, wanted: Any) -> None:
    """Bit for bit, and of the same strides."""
    for one, other in zip(*(tuple(v) if isinstance(v, (tuple, list)) else (v,) for v in (found, wanted)), strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        one, other = ((t + 0 if t.is_complex() else t).contiguous() for t in (one, other))
        assert torch.equal(*(t.view(BITS.get(t.element_size(), t.dtype)) for t in (one, other)))


def check(x: torch.Tensor, dim: int) -> None:
    """All operators, in both directions, stable and not."""
    for descending in (False, True):
        for stable in (False, True):
            wanted = torch.sort(x, dim=dim, descending=descending, stable=stable)
            given_ = (x, dim, descending, stable)
            same(SORTED(*given_), wanted)
            same(VALUES_SORTED(*given_), wanted.values)
            same(INDICES_SORTED(*given_), wanted.indices)


def lines_of_aten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of elements that ATen sorts from now on, one for each call."""
    found: list[int] = []
    by_aten = sorts._by_aten

    def counted(x: torch.Tensor, *given_: Any) -> Any:
        found.append(x.numel())
        return by_aten(x, *given_)

    monkeypatch.setattr(sorts, "_by_aten", counted)
    return found


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("dtype", TYPES)
def test_all_types_along_all_dimensions(dtype: torch.dtype) -> None:
    for shape in ((40, 33), (3, 17, 5), (2, 300, 2 * GROUP + 1), (7,), (1, 3), (200, 2), (3, 1000)):
        for dim in range(-len(shape), len(shape)):
            for scale in (3.0, 1e5):
                check(numbers(shape, dtype, dim % len(shape), scale), dim)


@pytest.mark.sampled(9)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_lengths_of_lines(dtype: torch.dtype) -> None:
    @settings(max_examples=examples(30), deadline=None)
    @given(st.integers(1, 4), COUNTS, st.integers(1, GROUP + 2), st.sampled_from([1.0, 30.0, 1e4]))
    def run(outer: int, count: int, inner: int, scale: float) -> None:
        check(numbers((outer, count, inner), dtype, count, scale), 1)

    run()


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_numbers(dtype: torch.dtype) -> None:
    @settings(max_examples=examples(60), deadline=None)
    @given(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=150), st.booleans())
    def run(values: list[float], across: bool) -> None:
        line = torch.tensor(values)
        check(torch.stack([line.roll(k) for k in range(5)], 1 if across else 0).to(dtype), 0 if across else 1)

    run()


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int16, torch.uint8, torch.int8])
def test_all_numbers(dtype: torch.dtype) -> None:
    bits = torch.arange(1 << (8 * dtype.itemsize)).to(BITS[dtype.itemsize])
    x = bits[torch.randperm(len(bits), generator=torch.Generator().manual_seed(0))].view(dtype)
    for descending in (False, True):
        for one in (x, x.view(16, -1)):
            same(SORTED(one, -1, descending, True), torch.sort(one, descending=descending, stable=True))


@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_ends_of_integers(dtype: torch.dtype) -> None:
    ends = torch.iinfo(dtype)
    x = torch.tensor([ends.min, ends.max, 0, -1, 3, 3, ends.min, ends.max], dtype=dtype).repeat(50, 30)
    for dim in (0, 1):
        check(x, dim)


@pytest.mark.usefixtures("all_sizes")
def test_digits_that_are_the_same() -> None:
    draw = torch.Generator().manual_seed(0)
    for shift in range(0, 64, 7):
        x = torch.randint(0, 500, (3, 300), generator=draw) << shift
        for one in (x, x | (1 << 40), x.double(), torch.full_like(x, shift)):
            check(one, 1)


@pytest.mark.usefixtures("all_sizes")
def test_layouts() -> None:
    base = numbers((18, 40, 20), torch.float32)
    pictures = numbers((2, 5, 30, 7), torch.float32).to(memory_format=torch.channels_last)
    for x in (base.permute(2, 0, 1), base[::2, 1:, ::3], base[:, :1].expand(18, 50, 20), base.transpose(0, 2), pictures,
              base[:, :1, :1].expand(18, 40, 20), base[:, :1], base.permute(2, 1, 0)[:, :, :1]):  # fmt: skip
        for dim in range(x.dim()):
            check(x, dim)
    check(base.flatten()[:1].expand(900), 0)


@pytest.mark.usefixtures("all_sizes")
def test_negated_views() -> None:
    x = torch.complex(*torch.randn(2, 50, 30)).conj().imag
    assert x.is_neg()
    check(x, 1)


@pytest.mark.usefixtures("all_sizes")
def test_no_elements_and_no_dimensions() -> None:
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 4), (), (1,), (1, 1), (5, 1)):
        for dim in range(-max(len(shape), 1), max(len(shape), 1)):
            check(numbers(shape, torch.float32), dim)


def test_ties_where_no_stable_sort_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    by_aten = lines_of_aten(monkeypatch)
    assert short_lines_are_stable()
    draw = torch.Generator().manual_seed(0)
    x = torch.randperm(100_000, generator=draw).float().view(100, 1000)
    check(x, 1)
    assert not by_aten
    x[7, 5] = x[7, 900]
    x[31, ::2] = 0
    check(x, 1)
    assert by_aten == [2000] * 4  # with the indices, in both directions; values alone are the same
    by_aten.clear()
    check(x.t(), 0)
    assert by_aten == [2000] * 4
    by_aten.clear()
    x[31, 1::2] = torch.tensor([0.0, -0.0]).repeat(250)
    check(x, 1)
    assert sorted(by_aten) == [1000] * 2 + [2000] * 4
    by_aten.clear()
    x[::2] = 1
    check(x, 1)
    assert sorted(by_aten)[-1] >= 50_000


def test_short_lines_of_an_eager_sort_that_is_not_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    by_aten = lines_of_aten(monkeypatch)
    monkeypatch.setattr(sorts, "short_lines_are_stable", lambda: False)
    x = torch.randperm(16_000, generator=torch.Generator().manual_seed(0)).float().view(-1, 8)
    x[9] = 1
    check(x, 1)
    assert by_aten == [8] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(5, 37), (17, 16), (3, 9, 21), (4, 500, 11), (40_001,)])
def test_nothing_else_is_written(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    size, before = math.prod(shape), 64
    x = numbers(shape, dtype)
    frames = [torch.full((size + 2 * before,), 7, dtype=one) for one in (dtype, torch.int64)]
    values, indices = (frame[before : size + before].view(shape) for frame in frames)
    for dim in range(len(shape)):
        sort_into(x, dim, False, values, indices)
        assert all((frame[:before] == 7).all() and (frame[size + before :] == 7).all() for frame in frames)


@pytest.mark.skipif(platform.system() != "Linux", reason="pages of Linux")
@pytest.mark.parametrize("shape", [(8, 32), (17, 37), (3, 9, 21), (4, 500, 11), (20_000,)])
def test_nothing_else_is_read(shape: tuple[int, ...]) -> None:
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
            sort_into(x, dim, False, values, indices)


@pytest.mark.sampled(24)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    a_part(itertools.product([(40_001,), (2, 20_000), (600, 130), (70, 100, 9), (3000, 12)], TYPES), 3),
)
def test_threads(threads: int, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few lines, all threads sort chunks."""
    monkeypatch.setattr(sorts, "SHORTEST_SPLIT", 10_000)
    monkeypatch.setattr(sorts, "FEWEST_RADIX_OF_ATEN", 1 << 40)
    for dim in range(len(shape)):
        for scale in (3.0, 1e5):
            x = numbers(shape, dtype, dim, scale)
            for descending in (False, True):
                wanted = torch.sort(x, dim=dim, descending=descending, stable=True)
                same(SORTED(x, dim, descending, True), wanted)
                same(VALUES_SORTED(x, dim, descending, True), wanted.values)
                same(INDICES_SORTED(x, dim, descending, True), wanted.indices)
                same(VALUES_SORTED(x, dim, descending, False), torch.sort(x, dim=dim, descending=descending).values)
    same(SORTED(torch.ones(shape), 0, False, True), torch.ones(shape).sort(dim=0, stable=True))


GRAPHS: dict[str, tuple[set[Any], Callable[..., Any]]] = {
    "both": ({SORTED}, lambda x: tuple((x * 2).sort(dim=1, stable=True))),
    "values": ({VALUES_SORTED}, lambda x: (x.sort(-1).values + 1, x.msort())),
    "indices": ({INDICES_SORTED}, lambda x: (x.argsort(0), x.argsort(dim=1, descending=True, stable=True) * 2)),
    "transposed": ({SORTED}, lambda x: tuple(x.t().sort(dim=0, descending=True, stable=True))),
    "gathered": ({SORTED}, lambda x: ((y := x.sort(dim=0, stable=True)).values, x.gather(0, y.indices))),
    "twice": ({VALUES_SORTED, INDICES_SORTED}, lambda x: (x.sort(1).values, x.sort(stable=True).indices)),
}


def calls(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.target in OURS]


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    targets, function = GRAPHS[name]
    x = numbers((60, 200), torch.float32)
    gm = trace(function, [x])
    assert set(calls(with_sorts(gm))) == targets
    wanted = function(x)
    same(tuple(CpuBackend().compile(gm, [x])([x])), wanted)


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_dynamic_shapes(name: str) -> None:
    targets, function = GRAPHS[name]
    x = numbers((40, 70), torch.float32)
    gm = trace_symbolic(function, [x])
    assert set(calls(with_sorts(gm))) == targets
    call = CpuBackend().compile(gm, [x])
    for shape in ((40, 70), (3, 5), (300, 33), (20, 600), (70, 160)):
        x = numbers(shape, torch.float32)
        same(tuple(call([x])), function(x))


def test_results_that_are_not_read_alone() -> None:
    gm = trace(lambda x: x.sort(dim=1, stable=True).values, [x := numbers((60, 200), torch.float32)])
    [call] = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sort.stable)
    with gm.graph.inserting_after(next(iter(call.users))):
        gm.graph.call_function(operator.getitem, (call, 1))
    assert calls(with_sorts(gm)) == [VALUES_SORTED]
    same(with_sorts(gm)(x), x.sort(dim=1, stable=True).values)


def test_sorts_that_stay_with_aten() -> None:
    x = numbers((100, 90), torch.float32)
    long = torch.arange(FEWEST_RADIX_OF_ATEN)
    for function, given_ in (
        (lambda x: x.sort(stable=True), x.flatten()[: FEWEST - 1]),
        (lambda x: x.sort(1), x[:40]),
        (lambda x: x.sort(1), x.view(-1, SHORTEST_UNSTABLE - 1)),
        (lambda x: x.sort(1), x.bfloat16()),
        (lambda x: x.sort(1), x.int()),
        (lambda x: x.sort(), torch.randn(MOST_WITH_FEW_TIES + 1)),
        (lambda x: x.sort(stable=True), long),
        (lambda x: x.topk(3, 1), x),
        (lambda x: x + 1, x),
    ):
        gm = trace(lambda x, function=function: tuple(function(x)), [given_])
        assert with_sorts(gm) is gm
    for function, given_ in (
        (lambda x: x.sort(descending=True, stable=True), long),
        (lambda x: (x.sort(1).values,), x.bfloat16()),
        (lambda x: x.sort(1), x[:, :16].bfloat16().repeat(5, 1)),
    ):
        gm = trace(lambda x, function=function: tuple(function(x)), [given_])
        assert calls(with_sorts(gm))


@pytest.mark.sampled(9)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("name", ["sort", "argsort", "msort"])
def test_torchs_own_samples(name: str) -> None:
    [op] = [op for op in op_db if op.name == name]
    served = 0
    for dtype in sorted({torch.float32, torch.bfloat16, torch.int64, torch.bool} & op.supported_dtypes("cpu"), key=str):
        for sample in op.sample_inputs("cpu", dtype):
            function = lambda x, sample=sample: op(x, *sample.args, **sample.kwargs)  # noqa: E731
            gm = trace(function, [sample.input])
            found = tuple(CpuBackend().compile(gm, [sample.input])([sample.input]))
            wanted = function(sample.input)
            same(found, tuple(wanted) if isinstance(wanted, tuple) else (wanted,))
            served += bool(calls(with_sorts(gm)))
    assert served >= 8


@pytest.mark.sampled(9)
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of other processors")
@pytest.mark.parametrize(("name", "width"), [("x86-64", 16), ("x86-64-v3", 32)])
def test_other_processors(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = native.machine()
    other = native.Machine(Processor(name, "", width, width > 16), known.llvm, known.bytes_to_handle)
    monkeypatch.setattr(native, "machine", lambda: other)
    SORT.clear()
    try:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
            for shape in ((19, 37), (2, 9, 21), (300,), (MOST_RANKED[dtype.itemsize], 3)):
                for dim in range(len(shape)):
                    check(numbers(shape, dtype), dim)
    finally:
        SORT.clear()


def test_few_long_lines_side_by_side_take_no_more_scratch_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1 << 19, 2, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    asked = []
    empty = torch.empty

    def counting(*sizes: Any, **settings: Any) -> torch.Tensor:
        made = empty(*sizes, **settings)
        asked.append(made.nbytes)
        return made

    monkeypatch.setattr(torch, "empty", counting)
    values, indices = torch.ops.framesmith_backends.sorted(x, 0, False, True)
    monkeypatch.undo()
    wanted = torch.sort(x, dim=0, stable=True)
    assert torch.equal(values, wanted.values) and torch.equal(indices, wanted.indices)
    assert max(asked, default=0) <= 1 << 26


def test_under_another_default_device() -> None:
    sorts.short_lines_are_stable.cache_clear()
    x = torch.randn(2000, 8)
    with torch.device("meta"):
        values, indices = torch.ops.framesmith_backends.sorted(x, 1, False, False)
    wanted = torch.sort(x, 1)
    assert torch.equal(values, wanted.values) and torch.equal(indices, wanted.indices)
