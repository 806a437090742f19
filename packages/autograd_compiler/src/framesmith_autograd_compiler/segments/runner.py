"""Runs a segment: compiled for the values it gets, or call by call.

Note [Liveness]: the engine frees what a derivative has saved once it has run. A segment takes the values that nothing
behind it needs out of the environment, and hands them to the compiled function in one list, which that empties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from framesmith_aten.contract import OnError, Runner
from framesmith_aten.errors import TraceUnsupported
from framesmith_autograd_compiler import calls
from framesmith_autograd_compiler.errors import CompilerFailed, warn_of_failure
from framesmith_autograd_compiler.schedule import Segment
from framesmith_autograd_compiler.segments.tracer import DynamicDims, OffsetQueries, Traced, trace
from framesmith_autograd_compiler.segments.variants import (
    MOST_EXACT,
    Compiled,
    DynamicVariant,
    Layouts,
    RecentVariants,
    Variants,
    dynamic_variant,
    exact_check,
    layouts_of,
    signature,
)
from framesmith_autograd_compiler.torch_adapter import unstable
from framesmith_guards import CompileContext, CompileId, GuardError, compile_context

CompilerFn = Callable[[fx.GraphModule], "Callable[..., Any] | Runner"]
"""Takes an ATen graph, gives a function of the same flat tensors that returns a sequence of tensors, or a `Runner`."""

#: Errors of operations that cannot be traced: no failure of the compiler.
NOT_TRACED: Final = (
    TraceUnsupported,
    NotImplementedError,
    unstable.DataDependentOutputException,
    unstable.DynamicOutputShapeException,
    unstable.UnsupportedFakeTensorException,
    unstable.UnsupportedOperatorException,
)

#: Errors that mean that sizes cannot be symbols; torch raises RuntimeError for its kernels and conditions.
NO_SYMBOLS: Final = (CompilerFailed, GuardError, RuntimeError, *NOT_TRACED)

#: Signatures of one segment's values: dtypes, ranks, absences.
MOST_SIGNATURES: Final = 64


@dataclass(frozen=True)
class Failed:
    """The error of compiling for values of these layouts."""

    error: Exception
    variants: Variants
    layouts: Layouts


@dataclass
class SegmentRunner:
    """A `segment` of a program and its compiled variants; `number` is its place among the steps.

    `released`: inputs that no later step needs. `reasons` says why segments run call by call; `on_failure` is called
    where that is the compiler's fault.
    """

    segment: Segment
    number: int
    released: Sequence[fx.Node]
    compiler_fn: CompilerFn
    on_failure: OnError
    compile_id: CompileId
    reasons: list[str]
    signatures: dict[Any, Variants] = field(default_factory=dict)
    _recent: RecentVariants = field(default_factory=RecentVariants)

    def __post_init__(self) -> None:
        last = {source: at for at, node in enumerate(self.segment.nodes) for source in (*node.all_input_nodes, node)}
        kept = {*self.segment.outputs, *self.segment.inputs} - {*self.released}
        self._frees: list[list[fx.Node]] = [[] for _ in self.segment.nodes]
        for node, at in last.items():
            if node not in kept:
                self._frees[at].append(node)

    @property
    def modules(self) -> list[fx.GraphModule]:
        """The compiled ATen graphs."""
        return [module for variants in list(self.signatures.values()) for module in variants.modules()]

    def run(self, env: calls.Env) -> None:
        """Compute the segment's outputs in the environment; see Note [Liveness]."""
        values = [env[node] for node in self.segment.inputs]
        found: Compiled | Failed | None = self._recent.find(values)
        if found is None and all(one.layout is torch.strided for one in values if isinstance(one, torch.Tensor)):
            found = self._function(values)
        if not isinstance(found, Compiled):
            values.clear()
            self._run_calls(env)  # raises the errors of the program's own operations
            if found is not None:
                self._report(found.error)  # if this raises, the next pass of this kind tries again
                found.variants.add_failed(found.layouts)
            return
        arguments = [values[index] for index in found.inputs]
        values.clear()
        for node in self.released:
            env.pop(node)
        results = found.run(arguments)
        for node, position in zip(self.segment.outputs, found.outputs, strict=True):
            env[node] = None if position is None else results[position]

    def _run_calls(self, env: calls.Env) -> None:
        for node, unneeded in zip(self.segment.nodes, self._frees, strict=True):
            env[node] = calls.call_node(node, env)
            for one in unneeded:
                env.pop(one, None)

    def _function(self, values: list[Any]) -> Compiled | Failed | None:
        """Return the compiled segment for such values, compiled now if it is new; None to run call by call."""
        key = tuple(map(signature, values))
        variants = self.signatures.get(key)
        if variants is None:
            if len(self.signatures) >= MOST_SIGNATURES:
                self._note(f"it is compiled for {MOST_SIGNATURES} signatures already")
                return None
            variants = self.signatures[key] = Variants()
        try:
            found = variants.find(values)
        except KeyError:
            with compile_context(CompileContext(self.compile_id)):
                return self._compile(values, variants)
        if found is not None and not found.offset_dependent and found.exact_checks < MOST_EXACT:
            found.exact_checks += 1
            self._recent.note(found, exact_check(values))
        return found

    def _compile(self, values: list[Any], variants: Variants) -> Compiled | Failed | None:
        dynamic_dims = variants.dynamic_dims(values)
        if dynamic_dims:
            try:
                made = self._dynamic_variant(values, dynamic_dims)
                variants.dynamic.append(made)
                self._recent.note(made.compiled, made.exact)
                return made.compiled
            except Exception as error:
                variants.refuse()
                cause = error.cause if isinstance(error, CompilerFailed) else error
                self.reasons.append(f"compiled for each size: {type(cause).__name__}: {cause}")
                if not isinstance(error, NO_SYMBOLS):
                    self.on_failure("a part of the backward pass, with dynamic shapes,", error)
        why = variants.why_no_more()
        if why is not None:
            self._note(why)
            return None
        try:
            compiled = self._compiled(self._traced(values, {}))
        except Exception as error:
            return Failed(error.cause if isinstance(error, CompilerFailed) else error, variants, layouts_of(values))
        variants.add_static(values, compiled)
        return compiled

    def _dynamic_variant(self, values: list[Any], dynamic_dims: DynamicDims) -> DynamicVariant:
        traced = self._traced(values, dynamic_dims)
        if traced.offset_dependent:
            raise TraceUnsupported("storage-offset", "a segment", "its results depend on storage offsets of its inputs")
        return dynamic_variant(traced, self._compiled(traced), values)

    def _traced(self, values: list[Any], dynamic_dims: DynamicDims) -> Traced:
        segment = self.segment

        def run(fakes: list[Any], queries: OffsetQueries) -> list[Any]:
            env = dict(zip(segment.inputs, fakes, strict=True))
            for node in segment.nodes:
                with queries if isinstance(node.target, calls.Evaluation) else nullcontext():
                    env[node] = calls.call_node(node, env)
            return [env[node] for node in segment.outputs]

        return trace(run, values, dynamic_dims)

    def _compiled(self, traced: Traced) -> Compiled:
        try:
            runner = Runner.of(self.compiler_fn(traced.module))
        except Exception as error:
            raise CompilerFailed(error) from error
        return Compiled(runner, traced.module, traced.inputs, traced.outputs, traced.offset_dependent)

    def _note(self, why: str) -> None:
        reason = f"segment {self.number} runs call by call: {why}"
        if reason not in self.reasons:
            self.reasons.append(reason)

    def _report(self, error: Exception) -> None:
        """Report why the segment is not compiled; its calls run one by one."""
        self.reasons.append(f"{type(error).__name__}: {error}")
        report = warn_of_failure if isinstance(error, NOT_TRACED) else self.on_failure
        with compile_context(CompileContext(self.compile_id)):
            report("a part of the backward pass", error)
