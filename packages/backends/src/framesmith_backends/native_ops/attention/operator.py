"""Attention of float32 on the CPU by machine code of our own.

`framesmith_backends::attention(query, key, value, is_causal, mask, scale)` is the operator that plans call, with the
two results of ATen's kernel: P·V, and the logarithms of sums that its backward pass takes.
See docs/design/kernels/0022-attention.md.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from framesmith_backends.ir.ops import CPU_ATTENTION
from framesmith_backends.native_ops.attention.module import render_attention
from framesmith_backends.native_ops.attention.shape import (
    FEW,
    JOB,
    MOST_DEPTH,
    POINTERS,
    Shape,
    blocks_of,
    shape_of,
    widths_of,
)
from framesmith_backends.native_ops.base import EXTENT, THREADS, CodeCache, operator, processor

#: Multiplications of each of the two matmuls below which ATen is faster, also of few queries, and those of each thread.
FEWEST, FEWEST_OF_FEW, GRAIN = 1 << 12, 1 << 15, 1 << 16
MOST_THREADS = 1 << 16

#: A tensor's sizes and strides.
Layout = tuple[tuple[int, ...], tuple[int, ...]]

#: By the widths of blocks of queries.
CODE: CodeCache[tuple[int, ...]] = CodeCache("attention", render_attention, {"fs_attention": (EXTENT, THREADS)})


def layout(x: torch.Tensor) -> Layout:
    """The sizes and strides of a tensor."""
    return x.shape, x.stride()


def why_aten(query: Layout, key: Layout, value: Layout, mask: Layout | None) -> str | None:
    """Why ATen computes attention of these float32 tensors, or None."""
    if any(len(sizes) != 4 or steps[3] != 1 for sizes, steps in (query, key, value)):
        return "no contiguous heads"
    batch, heads, queries, depth = query[0]
    shared, keys = key[0][1:3]
    if key[0] != (batch, shared, keys, depth) or value[0] != key[0] or not shared or heads % shared:
        return "keys and values that do not fit"
    if depth > MOST_DEPTH:
        return "large heads"
    if 0 in (batch, heads, queries, depth, keys):
        return "nothing to attend to"
    if batch * heads * queries * keys * depth < (FEWEST_OF_FEW if queries <= FEW else FEWEST):
        return "too few elements"
    if mask is not None and not _fits(mask[0], (batch, heads, queries, keys)):
        return "a mask that does not fit"
    return None


def _fits(mask: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    """Whether a mask of two or four dimensions broadcasts to the scores."""
    if len(mask) not in (2, 4):
        return False
    return all(have in (1, want) for have, want in zip(reversed(mask), reversed(scores), strict=False))


@functools.cache
def shape() -> Shape:
    """The tiling for this processor."""
    return shape_of(processor())


class Call(NamedTuple):
    """A call of tensors of one layout: `words` is a job without addresses, of scale 1 / sqrt(depth)."""

    widths: tuple[int, ...]
    words: bytes
    tasks: int
    threads: int
    lse: Layout


@functools.lru_cache(maxsize=512)
def call_of(query: Layout, key: Layout, value: Layout, mask: Layout | None, is_causal: bool) -> Call | None:
    """The native call for float32 tensors of the CPU of these layouts; None where ATen is to be called."""
    if why_aten(query, key, value, mask) is not None:
        return None
    (batch, heads, queries, depth), (_, shared, keys, _) = query[0], key[0]
    steps = () if mask is None else tuple(0 if size == 1 else step for size, step in zip(*mask, strict=True))
    out = torch.empty_like(torch.empty_strided(*query, device="meta")).stride()
    lse = ((batch, heads, queries), (queries * heads, 1, heads))
    strides = {"query": query[1], "key": key[1], "value": value[1], "out": out, "lse": lse[1]}
    words = {f"{name}_{dim}": step for name, of in strides.items() for dim, step in zip(_DIMS[:3], of, strict=False)}
    words |= {f"mask_{dim}": step for dim, step in zip(_DIMS, (0, 0, 0, 0, *steps)[-4:], strict=True)}
    job = JOB(heads=heads, times=heads // shared, queries=queries, keys=keys, depth=depth, causal=int(is_causal),
              scale=depth**-0.5, **words)  # fmt: skip
    threads = min(-(-batch * heads * queries * keys * depth // GRAIN), MOST_THREADS)
    tasks = batch * heads * blocks_of(shape(), queries)
    return Call(widths_of(shape(), queries), bytes(job), tasks, threads, lse)


_DIMS = ("batch", "head", "row", "column")
_FAILED = JOB.index["failed"]


def _are_floats(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    return query.dtype == key.dtype == value.dtype == (query.dtype if mask is None else mask.dtype) == torch.float32


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, mask: torch.Tensor | None,
              scale: float | None) -> tuple[torch.Tensor, torch.Tensor] | None:  # fmt: skip
    """P·V, and the logarithm of each query's sum of powers, with ATen's strides; None where ATen is to be called."""
    # ATen hides keys before it scales: with a scale of zero a hidden one is NaN, with a negative one infinite.
    if (is_causal and scale is not None and scale <= 0) or not _are_floats(query, key, value, mask):
        return None
    call = call_of(layout(query), layout(key), layout(value), None if mask is None else layout(mask), is_causal)
    if call is None:
        return None
    widths, words, tasks, threads, lse_layout = call
    out, lse = torch.empty_like(query), torch.empty_strided(*lse_layout, dtype=torch.float32, device="cpu")
    job = JOB.copy(words)
    job[:POINTERS] = [0 if one is None else one.data_ptr() for one in (query, key, value, mask, out, lse)]
    if scale is not None:
        JOB.set_float(job, "scale", scale)
    CODE[widths].run(job, tasks, threads)
    if job[_FAILED]:
        raise MemoryError("attention found no memory to work in")
    return out, lse


def _by_aten(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, mask: torch.Tensor | None,
             scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = CPU_ATTENTION(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
    return out, lse


def _shapes(query: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, queries, _depth = query.shape
    lse = query.new_empty((batch, queries, heads), dtype=torch.float32).transpose(1, 2)
    return torch.empty_like(query), lse


ATTENTION = operator(
    "attention(Tensor query, Tensor key, Tensor value, bool is_causal, Tensor? mask, float? scale) -> (Tensor, Tensor)",
    attention, _shapes, _by_aten,
)  # fmt: skip
