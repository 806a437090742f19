"""Random numbers of the CPU's generator, drawn many at a time: those that ATen draws one by one.

`framesmith_backends::drawn_mask(like, p)` and `::drawn_uniform(size)` are the operators that plans call.

Note [Drawing]: the generator's state is taken, advanced by machine code, and put back. Another thread may draw from it
meanwhile by ATen, and would draw the same numbers: so it is looked at again before, and where it has moved on all is
drawn anew. ATen draws like this on processors for which it has no library that does (AMD's, ARM's): whether it is so
here is found out once, by drawing. See docs/design/kernels/0020-rng-streams.md.
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

from framesmith_backends.native_ops.base import operator
from framesmith_backends.native_ops.random_numbers.mersenne import DOUBLE_BITS, FLOAT_NAMES, MASK_NAMES, render_draws

#: Below this many elements ATen's call takes less time than taking the state and putting it back.
FEWEST = 2048
#: How often all is drawn anew where other threads draw, before it is left to ATen.
TRIALS = 3

_KINDS: dict[str, Any] = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64}


class Draws:
    """Machine code of `render_draws`; it is called without the interpreter's lock."""

    def __init__(self) -> None:
        from framesmith_backends.launch.llvm.engine import engine_of, machine

        self.engine = engine_of("draws", render_draws(machine().target))
        self.mask = self._function("fs_draw_mask", MASK_NAMES)
        self.floats = self._function("fs_draw_floats", FLOAT_NAMES)

    def _function(self, name: str, names: Sequence[str]) -> Callable[..., None]:
        kinds = [_KINDS[one.split()[0]] for one in names]
        return ctypes.CFUNCTYPE(None, *kinds)(self.engine.get_function_address(name))


@functools.cache
def draws() -> Draws:
    """Made at its first use."""
    return Draws()


def fill_mask(state: torch.Tensor, out: torch.Tensor, p: float) -> None:
    """Bools that are true with probability `p`, 0 <= p <= 1; the state, a generator's, is advanced."""
    threshold = math.ceil(p * 2.0**DOUBLE_BITS)
    draws().mask(state.data_ptr(), out.data_ptr(), out.numel(), threshold)


def fill_uniform(state: torch.Tensor, out: torch.Tensor) -> None:
    """Float32 numbers from 0 to below 1; the state, a generator's, is advanced."""
    draws().floats(state.data_ptr(), out.data_ptr(), out.numel())


@functools.cache
def are_atens() -> bool:
    """Whether these are the numbers that ATen draws in this process."""
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
    """A lock that another thread held stays held in the child, where that thread is not."""
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


def drawn_mask(like: torch.Tensor, p: float) -> torch.Tensor:
    """Contiguous bools of the tensor's shape: where `torch.bernoulli` of that probability would give 1."""
    out = torch.empty(like.shape, dtype=torch.bool, device="cpu")
    if out.numel() >= FEWEST and 0.0 <= p <= 1.0 and _drawn(lambda state: fill_mask(state, out, p)):
        return out
    return out.bernoulli_(p)


def drawn_uniform(size: Sequence[int]) -> torch.Tensor:
    """What `torch.rand` gives in float32."""
    out = torch.empty(size, dtype=torch.float32, device="cpu")
    if out.numel() >= FEWEST and _drawn(lambda state: fill_uniform(state, out)):
        return out
    return out.uniform_()


_SEEDED = (torch.Tag.nondeterministic_seeded,)
MASK = operator("drawn_mask(Tensor like, float p) -> Tensor", drawn_mask, tags=_SEEDED)
UNIFORM = operator(
    "drawn_uniform(SymInt[] size) -> Tensor", drawn_uniform, key="CompositeExplicitAutograd", tags=_SEEDED
)
