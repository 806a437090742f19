"""Tensors, drawn indices, and the comparison with eager mode for the tests of indexing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from graphs.tracing import trace
from hypothesis import strategies as st

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.target import CPU

Tensor = torch.Tensor


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool)


LEFT_TO_ATEN = ("a view needed as a tensor", "indices in another order in memory")


def compiled(function: Callable[..., Any], *inputs: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """The function in kernels alone."""
    gm = trace(function, inputs)
    assert not [note for note in lower_graph(gm, CPU).notes.values() if not note.startswith(LEFT_TO_ATEN)]
    call = CpuBackend().compile(gm, inputs)
    return lambda *values: call(list(values))


def agree(function: Callable[..., Any], *inputs: Tensor) -> None:
    wanted = in_turn(function, *inputs)
    found = compiled(function, *inputs)(*inputs)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert (one.dtype, one.shape, steps(one)) == (other.dtype, other.shape, steps(other))
        assert torch.equal(one, other)


def in_turn(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """The result of eager mode on one thread: several ones replace elements in no order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*inputs)
    finally:
        torch.set_num_threads(threads)


def steps(tensor: Tensor) -> list[int]:
    """The strides of the dimensions that have several elements."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def filled(shape: tuple[int, ...], dtype: torch.dtype, gaps: bool = False) -> Tensor:
    count = torch.Size(shape).numel()
    value = (torch.arange(count) * 37 % 101 - (0 if dtype == torch.uint8 else 50)).to(dtype).reshape(shape)
    if not gaps:
        return value
    wider = torch.zeros((*shape[:-1], 2 * shape[-1] + 1), dtype=dtype).transpose(0, -1).contiguous().transpose(0, -1)
    wider[..., 1::2] = value
    return wider[..., 1::2]


SIZES = st.integers(1, 5) | st.sampled_from((17, 40))


SHAPES = st.lists(SIZES, min_size=1, max_size=3).map(tuple)


def drawn_indices(draw: st.DrawFn, shape: tuple[int, ...], low: int, high: int, narrow: bool = True) -> Tensor:
    seed = draw(st.integers(0, 1000))
    dtype = draw(st.sampled_from((torch.int64, torch.int32))) if narrow else torch.int64
    found = torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return found.t().contiguous().t() if len(shape) == 2 and draw(st.booleans()) else found
