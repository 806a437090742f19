"""Runs a segment: compiled for the values it gets, or call by call.

Note [Liveness]: the engine frees what a derivative has saved once it has run. A segment takes the values that nothing
behind it needs out of the environment, and hands them to the compiled function in one list, which that empties.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
from framesmith_autograd_compiler.segments.tracer import Capture, DynamicDims, OffsetQueries, Traced, trace
from framesmith_autograd_compiler.segments.user_code import (
    MOST_CHANGES,
    MOST_VERSIONS,
    TRACEABLE,
    TraceCall,
    Untraced,
    UserCode,
)
from framesmith_autograd_compiler.segments.variants import (
    FUNCTION,
    MOST_EXACT,
    Captured,
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
from framesmith_guards import CheckProgram, CompileContext, CompileId, GuardError, compile_context

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


Found = tuple[Compiled, Captured]
"""A compiled segment, and the tensors that the user code in it reads from elsewhere."""


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
    where that is the compiler's fault. `trace_call` traces the user code in it, of which `open_calls` read what writes
    to `.grad` change. `run` raises Untraced, before it has any effect, where some of it cannot be in a segment.
    """

    segment: Segment
    number: int
    released: Sequence[fx.Node]
    compiler_fn: CompilerFn
    on_failure: OnError
    compile_id: CompileId
    reasons: list[str]
    trace_call: TraceCall | None = None
    open_calls: Collection[fx.Node] = ()
    signatures: dict[Any, Variants] = field(default_factory=dict)
    _recent: RecentVariants = field(default_factory=RecentVariants)
    #: Of each call of user code: the checks of the versions that were traced.
    _versions: dict[fx.Node, list[CheckProgram]] = field(default_factory=dict)

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
        found: Found | Failed | None = self._recent.find(values)
        if found is None and all(one.layout is torch.strided for one in values if isinstance(one, torch.Tensor)):
            found = self._function(values)
        if not isinstance(found, tuple):
            values.clear()
            self._run_calls(env)  # raises the errors of the program's own operations
            if found is not None:
                self._report(found.error)  # if this raises, the next pass of this kind tries again
                found.variants.add_failed(found.layouts)
            return
        compiled, captured = found
        arguments = [values[index] for index in compiled.inputs]
        arguments += captured
        values.clear()
        for node in self.released:
            env.pop(node)
        results = compiled.run(arguments)
        for node, position in zip(self.segment.outputs, compiled.outputs, strict=True):
            env[node] = None if position is None else results[position]

    def _run_calls(self, env: calls.Env) -> None:
        for node, unneeded in zip(self.segment.nodes, self._frees, strict=True):
            env[node] = calls.call_node(node, env)
            for one in unneeded:
                env.pop(one, None)

    def _function(self, values: list[Any]) -> Found | Failed | None:
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
                compiled = self._compile(values, variants)
            if not isinstance(compiled, Compiled):
                return compiled
            captured = compiled.captured(values)
            assert captured is not None, "the guards of user code hold for the call that was traced"
            return compiled, captured
        if found is not None:
            compiled, _ = found
            if not compiled.offset_dependent and compiled.exact_checks < MOST_EXACT:
                compiled.exact_checks += 1
                self._recent.note(compiled, exact_check(values, compiled.user))
        return found

    def _compile(self, values: list[Any], variants: Variants) -> Compiled | Failed | None:
        dynamic_dims = variants.dynamic_dims(values)
        if dynamic_dims:
            try:
                made = self._dynamic_variant(values, dynamic_dims)
                variants.dynamic.append(made)
                self._recent.note(made.compiled, made.exact)
                return made.compiled
            except Untraced:
                raise
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
            compiled = self._compiled(*self._traced(values, {}))
        except Untraced:
            raise
        except Exception as error:
            return Failed(error.cause if isinstance(error, CompilerFailed) else error, variants, layouts_of(values))
        variants.add_static(values, compiled)
        return compiled

    def _dynamic_variant(self, values: list[Any], dynamic_dims: DynamicDims) -> DynamicVariant:
        traced, user = self._traced(values, dynamic_dims)
        if traced.offset_dependent:
            raise TraceUnsupported("storage-offset", "a segment", "its results depend on storage offsets of its inputs")
        return dynamic_variant(traced, self._compiled(traced, user), values)

    def _traced(self, values: list[Any], dynamic_dims: DynamicDims) -> tuple[Traced, CheckProgram | None]:
        """Return the traced segment, and the check of the user code in it."""
        segment, user = self.segment, UserCode(self.trace_call, self.segment.inputs, self.open_calls)

        def run(fakes: list[Any], queries: OffsetQueries, capture: Capture) -> list[Any]:
            env = dict(zip(segment.inputs, fakes, strict=True))
            for node in segment.nodes:
                if node.target in TRACEABLE:
                    env[node] = user.run(node, calls.operands_of(node, env), capture)
                    continue
                with queries if isinstance(node.target, calls.Evaluation) else nullcontext():
                    env[node] = calls.call_node(node, env)
            return [env[node] for node in segment.outputs]

        try:
            traced = trace(run, values, dynamic_dims)
        except Exception as error:
            if user.refused:
                raise Untraced(user.refused) from error
            raise
        if user.refused:
            raise Untraced(user.refused)
        self._note_versions(user, values)
        return traced, user.whole_check()

    def _note_versions(self, user: UserCode, values: Sequence[Any]) -> None:
        """Count the versions of each call of user code; raise Untraced for one that is another too often."""
        changing: dict[fx.Node, str | None] = {}
        for node in user.guards:
            versions = self._versions.setdefault(node, [])
            if not any(check(tuple(values), FUNCTION) for check in versions):
                versions.append(user.check(node))
                more = sum(len(traced) - 1 for traced in self._versions.values())
                if len(versions) > MOST_VERSIONS or (len(versions) > 1 and more > MOST_CHANGES):
                    missed = versions[0].explain(tuple(values), FUNCTION)
                    changing[node] = f"it differs from pass to pass: {missed}"
        if changing:
            raise Untraced(changing)

    def _compiled(self, traced: Traced, user: CheckProgram | None) -> Compiled:
        try:
            runner = Runner.of(self.compiler_fn(traced.module))
        except Exception as error:
            raise CompilerFailed(error) from error
        return Compiled(runner, traced.module, traced.inputs, traced.outputs, traced.offset_dependent, user)

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
