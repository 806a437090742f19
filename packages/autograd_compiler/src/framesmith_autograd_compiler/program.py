"""A runnable backward pass: segments compiled for the values they get, and opaque calls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from framesmith_aten.contract import OnError
from framesmith_autograd_compiler import calls
from framesmith_autograd_compiler.accumulation import Accumulator, Write
from framesmith_autograd_compiler.errors import warn_of_failure
from framesmith_autograd_compiler.explanation import CapturedStep, accumulations_joined, explain_steps, name_of
from framesmith_autograd_compiler.schedule import Accumulation, Opaque, Segment, last_uses, schedule
from framesmith_autograd_compiler.segments.runner import CompilerFn, SegmentRunner
from framesmith_guards import CompileId

_PASSES = itertools.count()


@dataclass
class Program:
    """The recorded `graph`, its steps, and its compiled segments.

    `run(inputs, sizes, scalars, hooks, packed, numbers)` runs the pass and returns the gradients asked for by name
    (None for a leaf, whose gradient is in its `.grad`). `modules` lists the compiled ATen graphs, `reasons` why
    segments run call by call; `on_failure` is called where that is the compiler's fault. `compile_id` names the
    compilation, `hooks` the hooks and Functions of the first pass. One thread at a time runs a program: the engine's
    gate admits no two captured passes.
    """

    graph: fx.Graph
    compiler_fn: CompilerFn
    on_failure: OnError = warn_of_failure
    reasons: list[str] = field(default_factory=list)
    compile_id: CompileId = field(default_factory=lambda: CompileId(backward=next(_PASSES)))
    hooks: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.steps = schedule(self.graph)
        # Other user code gets gradients before they are accumulated.
        after = (calls.call_leaf_hook, calls.call_unpack_hook)
        self._exclusive = all(step.node.target in after for step in self.steps if isinstance(step, Opaque))
        self._last_uses = last_uses(self.graph, self.steps)
        self._writes = {at: Write.of(step.node) for at, step in enumerate(self.steps) if isinstance(step, Accumulation)}
        self._runners = {at: self._runner(at, step) for at, step in enumerate(self.steps) if isinstance(step, Segment)}
        placeholders = (node for node in self.graph.nodes if node.op == "placeholder")
        self._placeholders = [(node, calls.PASS_INPUT.of(node)) for node in placeholders]
        self._result: Any = next(iter(reversed(self.graph.nodes))).args[0]

    def _runner(self, number: int, segment: Segment) -> SegmentRunner:
        taken = {*segment.inputs}
        released = [node for node in self._last_uses[number] if node in taken]
        return SegmentRunner(
            segment, number, released, self.compiler_fn, self.on_failure, self.compile_id, self.reasons
        )

    def note(self, reason: str) -> None:
        """Add a reason, once."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def explain(self) -> list[CapturedStep]:
        """Return what is compiled, what runs call by call, and what stays opaque and why, in the order of the pass."""
        uncompiled = (at for at, runner in self._runners.items() if not runner.modules)
        return [*explain_steps(self.steps, uncompiled, self.hooks or ())]

    def __str__(self) -> str:
        lines = [f"[{self.compile_id}] backward pass of {len(self.steps)} steps"]
        return "\n    ".join([*lines, *accumulations_joined(self.explain()), *self.reasons])

    @property
    def modules(self) -> list[fx.GraphModule]:
        """The compiled ATen graphs, segment by segment."""
        return [module for number in sorted(self._runners) for module in self._runners[number].modules]

    def run(
        self,
        inputs: list[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[float],
        hooks: Sequence[Any],
        packed: Sequence[Any],
        numbers: Sequence[float] = (),
    ) -> list[Any]:
        """Run one backward pass; `numbers` are the floats that were lifted out of the graph.

        `inputs`, which is emptied, holds the only references to saved tensors: see Note [Liveness].
        """
        if self.hooks is None:
            self.hooks = tuple(map(name_of, hooks))
        env = self._bound(
            {"input": inputs, "size": sizes, "scalar": scalars, "hook": hooks, "packed": packed, "number": numbers}
        )
        accumulator = Accumulator(self._exclusive, inputs)
        inputs.clear()
        with torch.no_grad():
            for number, step in enumerate(self.steps):
                write = self._writes.get(number)
                if write is not None:
                    accumulator.run(write, env)
                elif isinstance(step, Segment):
                    self._runners[number].run(env)
                else:
                    env[step.node] = calls.call_node(step.node, env)
                for node in self._last_uses[number]:
                    env.pop(node, None)
        return [None if node is None else env[node] for node in self._result]

    def _bound(self, sources: dict[calls.InputKind, Sequence[Any]]) -> calls.Env:
        return {node: sources[source.kind][source.index] for node, source in self._placeholders}
