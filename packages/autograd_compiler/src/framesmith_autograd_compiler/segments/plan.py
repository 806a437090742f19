"""The steps of a pass whose hooks have certain code: segments compiled for the values they get, and opaque calls.

Which user code is traced depends on the code. One graph is the pass of many models: the plan of one whose hooks have
side effects says nothing of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import fx

from framesmith_aten.contract import OnError
from framesmith_autograd_compiler import calls
from framesmith_autograd_compiler.accumulation import Accumulator, Write
from framesmith_autograd_compiler.schedule import Accumulation, Opaque, Segment, Step, last_uses, schedule
from framesmith_autograd_compiler.segments.runner import CompilerFn, SegmentRunner
from framesmith_autograd_compiler.segments.user_code import TRACEABLE, TraceCall, Untraced, code_of, user_of
from framesmith_guards import CompileId

#: User code that gets gradients after they are accumulated, or none.
_WITHOUT_GRADIENTS: Final = (calls.call_leaf_hook, calls.call_unpack_hook)


@dataclass
class Plan:
    """The `steps` of a recorded pass, and its compiled segments; for the rest see `program.Program`.

    `untraced`: calls of user code that stay opaque, with the reason where it was tried. Without `trace_call`, all do.
    """

    graph: fx.Graph
    compiler_fn: CompilerFn
    on_failure: OnError
    trace_call: TraceCall | None
    compile_id: CompileId
    reasons: list[str]
    untraced: dict[fx.Node, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    runners: dict[int, SegmentRunner] = field(default_factory=dict)
    _open_calls: set[fx.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._make(0)

    def _make(self, done: int) -> None:
        """Plan the steps; the first `done` of them are as before."""
        traceable = [] if self.trace_call is None else [node for node in self.graph.nodes if node.target in TRACEABLE]
        self.steps = schedule(self.graph, {*traceable} - self.untraced.keys(), self._open_calls)
        opaque = (step for step in self.steps if isinstance(step, Opaque))
        self._exclusive = all(step.node.target in _WITHOUT_GRADIENTS for step in opaque)
        self._last_uses = last_uses(self.graph, self.steps)
        self._writes = dict(_grouped_writes(self.steps))
        known = {at: runner for at, runner in self.runners.items() if at < done}
        segments = ((at, step) for at, step in enumerate(self.steps) if isinstance(step, Segment) and at >= done)
        self.runners = known | {at: self._runner(at, step) for at, step in segments}

    def _runner(self, number: int, segment: Segment) -> SegmentRunner:
        taken = {*segment.inputs}
        return SegmentRunner(
            segment,
            number,
            [node for node in self._last_uses[number] if node in taken],
            self.compiler_fn,
            self.on_failure,
            self.compile_id,
            self.reasons,
            self.trace_call,
            self._open_calls,
        )

    def run(self, env: calls.Env, inputs: list[Any]) -> None:
        """Run the pass; `inputs`, which is emptied, are the tensors in the environment."""
        accumulator = Accumulator(self._exclusive, inputs)
        inputs.clear()
        number = 0
        while number < len(self.steps):
            try:
                number = self._run_step(number, env, accumulator)
            except Untraced as found:
                self._leave_untraced(number, found, env)
                accumulator.exclusive = self._exclusive

    def _run_step(self, number: int, env: calls.Env, accumulator: Accumulator) -> int:
        """Run a step, and writes to `.grad` that follow one; return the number of the next step."""
        step, writes = self.steps[number], self._writes.get(number)
        if writes is not None:
            after = number + len(writes)
            accumulator.run(writes, env, self._last_uses[number:after])
            return after
        if isinstance(step, Segment):
            self.runners[number].run(env)
        else:
            env[step.node] = calls.call_node(step.node, env)
        for node in self._last_uses[number]:
            env.pop(node, None)
        return number + 1

    def _leave_untraced(self, number: int, found: Untraced, env: calls.Env) -> None:
        """Plan again from a step on, without calls that cannot be traced, and others of the same code."""
        for node, why in found.why.items():
            if why is None:
                self._open_calls.add(node)
                continue
            self.untraced[node] = why
            code = code_of(env.get(user_of(node)))
            for other in self.graph.nodes:
                if other.target is node.target and code_of(env.get(user_of(other))) is code:
                    self.untraced.setdefault(other, why)
        self._make(number)


def _grouped_writes(steps: Sequence[Step]) -> Iterator[tuple[int, list[Write]]]:
    """Yield the writes to `.grad` that follow each other, with the number of the first step of each group."""
    numbered = enumerate(steps)
    for is_write, group in itertools.groupby(numbered, lambda item: isinstance(item[1], Accumulation)):
        found = [(number, step) for number, step in group if isinstance(step, Accumulation)]
        if is_write:
            yield found[0][0], [Write.of(step.node) for _, step in found]
