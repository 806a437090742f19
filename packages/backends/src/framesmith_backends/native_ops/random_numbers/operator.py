"""Random numbers of the CPU's Mersenne Twister, drawn many at a time where ATen draws them one by one.

`framesmith_backends::drawn_mask(like, p)`, `::redrawn_mask(state, size, p)` and `::drawn_uniform(size)` are the
operators that plans call.

Note [Drawing]: the generator's state is copied, advanced by machine code, and put back. Another thread may draw by ATen
meanwhile, and would draw the same numbers: so the state is compared before it is put back, and if it has changed all is
drawn again. ATen draws this stream on processors without a library for it (AMD's, ARM's): whether it does so here is
found by drawing, once. See docs/design/kernels/0020-rng-streams.md.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_aten.tracing import redrawn
from framesmith_backends.native_ops.base import CodeCache, operator
from framesmith_backends.native_ops.random_numbers.mersenne import DOUBLE_BITS, FLOATS, JOB, MASK, render_draws

#: Elements below which ATen takes less time than copying the state twice.
FEWEST = 2048
#: Draws that other threads disturbed before ATen draws.
TRIALS = 3

DRAWS: CodeCache[None] = CodeCache("draws", render_draws, {MASK: (), FLOATS: ()})


def fill_mask(state: torch.Tensor, out: torch.Tensor, p: float) -> None:
    """Bools that are true with probability `p`, 0 <= p <= 1; the state, a generator's, is advanced."""
    threshold = math.ceil(p * 2.0**DOUBLE_BITS)
    DRAWS[None].entries[MASK](JOB.ordered(state.data_ptr(), out.data_ptr(), out.numel(), threshold))


def fill_uniform(state: torch.Tensor, out: torch.Tensor) -> None:
    """Float32 numbers from 0 to below 1; the state, a generator's, is advanced."""
    DRAWS[None].entries[FLOATS](JOB.ordered(state.data_ptr(), out.data_ptr(), out.numel(), 0))


@functools.cache
def matches_aten() -> bool:
    """Whether ATen draws the same numbers in this process."""
    generator = torch.Generator("cpu").manual_seed(20)
    new: Any = functools.partial(torch.empty, 1501, device="cpu")
    new(dtype=torch.float32).uniform_(generator=generator)  # an odd number
    state = generator.get_state()
    masks = (new(dtype=torch.bool).bernoulli_(0.3, generator=generator), new(dtype=torch.bool))
    floats = (new(dtype=torch.float32).uniform_(generator=generator), new(dtype=torch.float32))
    fill_mask(state, masks[1], 0.3)
    fill_uniform(state, floats[1])
    return torch.equal(*masks) and torch.equal(*floats) and torch.equal(state, generator.get_state())


_drawing = threading.Lock()


def _after_fork() -> None:
    """Replace the lock: another thread's would stay held in the child."""
    global _drawing
    _drawing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _drawn(fill: Callable[[torch.Tensor], None]) -> bool:
    """Whether the default generator was advanced by `fill`; see Note [Drawing]."""
    generator = torch.default_generator
    with _drawing:
        for _ in range(TRIALS):
            state = generator.get_state()
            before = _bytes(state)
            fill(state)
            if _bytes(generator.get_state()) == before:
                generator.set_state(state)
                return True
    return False


def _bytes(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())


def drawn_mask(like: torch.Tensor, p: float) -> torch.Tensor | None:
    """Return contiguous bools of the tensor's shape: where `torch.bernoulli` of that probability would return 1."""
    if like.numel() < FEWEST or not 0.0 <= p <= 1.0:
        return None
    out = torch.empty(like.shape, dtype=torch.bool, device="cpu")
    return out if _drawn(lambda state: fill_mask(state, out, p)) else None


def redrawn_mask(state: torch.Tensor, size: Sequence[int], p: float) -> torch.Tensor | None:
    """Return the mask that a generator of this state draws; no generator is advanced."""
    if math.prod(size) < FEWEST or not 0.0 <= p <= 1.0:
        return None
    out = torch.empty(size, dtype=torch.bool, device="cpu")
    fill_mask(state.clone(), out, p)
    return out


def drawn_uniform(size: Sequence[int]) -> torch.Tensor | None:
    """Return the numbers of `torch.rand` in float32."""
    if math.prod(size) < FEWEST:
        return None
    out = torch.empty(size, dtype=torch.float32, device="cpu")
    return out if _drawn(lambda state: fill_uniform(state, out)) else None


_SEEDED = (torch.Tag.nondeterministic_seeded,)
DRAWN_MASK = operator(
    "drawn_mask(Tensor like, float p) -> Tensor", drawn_mask,
    aten=lambda like, p: torch.empty(like.shape, dtype=torch.bool, device="cpu").bernoulli_(p), tags=_SEEDED,
)  # fmt: skip
REDRAWN_MASK = operator(
    "redrawn_mask(Tensor state, SymInt[] size, float p) -> Tensor", redrawn_mask, aten=redrawn.redrawn_mask()
)
DRAWN_UNIFORM = operator(
    "drawn_uniform(SymInt[] size) -> Tensor", drawn_uniform,
    aten=lambda size: torch.empty(size, dtype=torch.float32, device="cpu").uniform_(),
    key="CompositeExplicitAutograd", tags=_SEEDED,
)  # fmt: skip
