"""Flex attention on the CPU: programs of score and mask functions, whose block masks are made before, and sdpa beside.

Predicted, of 8 heads, 1,024 queries and keys, 64 elements, causal: both matmuls of what is seen are 1.1 GFLOP, of which
the first row has torch's own time: the floor. Changed scores add a pass over each block of them, in the cache: 1.3
times the floor, and 2 to 3 times torch.compile's speed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

from benchmarks.harness.agreement import check, in_float64, tensors
from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.measuring import ROUNDS, measure
from benchmarks.harness.summary import print_summary
from benchmarks.harness.timing import Row, Step
from benchmarks.models.selection import Selection

Tensor = torch.Tensor
LENGTH, HEADS, DEPTH, WINDOW, CAP = 1024, 8, 64, 128, 20.0
#: Sums of a thousand terms that cancel: see `Case.scale`.
SCALE = 10.0

generator = torch.Generator().manual_seed(0)
SLOPES = torch.exp2(-torch.arange(1.0, HEADS + 1))
DOCUMENTS = torch.arange(LENGTH) // 200
RELATIVE = torch.randn(HEADS, 2 * LENGTH, generator=generator)
PREFIX = torch.tensor([100, 700])


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i - j < WINDOW)


def document(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (DOCUMENTS[i] == DOCUMENTS[j])


def prefix(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) | (j < PREFIX[b])


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score - SLOPES[h] * (i - j)


def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return CAP * torch.tanh(score / CAP)


def relative(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + RELATIVE[h, i - j + LENGTH]


@dataclass(frozen=True)
class Program:
    """A call of `flex_attention`; `settings` are those of both compilers."""

    name: str
    options: dict[str, Any]
    mask: Callable[..., Tensor] | None = None
    batch: int = 1
    shared: int = HEADS
    queries: int = LENGTH
    dtype: torch.dtype = torch.float32
    settings: dict[str, Any] = field(default_factory=dict)

    def function(self) -> Callable[..., object]:
        """The function of queries, keys and values."""
        options = dict(self.options)
        if self.mask is not None:
            made = flex.create_block_mask(self.mask, self.batch, None, self.queries, LENGTH, device="cpu")
            options["block_mask"] = made
        return lambda q, k, v: flex.flex_attention(q, k, v, **options)

    def inputs(self) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        sizes = (HEADS, self.queries), (self.shared, LENGTH), (self.shared, LENGTH)
        return tuple(torch.randn(self.batch, heads, length, DEPTH).to(self.dtype) for heads, length in sizes)


PROGRAMS = (
    Program("scores: slopes", {"score_mod": alibi}),
    Program("causal, slopes", {"score_mod": alibi}, causal),
    Program("sliding window", {}, window),
    Program("documents", {}, document),
    Program("causal, capped", {"score_mod": capped}, causal),
    Program("relative table", {"score_mod": relative}, causal),
    Program("grouped queries", {"enable_gqa": True}, causal, shared=2),
    Program("grouped queries, lse", {"enable_gqa": True, "return_aux": flex.AuxRequest(lse=True)}, causal, shared=2),
    Program("prefix, bfloat16", {}, prefix, batch=2, dtype=torch.bfloat16),
    Program("dynamic sizes", {"score_mod": alibi}, settings={"dynamic": True}),
    Program("decoding, slopes", {"score_mod": alibi}, batch=4, queries=1),
)


def prepare(program: Program, name: str) -> Step:
    """A candidate's step, called once and checked."""
    fn, inputs = program.function(), program.inputs()
    settings = {} if name == "eager" else {"fullgraph": True, **program.settings}
    step = torch.no_grad()(functools.partial(wrap(name, fn, **settings), *inputs))

    def eager(convert: Callable[[object], object]) -> list[Tensor]:
        with torch.no_grad():
            return tensors(fn(*map(convert, inputs)))

    check(tensors(step()), eager(lambda x: x), lambda: eager(in_float64), SCALE)
    return step


def floor() -> Step:
    """torch's attention without functions of scores."""
    q, k, v = PROGRAMS[1].inputs()
    return torch.no_grad()(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def run(selection: Selection | None = None) -> list[Row]:
    """All programs, and what they come to; before them torch's own attention, causal."""
    warnings.filterwarnings("ignore", module="torch.nn.attention")
    selection = selection or Selection()
    names, rounds = selection.among(available()), selection.rounds_or(ROUNDS)
    rows: list[Row] = []
    selection.keep(measure("torch's own, causal", ["eager"], lambda name: floor(), rounds=rounds))
    for program in PROGRAMS:
        found = measure(program.name, names, functools.partial(prepare, program), rounds=rounds)
        selection.keep(found)
        rows += found
    print_summary(rows)
    return rows
