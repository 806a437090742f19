"""A net of three blocks, each called through an activation checkpoint of some kind. Tests and a suite share them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

WIDTH, ROWS, BLOCKS = 16, 8, 3
MATMULS = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]

saved = functools.partial(checkpoint, use_reentrant=False)
How = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A residual block; one that `fails` raises behind its computations."""

    fails = False

    def __init__(self, width: int = WIDTH, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.narrow, self.dropout = nn.Linear(4 * width, width), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x + F.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))), self.dropout, self.training)
        if self.fails:
            raise RuntimeError(f"of {made.dim()} dimensions")
        return made


class Net(nn.Module):
    def __init__(self, how: How, width: int = WIDTH, blocks: int = BLOCKS, dropout: float = 0.1) -> None:
        super().__init__()
        self.blocks, self.how = nn.ModuleList(Block(width, dropout) for _ in range(blocks)), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.how(block, x)
        return x.sin()


def with_keys(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Keys and values computed outside, as from a cache, and given as a keyword and in a tuple."""
    keys, values = x.cos(), x.sin()

    def attend(x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor], *, scale: float) -> torch.Tensor:
        return block(torch.softmax(x @ past[0].t() * scale, -1) @ past[1])

    return saved(attend, x, (keys, values), scale=0.5)


def raising(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def fails(x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        raise ValueError(f"after {y.dim()}")

    try:
        return saved(fails, x)
    except ValueError as error:
        return saved(block, x) + len(str(error))


def in_bfloat16(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return saved(block, x)


def given_back(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The argument itself and a view of it are results of a reentrant checkpoint."""
    new, same, turned = checkpoint(lambda y: (block(y), y, y.t()), x.cos(), use_reentrant=True)
    return new * same + turned.t()


PROGRAMS: dict[str, How] = {
    "non-reentrant": lambda block, x: saved(block, x),
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "reentrant, arguments given back": given_back,
    "nested": lambda block, x: saved(lambda y: saved(block, y.cos()).tanh() * y, x),
    "one in every kind": lambda block, x: saved(lambda y: checkpoint(block, y * 2, use_reentrant=True), x),
    "selective": lambda block, x: saved(
        block, x, context_fn=functools.partial(create_selective_checkpoint_contexts, MATMULS)
    ),
    "closure": lambda block, x: saved(lambda: block(x) * x.tanh()),
    "keys and values": with_keys,
    "error in the function": raising,
    "autocast around": in_bfloat16,
    "autocast inside": lambda block, x: saved(torch.autocast("cpu", torch.bfloat16)(lambda y: block(y)), x),
    "no rng": lambda block, x: saved(lambda y: block.narrow(block.wide(y)), x, preserve_rng_state=False),
    "result changed": lambda block, x: saved(lambda y: block(y).exp(), x * 0.1).mul_(0.5),
    "without early stop": lambda block, x: saved(block, x, early_stop=False, determinism_check="none"),
    "some of them": lambda block, x: block(saved(block, x)),
}
