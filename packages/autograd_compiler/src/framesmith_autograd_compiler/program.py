"""A recorded backward pass, runnable: segments compiled for the values they meet, opaque calls as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses import fake_tensor

from framesmith_aten.errors import TraceUnsupported
from framesmith_autograd_compiler import calls
from framesmith_autograd_compiler.accumulation import Accumulator
from framesmith_autograd_compiler.errors import OnFailure, warn_of_failure
from framesmith_autograd_compiler.schedule import Accumulation, Opaque, Segment, last_uses, schedule
from framesmith_autograd_compiler.sizes import Compiled, ForSizes, Variants, for_sizes, form
from framesmith_autograd_compiler.tracer import Changing, Traced, trace

CompilerFn = Callable[[fx.GraphModule], Callable[..., Any]]
"""Takes an ATen graph, gives a function of the same flat tensors that returns a sequence of tensors."""

Env = dict[fx.Node, Any]

#: What operations are that cannot be traced: no failure of the compiler.
NOT_TRACED = (
    TraceUnsupported,
    NotImplementedError,
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
)


@dataclass
class Program:
    """`graph` as recorded, its steps, and what was compiled so far.

    `run(inputs, sizes, scalars, hooks, packed)` runs the pass and returns the gradients asked for by name (None for a
    leaf's, which went into its `.grad`). `modules` lists the compiled ATen graphs, `reasons` why
    segments run call by call instead; `on_failure` is told when that is the compiler's fault.
    """

    graph: fx.Graph
    compiler_fn: CompilerFn
    on_failure: OnFailure = warn_of_failure
    modules: list[fx.GraphModule] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps = schedule(self.graph)
        self._exclusive = not any(isinstance(step, Opaque) and _shows_gradients(step) for step in self.steps)
        self._last_uses = last_uses(self.graph, self.steps)
        self._variants: dict[Any, Variants] = {}
        self._placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        self._result: Any = next(iter(reversed(self.graph.nodes))).args[0]

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[float],
        hooks: Sequence[Any],
        packed: Sequence[Any],
    ) -> list[Any]:
        """One backward pass."""
        sources = {"input": inputs, "size": sizes, "scalar": scalars, "hook": hooks, "packed": packed}
        env: Env = {}
        for node in self._placeholders:
            kind, _, index = node.name.rpartition("_")
            env[node] = sources[kind][int(index)]
        accumulator = Accumulator(self._exclusive, inputs)
        with torch.no_grad():
            for number, step in enumerate(self.steps):
                if isinstance(step, Segment):
                    self._run_segment(number, step, env)
                elif isinstance(step, Accumulation):
                    accumulator.run(step.node, env)
                else:
                    evaluate(step, env)
                for node in self._last_uses[number]:
                    env.pop(node, None)
        return [None if node is None else env[node] for node in self._result]

    def _run_segment(self, number: int, segment: Segment, env: Env) -> None:
        values = [env[node] for node in segment.inputs]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        compiled, failed = None, None
        if all(map(_is_strided, tensors)):
            compiled, failed = self._function(number, segment, values)
        if compiled is None:
            evaluate_all(segment, env)  # raises what the program's own operations raise
            if failed is not None:
                self._tell(failed)
            return
        results = compiled.function(*[values[index] for index in compiled.inputs])
        for node, position in zip(segment.outputs, compiled.outputs, strict=True):
            env[node] = None if position is None else results[position]

    def _function(self, number: int, segment: Segment, values: list[Any]) -> tuple[Compiled | None, Exception | None]:
        """What is compiled of the segment for such values, now if it has not been; else why that failed just now."""
        variants = self._variants.setdefault((number, *map(form, values)), Variants())
        try:
            found = variants.find(values)
        except KeyError:
            return self._compile(segment, values, variants)
        return (found.compiled if isinstance(found, ForSizes) else found), None

    def _compile(
        self, segment: Segment, values: list[Any], variants: Variants
    ) -> tuple[Compiled | None, Exception | None]:
        changing = variants.changing(values)
        if changing:
            try:
                return variants.add(for_sizes(*self._traced(segment, values, changing))).compiled, None
            except Exception as error:
                variants.refuse()
                self.reasons.append(f"compiled for each size: {type(error).__name__}: {error}")
        compiled, failed = None, None
        try:
            compiled = self._traced(segment, values, {})[1]
        except Exception as error:
            failed = error
        variants.keep(values, compiled)
        return compiled, failed

    def _traced(self, segment: Segment, values: list[Any], changing: Changing) -> tuple[Traced, Compiled]:
        def run(fakes: list[Any]) -> list[Any]:
            env = dict(zip(segment.inputs, fakes, strict=True))
            evaluate_all(segment, env)
            return [env[node] for node in segment.outputs]

        traced = trace(run, values, changing)
        function = self.compiler_fn(traced.module)
        self.modules.append(traced.module)
        return traced, Compiled(function, traced.inputs, traced.outputs)

    def _tell(self, error: Exception) -> None:
        """Tell why a segment is not compiled: its calls run one by one, which is always right."""
        self.reasons.append(f"{type(error).__name__}: {error}")
        tell = warn_of_failure if isinstance(error, NOT_TRACED) else self.on_failure
        tell("a part of the backward pass", error)


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _shows_gradients(step: Opaque) -> bool:
    """Whether code of the user gets hold of a gradient before it is accumulated."""
    return step.node.target not in (calls.call_leaf_hook, calls.call_unpack_hook)


def evaluate_all(segment: Segment, env: Env) -> None:
    """Runs a segment's calls one by one."""
    for node in segment.nodes:
        env[node] = _call(node, env)


def evaluate(step: Opaque, env: Env) -> None:
    """Runs one call of the user's code."""
    env[step.node] = _call(step.node, env)


def _call(node: fx.Node, env: Env) -> Any:
    target: Any = node.target
    if isinstance(target, calls.NodeCall) and not any(_present(arg, env) for arg in node.args[:1]):
        return _ABSENT
    return target(*[_load(arg, env) for arg in node.args])


class _Absent:
    """The results of a derivative that got no gradient."""

    def __getitem__(self, index: int) -> None:
        return None


_ABSENT = _Absent()


def _present(value: Any, env: Env) -> bool:
    """Whether any gradient among a derivative's operands is there; without one, its results are absent."""
    if isinstance(value, (list, tuple)):
        return any(_present(item, env) for item in value)
    return isinstance(value, fx.Node) and env[value] is not None


def _load(value: Any, env: Env) -> Any:
    """A node's operands with values in place of nodes, in plain lists and tuples."""
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, list):
        return [_load(item, env) for item in value]
    if isinstance(value, tuple):
        loaded = [_load(item, env) for item in value]
        return type(value)(loaded) if type(value) in (tuple, torch.Size) else value
    return value
