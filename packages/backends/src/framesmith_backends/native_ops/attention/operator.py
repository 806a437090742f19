"""Attention of float32 on the CPU by machine code of our own.

`framesmith_backends::attention(query, key, value, is_causal, mask, scale)` is the operator that plans call, with the
two results of ATen's kernel: the means of values, and the logarithms of sums that its backward pass takes.
See docs/design/kernels/0022-attention.md.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from framesmith_backends.ir.operators import CPU_ATTENTION
from framesmith_backends.launch.background import begin
from framesmith_backends.launch.once import once
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
from framesmith_backends.native_ops.base import operator

#: Matmuls of two numbers that are worth a call from Python, also those of few queries; of each thread, at least.
FEWEST, FEWEST_OF_FEW, GRAIN = 1 << 12, 1 << 15, 1 << 16
MOST_THREADS = 1 << 16

#: A tensor's sizes, and how far apart its elements are.
Laid = tuple[tuple[int, ...], tuple[int, ...]]


def laid(x: torch.Tensor) -> Laid:
    """How a tensor lies in memory."""
    return x.shape, x.stride()


def why_not_ours(query: Laid, key: Laid, value: Laid, mask: Laid | None) -> str | None:
    """Why ATen's kernel is to be called for these float32 tensors, or None."""
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
    """Whether a mask is one of these, or of the last two, or the same along some of them."""
    if len(mask) not in (2, 4):
        return False
    return all(have in (1, want) for have, want in zip(reversed(mask), reversed(scores), strict=False))


class Code:
    """Machine code of attention, for blocks of these widths, begun here; called without the interpreter's lock."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        from framesmith_backends.launch.llvm.engine import engine_of, machine

        target = machine().target
        self.engine: Future[Any] = begin(lambda: engine_of("attention", render_attention(target, widths)))

    @functools.cached_property
    def run(self) -> Callable[..., int]:
        """Waits for the code where it is not there yet."""
        kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float)
        address = self.engine.result().get_function_address("fs_attention")
        return ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(address)


_Words: Any = ctypes.c_int64 * len(JOB)


@once
def code(widths: tuple[int, ...]) -> Code:
    """Begun where it is first asked for; again where that has failed."""
    begun = Code(widths)
    if begun.engine.done():
        begun.engine.result()

    def forget(done: Future[Any]) -> None:
        if done.exception() is not None:
            code.forget(widths)
            call_of.cache_clear()

    begun.engine.add_done_callback(forget)
    return begun


@functools.cache
def shape() -> Shape:
    """The cut for this processor."""
    from framesmith_backends.launch.llvm.engine import machine

    return shape_of(machine().target)


class Call(NamedTuple):
    """What is the same for all tensors that lie alike: `words` is a job without addresses."""

    code: Code
    words: bytes
    tasks: int
    threads: int
    lse: Laid
    scale: float


@functools.lru_cache(maxsize=512)
def call_of(query: Laid, key: Laid, value: Laid, mask: Laid | None, is_causal: bool) -> Call | None:
    """How our own code is called for float32 tensors of the CPU that lie so; None where ATen's is to be called."""
    if why_not_ours(query, key, value, mask) is not None:
        return None
    (batch, heads, queries, depth), (_, shared, keys, _) = query[0], key[0]
    steps = () if mask is None else tuple(0 if size == 1 else step for size, step in zip(*mask, strict=True))
    masked = (0, 0, 0, 0, *steps)[-4:]
    out = torch.empty_like(torch.empty_strided(*query, device="meta")).stride()
    lse = ((batch, heads, queries), (queries * heads, 1, heads))
    strides = (*query[1][:3], *key[1][:3], *value[1][:3], *masked, *out[:3], *lse[1], 0, 0)
    job = _Words(*[0] * POINTERS, heads, heads // shared, queries, keys, depth, is_causal, *strides)
    threads = min(-(-batch * heads * queries * keys * depth // GRAIN), MOST_THREADS)
    tasks = batch * heads * blocks_of(shape(), queries)
    return Call(code(widths_of(shape(), queries)), bytes(job), tasks, threads, lse, depth**-0.5)


def _are_floats(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    return query.dtype == key.dtype == value.dtype == (query.dtype if mask is None else mask.dtype) == torch.float32


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, mask: torch.Tensor | None,
              scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What each query attends to, and the logarithm of the sum of its weights; in memory as ATen gives them."""
    call = None
    # ATen hides keys before it scales: with a scale of zero a hidden one is NaN, with a negative one infinite.
    hides_all = not is_causal or scale is None or scale > 0
    if hides_all and _are_floats(query, key, value, mask):
        masked = None if mask is None else laid(mask)
        call = call_of(laid(query), laid(key), laid(value), masked, is_causal)
    if call is None:
        out, lse = CPU_ATTENTION(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
        return out, lse
    made, words, tasks, threads, lse_laid, usual = call
    out, lse = torch.empty_like(query), torch.empty_strided(*lse_laid, dtype=torch.float32, device="cpu")
    job = _Words.from_buffer_copy(words)
    places = (query, key, value, mask, out, lse)
    job[:POINTERS] = [0 if one is None else one.data_ptr() for one in places]
    if made.run(job, tasks, threads, usual if scale is None else scale):
        raise MemoryError("attention found no memory to work in")
    return out, lse


def _shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, mask: torch.Tensor | None,
            scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    batch, heads, queries, _ = query.shape
    lse = query.new_empty((batch, queries, heads), dtype=torch.float32).transpose(1, 2)
    return torch.empty_like(query), lse


ATTENTION = operator(
    "attention(Tensor query, Tensor key, Tensor value, bool is_causal, Tensor? mask, float? scale) -> (Tensor, Tensor)",
    attention, _shapes,
)  # fmt: skip
