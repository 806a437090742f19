"""A runnable backward pass: segments compiled for the values they get, and opaque calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from framesmith_aten.contract import OnError
from framesmith_aten.errors import TraceUnsupported
from framesmith_autograd_compiler import calls
from framesmith_autograd_compiler.accumulation import Accumulator
from framesmith_autograd_compiler.errors import CompilerFailed, warn_of_failure
from framesmith_autograd_compiler.schedule import Accumulation, Opaque, Segment, last_uses, schedule
from framesmith_autograd_compiler.torch_adapter import unstable
from framesmith_autograd_compiler.tracer import DynamicDims, OffsetQueries, Traced, trace
from framesmith_autograd_compiler.variants import Compiled, DynamicVariant, Variants, dynamic_variant, signature
from framesmith_guards import CompileContext, CompileId, GuardError, compile_context

CompilerFn = Callable[[fx.GraphModule], Callable[..., Any]]
"""Takes an ATen graph, gives a function of the same flat tensors that returns a sequence of tensors."""

Env = dict[fx.Node, Any]

_PASSES = itertools.count()

#: Errors of operations that cannot be traced: no failure of the compiler.
NOT_TRACED = (
    TraceUnsupported,
    NotImplementedError,
    unstable.DataDependentOutputException,
    unstable.DynamicOutputShapeException,
    unstable.UnsupportedFakeTensorException,
    unstable.UnsupportedOperatorException,
)


#: Errors that mean that sizes cannot be symbols; torch raises RuntimeError for its kernels and conditions.
NO_SYMBOLS = (CompilerFailed, GuardError, RuntimeError, *NOT_TRACED)

#: Signatures of one segment's values: dtypes, ranks, absences.
MOST_SIGNATURES = 64


@dataclass
class Program:
    """The recorded `graph`, its steps, and its compiled segments.

    `run(inputs, sizes, scalars, hooks, packed, numbers)` runs the pass and returns the gradients asked for by name
    (None for a leaf, whose gradient is in its `.grad`). `modules` lists the compiled ATen graphs, `reasons` why
    segments run call by call; `on_failure` is called where that is the compiler's fault. `compile_id` names the
    compilation. One thread at a time runs a program: the engine's gate admits no two captured passes.
    """

    graph: fx.Graph
    compiler_fn: CompilerFn
    on_failure: OnError = warn_of_failure
    reasons: list[str] = field(default_factory=list)
    compile_id: CompileId = field(default_factory=lambda: CompileId(backward=next(_PASSES)))

    def __post_init__(self) -> None:
        self.steps = schedule(self.graph)
        # Other user code gets gradients before they are accumulated.
        after = (calls.call_leaf_hook, calls.call_unpack_hook)
        self._exclusive = all(step.node.target in after for step in self.steps if isinstance(step, Opaque))
        self._last_uses = last_uses(self.graph, self.steps)
        self._variants: dict[int, dict[Any, Variants]] = {}
        placeholders = (node for node in self.graph.nodes if node.op == "placeholder")
        self._placeholders = [(node, calls.PASS_INPUT.of(node)) for node in placeholders]
        self._result: Any = next(iter(reversed(self.graph.nodes))).args[0]

    @property
    def modules(self) -> list[fx.GraphModule]:
        """The compiled ATen graphs, segment by segment."""
        signatures = [one for number in sorted(self._variants) for one in list(self._variants[number].values())]
        return [module for variants in signatures for module in variants.modules()]

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[float],
        hooks: Sequence[Any],
        packed: Sequence[Any],
        numbers: Sequence[float] = (),
    ) -> list[Any]:
        """Run one backward pass; `numbers` are the floats that were lifted out of the graph."""
        sources: dict[calls.InputKind, Sequence[Any]] = {"input": inputs, "size": sizes, "scalar": scalars}
        sources |= {"hook": hooks, "packed": packed, "number": numbers}
        env: Env = {node: sources[source.kind][source.index] for node, source in self._placeholders}
        accumulator = Accumulator(self._exclusive, inputs)
        with torch.no_grad():
            for number, step in enumerate(self.steps):
                if isinstance(step, Segment):
                    self._run_segment(number, step, env)
                elif isinstance(step, Accumulation):
                    accumulator.run(step.node, env)
                else:
                    env[step.node] = _call(step.node, env)
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
            for node in segment.nodes:
                env[node] = _call(node, env)  # raises the errors of the program's own operations
            if failed is not None:
                self._report(failed)  # if this raises, the next pass of this kind tries again
                self._variants[number][tuple(map(signature, values))].add_static(values, None)
            return
        results = compiled.function(*[values[index] for index in compiled.inputs])
        for node, position in zip(segment.outputs, compiled.outputs, strict=True):
            env[node] = None if position is None else results[position]

    def _function(self, number: int, segment: Segment, values: list[Any]) -> tuple[Compiled | None, Exception | None]:
        """Return the compiled segment for such values, compiled now if it is new, or the error of compiling it."""
        signatures = self._variants.setdefault(number, {})
        key = tuple(map(signature, values))
        if key not in signatures:
            if len(signatures) >= MOST_SIGNATURES:
                self._note(
                    f"segment {number} runs call by call: it is compiled for {MOST_SIGNATURES} signatures already"
                )
                return None, None
            signatures[key] = Variants()
        try:
            return signatures[key].find(values), None
        except KeyError:
            with compile_context(CompileContext(self.compile_id)):
                return self._compile(number, segment, values, signatures[key])

    def _compile(
        self, number: int, segment: Segment, values: list[Any], variants: Variants
    ) -> tuple[Compiled | None, Exception | None]:
        dynamic_dims = variants.dynamic_dims(values)
        if dynamic_dims:
            try:
                variants.dynamic.append(self._dynamic_variant(segment, values, dynamic_dims))
                return variants.dynamic[-1].compiled, None
            except Exception as error:
                variants.refuse()
                cause = error.cause if isinstance(error, CompilerFailed) else error
                self.reasons.append(f"compiled for each size: {type(cause).__name__}: {cause}")
                if not isinstance(error, NO_SYMBOLS):
                    self.on_failure("a part of the backward pass, with dynamic shapes,", error)
        why = variants.why_no_more()
        if why is not None:
            self._note(f"segment {number} runs call by call: {why}")
            return None, None
        try:
            compiled = self._compiled(self._traced(segment, values, {}))
        except Exception as error:
            return None, error.cause if isinstance(error, CompilerFailed) else error
        variants.add_static(values, compiled)
        return compiled, None

    def _dynamic_variant(self, segment: Segment, values: list[Any], dynamic_dims: DynamicDims) -> DynamicVariant:
        traced = self._traced(segment, values, dynamic_dims)
        if traced.offset_dependent:
            raise TraceUnsupported("storage-offset", "a segment", "its results depend on storage offsets of its inputs")
        return dynamic_variant(traced, self._compiled(traced))

    def _traced(self, segment: Segment, values: list[Any], dynamic_dims: DynamicDims) -> Traced:
        def run(fakes: list[Any], queries: OffsetQueries) -> list[Any]:
            env = dict(zip(segment.inputs, fakes, strict=True))
            for node in segment.nodes:
                with queries if isinstance(node.target, calls.Evaluation) else nullcontext():
                    env[node] = _call(node, env)
            return [env[node] for node in segment.outputs]

        return trace(run, values, dynamic_dims)

    def _compiled(self, traced: Traced) -> Compiled:
        try:
            function = self.compiler_fn(traced.module)
        except Exception as error:
            raise CompilerFailed(error) from error
        return Compiled(function, traced.module, traced.inputs, traced.outputs, traced.offset_dependent)

    def _note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def _report(self, error: Exception) -> None:
        """Report why a segment is not compiled; its calls run one by one."""
        self.reasons.append(f"{type(error).__name__}: {error}")
        report = warn_of_failure if isinstance(error, NOT_TRACED) else self.on_failure
        with compile_context(CompileContext(self.compile_id)):
            report("a part of the backward pass", error)


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


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
    """Whether any gradient among a derivative's operands is present; without one, its results are absent."""
    if isinstance(value, (list, tuple)):
        return any(_present(item, env) for item in value)
    return isinstance(value, fx.Node) and env[value] is not None


def _load(value: Any, env: Env) -> Any:
    """Return a node's operands with values in place of nodes, in plain lists and tuples."""
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, list):
        return [_load(item, env) for item in value]
    if isinstance(value, tuple):
        loaded = [_load(item, env) for item in value]
        return type(value)(loaded) if type(value) in (tuple, torch.Size) else value
    return value
