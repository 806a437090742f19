"""Numbers of a CUDA generator: the CPU's, from a seed that the generator's state decides.

They are not those of a GPU, but they repeat with a state, move it on, and follow it through replays of a graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: The operator whose own kernel is launched, and not run, to move a generator on: the runtime keeps the state given.
DRAWING = "cauchy_"


@dataclass(frozen=True)
class Drawn:
    """A place in a generator's stream: numbers, or during a capture the addresses of numbers that replays set."""

    seed: int
    offset: int
    within: int
    captured: bool

    def generator(self) -> torch.Generator:
        seed, offset = self.seed, self.offset
        if self.captured:
            seed, offset = (ctypes.c_int64.from_address(at).value for at in (seed, offset))
        mixed = (seed * 0x9E3779B97F4A7C15 + offset + self.within) & (2**63 - 1)
        return torch.Generator().manual_seed(mixed)

    def run(self, op: Any, kernel: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call the CPU's operator with numbers from here."""
        names = [a.name for a in op._schema.arguments]
        if "generator" in names:
            at = names.index("generator")
            if at < len(args):
                return kernel(*args[:at], self.generator(), *args[at + 1 :], **kwargs)
            return kernel(*args, **{**kwargs, "generator": self.generator()})
        before = torch.default_generator.get_state()
        try:
            torch.default_generator.manual_seed(self.generator().initial_seed())
            return kernel(*args, **kwargs)
        finally:
            torch.default_generator.set_state(before)


class Generators:
    """Access to torch's CUDA generators; to be made before their operators are replaced."""

    def __init__(self, runtime: ctypes.CDLL) -> None:
        self.runtime = runtime
        self.kernel = torch.library.get_kernel(f"aten::{DRAWING}", "CUDA")

    def draw(self, generator: torch.Generator | None) -> Drawn:
        scratch = torch.empty(4, device="cuda")
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        state = (ctypes.c_uint64 * 4)()
        self.runtime.sim_begin_draw()
        try:
            self.kernel.call_boxed(keys, scratch, 0.0, 1.0, generator=generator)
        finally:
            count = self.runtime.sim_end_draw(state)
        if count != 1:
            raise RuntimeError(f"{DRAWING} launches {count} kernels of random numbers, not one")
        return Drawn(state[0], state[1], state[2], bool(state[3] & 1))
