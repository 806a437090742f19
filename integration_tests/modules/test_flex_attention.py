"""Flex attention in compiled functions, against eager mode: one graph, the same values, layouts and gradients."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention, or_masks

import framesmith

Tensor = torch.Tensor
operator = torch.ops.higher_order.flex_attention


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    framesmith.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tensors(
    queries: int = 37, keys: int = 37, depth: int = 16, heads: int = 4, shared: int = 4, dtype: Any = torch.float32
) -> list[Tensor]:
    """Queries, keys and values of two batches."""
    sizes = (heads, queries), (shared, keys), (shared, keys)
    return [torch.randn(2, count, length, depth).to(dtype) for count, length in sizes]


def same(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    """The same values, types, shapes and strides."""
    assert type(got) is type(want)
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other, tolerance)
    elif want is not None:
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert got.stride() == want.stride()
        assert got.requires_grad == want.requires_grad


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 2e-5, **options: Any) -> None:
    """One graph that gives what eager mode gives, and the same again from its entry."""
    want = fn(*args)
    compiled = framesmith.compile(fn, fullgraph=True, strict=True, **options)
    same(compiled(*args), want, tolerance)
    same(compiled(*args), want, tolerance)


# Functions of scores


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.randn(2, 4, 64, 64)
DOCUMENTS = torch.tensor([[0] * 20 + [1] * 44, [0] * 5 + [1] * 59])
DOUBLE = torch.tensor(0.3, dtype=torch.float64)


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i - j).abs() < 9


def same_document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return DOCUMENTS[b, i] == DOCUMENTS[b][j]


def some_rows(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i % 3 != 0) & (j <= i)


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score - SLOPES[h] * (i - j).abs()


def relative(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + TABLE[b, h, i, j]


def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 5 * torch.tanh(score / 5)


def hidden_by_score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j + 2, score.exp(), -float("inf"))


def doubled(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score * DOUBLE + TABLE[0, 1, 2, 3]


def of_positions(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i - j * 0.25


def of_shapes(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    assert score.dim() == 0 and i.shape == ()
    return score * score.numel() + TABLE[0, -1][h][0].clamp(min=0)


MODS = (alibi, relative, capped, hidden_by_score, doubled, of_positions, of_shapes)
MASKS = (causal, window, same_document, some_rows)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mod", MODS, ids=lambda mod: mod.__name__)
def test_scores_are_changed_as_in_eager_mode(mod: Any) -> None:
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=mod), *tensors())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__name__)
def test_masks_made_outside_and_inside(mask: Any) -> None:
    made = create_block_mask(mask, 2, None, 37, 37, device="cpu", BLOCK_SIZE=16)

    def outside(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=made, return_aux=AuxRequest(lse=True))

    def inside(q: Tensor, k: Tensor, v: Tensor) -> Any:
        block_mask = create_block_mask(mask, 2, None, 37, 37, device="cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, score_mod=alibi, block_mask=block_mask)

    given = tensors()
    check(outside, *given)
    check(inside, *given)


def test_a_block_mask_made_inside_is_that_of_eager_mode() -> None:
    def lists(length: Tensor) -> Any:
        made = create_block_mask(and_masks(causal, window), None, 2, 40, 50, device="cpu", BLOCK_SIZE=(8, 16))
        return made.as_tuple()[2:10], made.to_dense(), made.sparsity()

    want, got = lists(TABLE), framesmith.compile(lists, strict=True)(TABLE)
    assert got[2] == want[2]
    torch.testing.assert_close(got[1], want[1])
    for one, other in zip(got[0], want[0], strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


def test_masks_of_masks_and_partial_functions() -> None:
    def far(distance: int, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i - j > distance

    mask = or_masks(and_masks(causal, window), functools.partial(far, 20))
    made = create_block_mask(mask, None, None, 37, 37, device="cpu")
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=made), *tensors())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float64))
@pytest.mark.parametrize("depth", (80, 96))
def test_types_and_sizes_of_heads(dtype: torch.dtype, depth: int) -> None:
    tolerance = 1e-6 if dtype == torch.float64 else 1e-2
    made = create_block_mask(causal, None, None, 37, 37, device="cpu")

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=alibi, block_mask=made, scale=0.2)

    check(fn, *tensors(depth=depth, dtype=dtype), tolerance=tolerance)


def test_heads_that_share_keys_and_other_lengths() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=alibi, enable_gqa=True, return_lse=True)

    for queries in (1, 19):
        q, k, v = tensors(queries=queries, keys=50, shared=2)
        check(fn, q, k, v)
        check(fn, q, k, torch.randn(2, 2, 50, 24))


def test_layouts_of_results() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, return_aux=AuxRequest(lse=True))

    for queries in (1, 7):
        q, k, v = tensors(queries=queries)
        turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        check(fn, *turned)
        check(fn, q.transpose(0, 2).contiguous().transpose(0, 2), k, v)
        check(fn, q.transpose(2, 3).contiguous().transpose(2, 3), k[:, :, ::2], v[:, :, ::2])


def test_one_batch_of_keys_for_all() -> None:
    q, k, v = tensors()
    made = create_block_mask(causal, 2, None, 37, 37, device="cpu")
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=made), q, k[:1], v[:1])


def test_dynamic_shapes() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        mask = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, score_mod=alibi, block_mask=mask, enable_gqa=True, return_lse=True)

    compiled = framesmith.compile(fn, fullgraph=True, strict=True, dynamic=True)
    for length in (33, 40, 57):
        given = tensors(length, length + 3, shared=2)
        same(compiled(*given), fn(*given))
    assert framesmith.stats()["recompilations"] == 0


def test_gradients_of_captured_tensors() -> None:
    """Eager mode has no gradients of queries, keys and values on the CPU, but those of what score_mod captures."""
    made = create_block_mask(some_rows, None, None, 37, 37, device="cpu")
    given = tensors()

    def gradients(compiler: Any) -> list[Tensor]:
        torch.manual_seed(1)
        slopes, table = torch.randn(4), torch.randn(37, 37)
        learnt = [x.requires_grad_() for x in (slopes, table)]

        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score * 0.7 + slopes[h] * (i - j) + table[i, j].sin()

        def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return flex_attention(q, k, v, score_mod=mod, block_mask=made, return_lse=True)

        means, sums = compiler(fn)(*given)
        (means.square().sum() + sums.nan_to_num(neginf=0).sum()).backward()
        return [x.grad for x in learnt]  # type: ignore[misc]

    want = gradients(lambda fn: fn)
    for got, one in zip(gradients(lambda f: framesmith.compile(f, fullgraph=True, strict=True)), want, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mask", (None, causal, some_rows))
@pytest.mark.parametrize("mod", (None, alibi, capped, hidden_by_score))
def test_gradients_of_the_operator(mod: Any, mask: Any) -> None:
    """The operator under the function has gradients on the CPU too: those that the function has on a GPU."""
    q, k, v = tensors(21, 26, shared=2)
    made = create_block_mask(mask or flex.noop_mask, None, None, 21, 26, device="cpu")

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        means, sums, _ = operator(q, k, v, mod or flex._identity, made.as_tuple(), 0.3, {})
        return means, sums * math.log(2)

    def gradients(compiler: Any) -> list[Tensor]:
        given = [x.clone().requires_grad_() for x in (q, k, v)]
        means, sums = compiler(fn)(*given)
        loss = (means * torch.arange(16)).sin().sum() + sums.masked_fill(sums.isneginf(), 0).square().sum()
        loss.backward()
        return [means, sums, *(x.grad for x in given)]  # type: ignore[list-item]

    want = gradients(lambda fn: fn)
    for got, one in zip(gradients(lambda f: framesmith.compile(f, fullgraph=True, strict=True)), want, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-4, atol=1e-4)


def test_under_autocast() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(q, k, v, score_mod=alibi)

    check(fn, *tensors(), tolerance=1e-2)


def test_in_a_module_between_other_operations() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(64, 192)
            self.out = torch.nn.Linear(64, 64)
            self.mask = create_block_mask(causal, None, None, 37, 37, device="cpu")

        def alibi(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + self.out.bias[h] * (j - i)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (4, 16)).transpose(1, 2) for y in self.project(x).chunk(3, -1))
            y = flex_attention(q, k, v, score_mod=self.alibi, block_mask=self.mask)
            return x + self.out(y.transpose(1, 2).flatten(2))

    with torch.no_grad():
        check(Block(), torch.randn(2, 37, 64))


# What is left to torch


def breaks(fn: Callable[..., Any], *args: Any) -> str:
    """Return the reports of graph breaks of a call whose results are those of eager mode."""
    want = fn(*args)
    framesmith.reset()
    same(framesmith.compile(fn)(*args), want)
    return str(framesmith.explain(fn, *args))


def over_heads(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (TABLE[b, h, i] * TABLE[b, h, j]).sum() / 64


def normalised(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + torch.softmax(SLOPES, 0)[h]


def of_itself(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + torch.softmax(score, 0)


def test_functions_of_more_than_elements_run_as_they_are() -> None:
    for mod in (over_heads, of_itself):
        found = breaks(lambda q, k, v, mod=mod: flex_attention(q * 1, k, v, score_mod=mod), *tensors())
        assert "not-elementwise" in found
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=normalised), *tensors())


def test_what_torch_refuses_is_refused_in_its_words() -> None:
    q, k, v = tensors()
    short = create_block_mask(causal, None, None, 20, 20, device="cpu")
    for fn in (
        lambda q, k, v: flex_attention(q, k, v, block_mask=short),
        lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2]),
        lambda q, k, v: flex_attention(q.requires_grad_(), k, v),
        lambda q, k, v: flex_attention(q, k, v, return_aux=AuxRequest(max_scores=True)),
        lambda q, k, v: flex_attention(q, k, v, block_mask=short[:, :, 0]),
    ):
        with pytest.raises(Exception) as want:
            fn(q.clone(), k, v)
        framesmith.reset()
        with pytest.raises(type(want.value)) as got:
            framesmith.compile(fn)(q.clone(), k, v)
        assert str(got.value) == str(want.value)


def test_under_vmap_torch_has_the_word() -> None:
    compiled = framesmith.compile(lambda q: torch.vmap(lambda one: flex_attention(one, one, one))(q), fullgraph=True)
    with pytest.raises(Exception, match=r"\[flex-attention-refused\]"):
        compiled(torch.randn(2, 1, 2, 8, 16))
