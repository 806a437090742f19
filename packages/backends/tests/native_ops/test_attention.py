"""The native attention beside ATen and float64."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from case_selection.sweeps import examples
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_backends import CpuBackend
from framesmith_backends.ir.ops import CPU_ATTENTION
from framesmith_backends.launch.llvm import engine as native
from framesmith_backends.native_ops.attention import operator as native_attention
from framesmith_backends.native_ops.attention.operator import ATTENTION, call_of, layout, why_aten
from framesmith_backends.native_ops.attention.rewrite import use_native_attention
from framesmith_backends.native_ops.attention.shape import FEW, KEYS, KEYS_OF_ROW, MOST_DEPTH, widths_of
from framesmith_backends.target import Processor

Tensor = torch.Tensor
#: Few queries, vectors, blocks of several, and what is left beside them; keys of several blocks.
QUERIES = st.one_of(st.integers(1, FEW + 2), st.sampled_from([15, 16, 17, 31, 33, 48, 49, 65, 100, 130]))
LENGTHS = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 63, 65, KEYS, KEYS + 1, KEYS_OF_ROW + 3]))
DEPTHS = st.one_of(st.integers(1, 9), st.sampled_from([12, 16, 17, 31, 40, 64, 65, 72, 80]))


def forget() -> None:
    """Forget machine code and calls of another processor."""
    native_attention.CODE.clear()
    for cached in (native_attention.shape, native_attention.call_of):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small tensors are taken, too."""
    monkeypatch.setattr(native_attention, "FEWEST", 1)
    monkeypatch.setattr(native_attention, "FEWEST_OF_FEW", 1)
    call_of.cache_clear()
    yield
    call_of.cache_clear()


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def operands(batch: int, heads: int, queries: int, keys: int, depth: int, shared: int | None = None) -> list[Tensor]:
    few = shared or heads
    return [
        numbers(batch, heads, queries, depth), numbers(batch, few, keys, depth, seed=1),
        numbers(batch, few, keys, depth, seed=2),
    ]  # fmt: skip


def exactly(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> list[Tensor]:
    """Both results in float64; rows that see nothing as ATen has them."""
    times = q.shape[1] // k.shape[1]
    k, v = (one.double().repeat_interleave(times, 1) for one in (k, v))
    scores = q.double() @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else scores + mask
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    nothing = (scores == -math.inf).all(-1)
    out = scores.softmax(-1).masked_fill(nothing[..., None], 0) @ v
    return [out, scores.logsumexp(-1).masked_fill(nothing, 0)]


def results(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, mask: Tensor | None = None,
            scale: float | None = None) -> tuple[Any, Any]:  # fmt: skip
    """By the native attention, which computes these, and by ATen."""
    assert why_aten(*map(layout, (q, k, v)), None if mask is None else layout(mask)) is None
    return ATTENTION(q, k, v, causal, mask, scale), CPU_ATTENTION(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)


def check(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, mask: Tensor | None = None,
          scale: float | None = None, bound: float = 4e-6) -> None:  # fmt: skip
    found, atens = results(q, k, v, causal, mask, scale)
    for one, two, exact in zip(found, atens, exactly(q, k, v, causal, mask, scale), strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(one, two, rtol=2 * bound, atol=2 * bound, equal_nan=True)
        torch.testing.assert_close(one.double(), exact, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.sampled(27)
@pytest.mark.parametrize("scale", [0.1, 1, 5])
@pytest.mark.parametrize(
    "sizes", [(128, 128, 64), (65, 65, 64), (1, 512, 64), (3, 700, 64), (128, 2048, 64), (96, 96, 256), (200, 40, 8)]
)
def test_as_near_to_float64_as_atens(sizes: tuple[int, int, int], scale: float) -> None:
    q, k, v = operands(2, 4, *sizes)
    q, k = q * scale, k * scale
    errors = [
        [(one.double() - exact).square().mean().sqrt().item() for one, exact in zip(
            each, exactly(q, k, v, False, None, None), strict=True)]
        for each in results(q, k, v)
    ]  # fmt: skip
    for ours, atens in zip(*errors, strict=True):
        assert ours <= 2 * atens


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "heads inside": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "between others": lambda x: torch.stack([x, -x, x * 0], 3).select(3, 0),
    "longer": lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    "of one batch": lambda x: x[:1].expand(x.shape),
    "of one row": lambda x: x[:, :, :1].expand(x.shape),
}
MASKS: dict[str, Callable[[int, int, int, int], Tensor | None]] = {
    "none": lambda b, h, q, k: None,
    "whole": lambda b, h, q, k: numbers(b, h, q, k, seed=3),
    "of all heads": lambda b, h, q, k: numbers(b, 1, q, k, seed=3),
    "of all batches": lambda b, h, q, k: numbers(1, h, q, k, seed=3).expand(b, h, q, k),
    "of keys": lambda b, h, q, k: numbers(b, 1, 1, k, seed=3),
    "of keys, expanded": lambda b, h, q, k: numbers(b, 1, 1, k, seed=3).expand(b, h, q, k),
    "of queries": lambda b, h, q, k: numbers(1, 1, q, 1, seed=3),
    "of two dimensions": lambda b, h, q, k: numbers(q, k, seed=3),
    "one number": lambda b, h, q, k: numbers(1, 1, seed=3),
    "part of a larger": lambda b, h, q, k: numbers(1, 1, q + 3, k + 5, seed=3)[:, :, 2 : q + 2, 4 : k + 4],
    "closed": lambda b, h, q, k: numbers(b, 1, q, k, seed=3).masked_fill(numbers(b, 1, q, k, seed=4) > 0, -math.inf),
}


@settings(max_examples=examples(150), deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), QUERIES, LENGTHS, DEPTHS,
    st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 3), st.sampled_from(sorted(MASKS)), st.booleans(),
    st.sampled_from([None, 0.5, 0.0, -1.0]), st.sampled_from([1, 2]),
)  # fmt: skip
def test_all_kinds(
    many: tuple[int, int, int], queries: int, keys: int, depth: int, layouts: tuple[str, str, str], mask: str,
    causal: bool, scale: float | None, threads: int,
) -> None:  # fmt: skip
    batch, shared, times = many
    given = operands(batch, shared * times, queries, keys, depth, shared)
    layout_out = [LAYOUTS[layout](one) for layout, one in zip(layouts, given, strict=True)]
    torch.set_num_threads(threads)
    scale = abs(scale) or None if causal and scale is not None else scale
    check(*layout_out, causal, MASKS[mask](batch, shared * times, queries, keys), scale, bound=1e-5)


@pytest.mark.parametrize("queries", [3, 40])
@pytest.mark.parametrize(("heads", "shared"), [(6, 2), (6, 1), (6, 6)])
def test_heads_of_keys_that_are_shared(heads: int, shared: int, queries: int) -> None:
    check(*operands(2, heads, queries, 33, 16, shared), bound=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("queries", [3, 40])
def test_masks(queries: int, mask: str) -> None:
    check(*operands(2, 3, queries, KEYS + 9, 24), False, MASKS[mask](2, 3, queries, KEYS + 9), bound=1e-5)


@pytest.mark.parametrize("queries", [2, 50])
def test_masks_across_memory(queries: int) -> None:
    """ATen's kernel reads these as if their columns were contiguous; attention in eager mode does not give it such."""
    q, k, v = operands(2, 3, queries, 37, 16)
    mask = numbers(37, queries).t()
    for one, two in zip(ATTENTION(q, k, v, False, mask, None), exactly(q, k, v, False, mask, None), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("queries", "keys"), [(1, 5), (4, 2), (4, 600), (48, 48), (49, 300), (300, 49), (130, 131)])
def test_causal(queries: int, keys: int) -> None:
    check(*operands(2, 2, queries, keys, 20), causal=True)
    check(*operands(1, 2, queries, keys, 20), True, numbers(queries, keys, seed=4), bound=1e-5)


@pytest.mark.parametrize("scale", [0.0, -0.5, math.nan])
def test_causal_with_scales_that_are_not_positive(scale: float) -> None:
    """Hidden keys give the results of ATen."""
    found, atens = results(*operands(1, 2, 20, 20, 16), True, None, scale)
    torch.testing.assert_close(found, atens, rtol=0, atol=0, equal_nan=True)
    assert found[0].isnan().any()


@pytest.mark.parametrize("queries", [2, 20])
def test_rows_that_see_nothing(queries: int) -> None:
    """In the first block of keys, in the last, in all."""
    keys = 2 * max(KEYS, KEYS_OF_ROW)
    mask = numbers(queries, keys, seed=3)
    mask[0] = -math.inf
    mask[1, : keys // 2] = -math.inf
    mask[2 % queries, keys // 2 :] = -math.inf
    q, k, v = operands(1, 2, queries, keys, 16)
    (out, lse), atens = results(q, k, v, False, mask)
    assert not out[:, :, 0].any() and not lse[:, :, 0].any()
    torch.testing.assert_close((out, lse), atens, rtol=1e-5, atol=1e-5)
    check(q, k, v, False, mask, bound=1e-5)


@pytest.mark.parametrize("queries", [3, 30])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", range(4))
def test_special_numbers(where: int, number: float, queries: int) -> None:
    """Of logarithms where a score is infinite ATen gives an infinite one, or NaN where the key is one of the last."""
    given = [*operands(2, 2, queries, 48, 24), numbers(2, 2, queries, 48, seed=3)]
    given[where][1, 1, 2 % queries, 7] = number
    found, atens = results(*given[:3], False, given[3])
    torch.testing.assert_close(found, atens, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert (where == 3 and number < 0) or not found[0].isfinite().all()


def test_scores_that_are_nan_everywhere() -> None:
    for queries in (2, 20):
        q, k, v = operands(1, 1, queries, 20, 16)
        q[0, 0, 1] = math.nan
        (out, lse), _ = results(q, k, v)
        assert out[0, 0, 1].isnan().all() and lse[0, 0, 1].isnan() and not out[0, 0, 0].isnan().any()


@pytest.mark.parametrize("queries", [2, 40])
def test_large_scores(queries: int) -> None:
    q, k, v = operands(1, 2, queries, 300, 32)
    check(q * 60, k * 60, v, bound=5e-4)  # scores of thousands, whose last bits are as large
    (_, lse), _ = results(q * 1e19, k * 1e19, v)
    assert lse.isinf().any() or lse.isnan().any() or lse.max() > 1e37


def test_weights_of_all_sizes() -> None:
    """Two keys, one of which has the probability e**-x, down to nothing."""
    for queries in (1, 17):
        for x in (0.0, 1e-3, 0.3, 0.4, 1.0, 20.0, 50.0, 85.0, 88.0, 110.0, 1e4, math.inf):
            q, v = torch.ones(1, 1, queries, 1), torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
            k = torch.tensor([0.0, -x]).view(1, 1, 2, 1)
            (out, _), _ = results(q, k, v, scale=1.0)
            weight = math.exp(-x) / (1 + math.exp(-x))
            assert (out == out[0, 0, 0, 0]).all()
            assert abs(out[0, 0, 0, 0].item() - weight) <= weight * 2e-6 + 1.2e-38
            assert x < 105 or not out.any()


@pytest.mark.parametrize("sizes", [(2, 3, 130, 90, 40), (1, 1, 500, 70, 16), (3, 2, 4, 600, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_threads(sizes: tuple[int, int, int, int, int], causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits for any number of them."""
    monkeypatch.setattr(native_attention, "GRAIN", 1)
    given, found = operands(*sizes), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(ATTENTION(*given, causal, None, None))
    for each in found[1:]:
        for one, two in zip(each, found[0], strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("sizes", [(1, 37, 24), (3, 7, 5), (20, 19, 13), (50, 33, 65)])
def test_nothing_beside_the_operands_is_read(sizes: tuple[int, int, int]) -> None:
    """Pages before and behind them cannot be read; results lie at the end of theirs by themselves."""
    queries, keys, depth = sizes
    shapes = [(1, 2, queries, depth), (1, 2, keys, depth), (1, 2, keys, depth), (queries, keys)]
    for at_end in (False, True):
        kept = [_guarded(shape, at_end) for shape in shapes]
        (q, k, v, mask), causal = (one for one, _ in kept), at_end
        check(q, k, v, causal, mask, bound=1e-5)


def _guarded(shape: tuple[int, ...], at_end: bool) -> tuple[Tensor, mmap.mmap]:
    """A tensor that begins, or ends, with its pages, beside which are pages that cannot be read."""
    size, page = 4 * math.prod(shape), mmap.PAGESIZE
    whole = -(-size // page) * page
    pages = mmap.mmap(-1, whole + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    start = page + whole - size if at_end else page
    x = torch.frombuffer(pages, dtype=torch.float32, count=math.prod(shape), offset=start).view(shape)
    x.copy_(numbers(*shape))
    for guard in (address, address + page + whole):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), page, 0) == 0
    return x, pages


def refused(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, list[Any]]]:
    q, k, v = operands(2, 4, 6, 7, 8)
    wide = [torch.cat([one] * 33, 3) for one in (q, k, v)]
    return {
        "strided": ("contiguous", [q, k, torch.stack([v, v], 4)[..., 0]]),
        "large": ("large", wide),
        "keys of another size": ("do not fit", [q, k[..., :4], v[..., :4]]),
        "more keys than values": ("do not fit", [q, k, v[:, :, :3]]),
        "heads": ("do not fit", [q, k[:, :3], v[:, :3]]),
        "no batch": ("nothing", [q[:0], k[:0], v[:0]]),
        "no queries": ("nothing", [q[:, :, :0], k, v]),
        "no keys": ("nothing", [q, k[:, :, :0], v[:, :, :0]]),
        "a short mask": ("mask", [q, k, v, torch.zeros(6, 5)]),
        "a mask of three dimensions": ("mask", [q, k, v, torch.zeros(2, 6, 7)]),
    }


@pytest.mark.parametrize("name", refused(pytest.MonkeyPatch()))
def test_attention_that_stays_with_aten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    why, given = refused(monkeypatch)[name]
    said = why_aten(*map(layout, given), *[None] * (4 - len(given)))
    assert said is not None and why in said
    called: list[Any] = []
    monkeypatch.setattr(
        native_attention,
        "CPU_ATTENTION",
        lambda *args, **kwargs: called.append(args) or (args[0].clone(), args[0].clone()),
    )
    ATTENTION(*given[:3], False, given[3] if len(given) > 3 else None, None)
    assert called


def test_small_tensors_and_other_types_stay_with_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(1, 2, 6, 7, 8)
    for dtype in (torch.float64, torch.bfloat16):
        halves = [one.to(dtype) for one in given]
        found, wanted = ATTENTION(*halves, False, None, None), CPU_ATTENTION(*halves)
        assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    monkeypatch.undo()
    for queries in (1, 6):
        assert why_aten(*map(layout, operands(1, 1, queries, 8, 8)), None) == "too few elements"
    assert why_aten(*map(layout, operands(4, 4, 1, 512, 64)), None) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_and_strides_of_fake_tensors(layout: str) -> None:
    q, k, v = operands(2, 3, 9, 11, 8)
    q = LAYOUTS[layout](q)
    with new_fake_mode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(one) for one in (q, k, v)]
        ours, atens = ATTENTION(*fakes, False, None, None), CPU_ATTENTION(*fakes)
    for one, two, real in zip(ours, atens, ATTENTION(q, k, v, False, None, None), strict=True):
        assert (one.shape, one.stride(), one.dtype) == (two.shape, two.stride(), two.dtype)
        assert (real.shape, real.stride(), real.dtype) == (two.shape, two.stride(), two.dtype)


@pytest.mark.parametrize(("name", "width"), [("x86-64", 16), ("x86-64-v3", 32)])
def test_other_processors(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = native.machine()
    other = native.Machine(Processor(name, "", width, width > 16), known.llvm, known.bytes_to_handle)
    monkeypatch.setattr(native, "machine", lambda: other)
    forget()
    try:
        assert native_attention.shape().lanes == width // 4
        for queries, keys, depth in ((1, 40, 17), (3, 530, 16), (9, 5, 3), (29, 140, 23)):
            for mask in ("none", "whole", "of keys", "closed"):
                given = operands(1, 2, queries, keys, depth)
                check(*given, False, MASKS[mask](1, 2, queries, keys), bound=1e-5)
                check(*given, True)
        q, k, v = operands(1, 1, 9, 20, 8)
        k[0, 0, 3] = torch.tensor(0x7FC00101, dtype=torch.int32).view(torch.float32)  # whose last bits are no zeros
        assert ATTENTION(q, k, v, False, None, None)[0].isnan().all()
    finally:
        forget()


def test_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Any, *rest: Any) -> None:
        job[native_attention.JOB.index["failed"]] = 1

    monkeypatch.setattr(native_attention.CODE[widths_of(native_attention.shape(), 9)], "run", fail)
    with pytest.raises(MemoryError, match="attention"):
        ATTENTION(*operands(1, 1, 9, 9, 8), False, None, None)


# Graphs.


def attend(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor, causal: bool = False, scale: float | None = None) -> Any:
    return CPU_ATTENTION(q * 2, k, v + 1, 0.0, causal, attn_mask=mask[0] + 1 if mask else None, scale=scale)


GRAPHS: dict[str, tuple[Callable[..., Any], bool]] = {
    "plain": (lambda q, k, v, m: attend(q, k, v), True),
    "masked": (lambda q, k, v, m: attend(q, k, v, m), True),
    "causal": (lambda q, k, v, m: attend(q, k, v, causal=True), True),
    "scaled": (lambda q, k, v, m: attend(q, k, v, m, scale=0.3), True),
    "one result": (lambda q, k, v, m: attend(q, k, v, m)[0].transpose(1, 2).flatten(2) * 2, True),
    "heads inside": (lambda q, k, v, m: attend(LAYOUTS["heads inside"](q), k, v)[0] + 1, True),
    "bfloat16": (lambda q, k, v, m: CPU_ATTENTION(q.bfloat16(), k.bfloat16(), v.bfloat16()), False),
    "float64": (lambda q, k, v, m: CPU_ATTENTION(q.double(), k.double(), v.double()), False),
}


def calls(gm: torch.fx.GraphModule, target: Any) -> list[Any]:
    return list(gm.graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    function, is_ours = GRAPHS[name]
    given = [*operands(2, 4, 21, 30, 16), numbers(2, 1, 21, 30, seed=3)]
    gm = trace(function, given)
    rewritten = use_native_attention(gm)
    assert len(calls(rewritten, ATTENTION)) == is_ours and len(calls(rewritten, CPU_ATTENTION)) == (not is_ours)
    assert calls(gm, CPU_ATTENTION) and (rewritten is gm) == (not is_ours)
    found, wanted = CpuBackend().compile(gm, given)(list(given)), function(*given)
    for one, two in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(one, two)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_dynamic_shapes(name: str) -> None:
    function, is_ours = GRAPHS[name]
    given = [*operands(2, 4, 21, 30, 16), numbers(2, 1, 21, 30, seed=3)]
    gm = trace_symbolic(function, given)
    assert len(calls(use_native_attention(gm), ATTENTION)) == is_ours
    call = CpuBackend().compile(gm, given)
    for sizes in ((2, 4, 21, 30, 16), (3, 2, 65, 65, 24), (2, 3, 3, 700, 8)):
        given = [*operands(*sizes), numbers(sizes[0], 1, *sizes[2:4], seed=3)]
        wanted = function(*given)
        for one, two in zip(call(list(given)), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert one.stride() == two.stride()
            torch.testing.assert_close(one, two)


def test_graphs_that_stay_with_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    large = operands(1, 2, 6, 7, MOST_DEPTH + 8)
    assert not calls(use_native_attention(trace(lambda q, k, v: CPU_ATTENTION(q, k, v), large)), ATTENTION)
    monkeypatch.undo()
    small = operands(1, 1, 2, 3, 8)
    assert not calls(use_native_attention(trace(lambda q, k, v: CPU_ATTENTION(q, k, v), small)), ATTENTION)
