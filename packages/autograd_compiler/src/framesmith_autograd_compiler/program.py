"""A runnable backward pass: segments compiled for the values they get, and opaque calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from framesmith_aten.contract import OnError
from framesmith_autograd_compiler import calls
from framesmith_autograd_compiler.errors import warn_of_failure
from framesmith_autograd_compiler.explanation import CapturedStep, accumulations_joined, explain_steps, name_of
from framesmith_autograd_compiler.schedule import Step
from framesmith_autograd_compiler.segments.plan import Plan
from framesmith_autograd_compiler.segments.runner import CompilerFn
from framesmith_autograd_compiler.segments.user_code import TRACEABLE, TraceCall, code_of, user_of
from framesmith_guards import CompileId

_PASSES = itertools.count()

#: Combinations of the code of hooks and Functions that one pass is planned for.
MOST_PLANS: Final = 16


@dataclass
class Program:
    """The recorded `graph`, and its steps with compiled segments, by the code of the user's functions: `plans`.

    `run(inputs, sizes, scalars, hooks, packed, numbers)` runs the pass and returns the gradients asked for by name
    (None for a leaf, whose gradient is in its `.grad`). `modules` lists the compiled ATen graphs, `reasons` why
    segments run call by call; `on_failure` is called where that is the compiler's fault. `compile_id` names the
    compilation, `hooks` the hooks and Functions of the first pass. One thread at a time runs a program: the engine's
    gate admits no two captured passes.
    """

    graph: fx.Graph
    compiler_fn: CompilerFn
    on_failure: OnError = warn_of_failure
    trace_call: TraceCall | None = None
    reasons: list[str] = field(default_factory=list)
    compile_id: CompileId = field(default_factory=lambda: CompileId(backward=next(_PASSES)))
    hooks: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        placeholders = (node for node in self.graph.nodes if node.op == "placeholder")
        self._placeholders = [(node, calls.PASS_INPUT.of(node)) for node in placeholders]
        self._result: Any = next(iter(reversed(self.graph.nodes))).args[0]
        traceable = [] if self.trace_call is None else [node for node in self.graph.nodes if node.target in TRACEABLE]
        self._users = [calls.PASS_INPUT.of(user_of(node)).index for node in traceable]
        #: By the code of the user's functions in the pass; the first, without any, is that of passes beyond the limit.
        self.plans: dict[tuple[Any, ...], Plan] = {}
        if not traceable:
            self.plans[()] = self._new_plan(None)

    def _new_plan(self, trace_call: TraceCall | None) -> Plan:
        return Plan(self.graph, self.compiler_fn, self.on_failure, trace_call, self.compile_id, self.reasons)

    def _plan(self, hooks: Sequence[Any]) -> Plan:
        """Return the plan for hooks and Functions of this code."""
        code = tuple([code_of(hooks[index]) for index in self._users])
        known = self.plans.get(code)
        if known is None:
            if len(self.plans) >= MOST_PLANS:
                self.note(f"hooks are not traced: those of {MOST_PLANS} kinds of passes are already")
                code = ()
            known = self.plans.get(code) or self._new_plan(self.trace_call if code else None)
            self.plans[code] = known
        return known

    def note(self, reason: str) -> None:
        """Add a reason, once."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def explain(self) -> list[CapturedStep]:
        """Return what is compiled, what runs call by call, and what stays opaque and why, in the order of the pass."""
        return [step for plan in self.plans.values() for step in self._explained(plan)]

    def _explained(self, plan: Plan) -> Iterator[CapturedStep]:
        uncompiled = (at for at, runner in plan.runners.items() if not runner.modules)
        return explain_steps(plan.steps, uncompiled, self.hooks or (), plan.untraced)

    def __str__(self) -> str:
        lines = [f"[{self.compile_id}] backward pass of {sum(len(plan.steps) for plan in self.plans.values())} steps"]
        return "\n    ".join([*lines, *accumulations_joined(self.explain()), *self.reasons])

    @property
    def modules(self) -> list[fx.GraphModule]:
        """The compiled ATen graphs, segment by segment."""
        runners = [plan.runners[number] for plan in list(self.plans.values()) for number in sorted(plan.runners)]
        return [module for runner in runners for module in runner.modules]

    @property
    def steps(self) -> list[Step]:
        """The steps of all plans."""
        return [step for plan in self.plans.values() for step in plan.steps]

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
        with torch.no_grad():
            self._plan(hooks).run(env, inputs)
        return [None if node is None else env[node] for node in self._result]

    def _bound(self, sources: dict[calls.InputKind, Sequence[Any]]) -> calls.Env:
        return {node: sources[source.kind][source.index] for node, source in self._placeholders}
