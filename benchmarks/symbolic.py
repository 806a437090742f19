"""Dispatch with symbolic shapes: one compiled entry, called with sizes that differ from call to call.

`framesmith.compile` refuses dynamic=True still, so that our side is built by hand of the parts that it will use:
torch's ShapeEnv runs the function on symbolic fakes, `framesmith_guards.torch_adapter.shape_guards` turns what it
assumed into SHAPE guards beside TENSOR_MATCHes with open sizes, and `framesmith_frames` dispatches. Torch's side is
`torch.compile(dynamic=True)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import framesmith_frames
from benchmarks.dispatch import Precomputed, check_graphs, compare_in_inference, compilers, fresh_start
from benchmarks.harness import Row
from framesmith_guards import (
    CheckProgram,
    Guard,
    LocalSource,
    TensorSpec,
    compile_guards,
    new_fake_mode,
    state_guards,
)
from framesmith_guards.torch_adapter import shape_guards, to_torch, torch_tracing

SIZES = (6, 10, 17)
OUTPUTS = (torch.zeros(()),)


def doubled_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Relates two sizes: y has twice as many rows as x. x has more than four."""
    if x.shape[0] > 4:
        x = x.relu()
    return torch.cat([x, x]) + y


def compiled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In place of the graph."""
    return OUTPUTS


def residual(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What dynamo generates: the graph is called, one output returned."""
    return compiled(x, y)[0]


def arguments(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of `doubled_rows`."""
    return torch.randn(rows, 4), torch.randn(2 * rows, 4)


def program_for(*reals: torch.Tensor) -> CheckProgram:
    """The guards of `doubled_rows` with its first dimensions symbolic, as a ShapeEnv gives them."""
    env = ShapeEnv()
    mode = new_fake_mode(env)
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    sources = [LocalSource(name) for name in ("x", "y")]
    fakes = [
        mode.from_tensor(real, source=to_torch(source), symbolic_context=context)
        for source, real in zip(sources, reals, strict=True)
    ]
    with mode, torch_tracing(mode):
        doubled_rows(*fakes)
    guards = shape_guards(env, zip(sources, fakes, strict=True))
    for source, real, fake in zip(sources, reals, fakes, strict=True):
        guards.append(Guard(source, "TENSOR_MATCH", TensorSpec.of(real, like=fake)))
    return compile_guards([*guards, *state_guards()], ("x", "y"))


def build() -> Callable[..., torch.Tensor]:
    """`doubled_rows` behind one entry for all sizes."""

    def answer(frame: framesmith_frames.FrameInfo) -> Any:
        return framesmith_frames.Entry(program_for(*frame.locals), residual.__code__, complete=True)

    return framesmith_frames.CompiledFunction(doubled_rows, answer)


def run() -> list[Row]:
    """Three calls of different sizes each step. RuntimeError if a candidate compiles more than one entry."""
    fresh_start()
    calls = [arguments(rows) for rows in SIZES]
    backend = Precomputed()
    functions = {"torch.compile": torch.compile(doubled_rows, dynamic=True, backend=backend), "framesmith": build()}
    steps = {name: (lambda fn=functions[name]: [fn(*call) for call in calls]) for name in compilers()}
    rows = compare_in_inference("symbolic shapes, three calls, dispatch alone", steps)
    if "torch.compile" in steps:
        check_graphs("symbolic shapes", {"torch.compile": backend})
    stats = framesmith_frames.stats(doubled_rows)
    if stats.misses != 1:
        raise RuntimeError(f"symbolic shapes: the guards refused {stats.misses - 1} calls after the first")
    return rows
