"""A torch-level graph to a callable: ahead-of-time autograd, then a backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import cast

import torch
from torch import fx

import framesmith_aot
import framesmith_autograd_compiler
import framesmith_frames
from framesmith.backends import ATEN_CALLS, AUTO, MEMORY_BUDGET, WITHOUT_AOT, backend_for, takes_mode_here, why_not_here
from framesmith.config import CompileConfig
from framesmith.graphs.garbage_collection import full_collections_postponed
from framesmith.graphs.verification import verified
from framesmith.reports.failures import Failures
from framesmith.reports.logs import log_aten_graph, log_step, logs_steps
from framesmith.reports.steps import StepReport
from framesmith_aten.contract import Backend, BoxedFn, Compiler, Role, Runner, TransformsStep, TransformStep
from framesmith_aten.graphs.step_parts import mark_updates
from framesmith_aten.meta import LOCATION, PART, StepPart
from framesmith_backends import find_backend
from framesmith_backends.reporting import noted_refusals
from framesmith_dynamo import memory_budget
from framesmith_guards import CompileContext, Location, compile_context, located


@dataclass(frozen=True)
class GraphCompiler:
    """Compiles the graphs of one `compile()` call; `failures` decides between warning and raising.

    `boxed`: the runners of graphs without gradients have a boxed function. `observe` gets a report of each graph, whose
    backward pass is then compiled at once. `part`: the part of a training step that all graphs are.
    """

    config: CompileConfig
    failures: Failures
    boxed: bool = False
    observe: Callable[[StepReport], None] | None = None
    part: StepPart | None = None

    def __call__(
        self, gm: fx.GraphModule, examples: Sequence[torch.Tensor], sources: Mapping[str, str] = MappingProxyType({})
    ) -> Runner:
        """Return a runner over the graph's flat inputs that behaves as `gm` does.

        `sources`: the inputs as the program writes them, by the names of placeholders.
        """
        try:
            # aot differentiates fakes; that is no pass of the user's
            with framesmith_autograd_compiler.disabled(), full_collections_postponed(), noted_refusals() as refusals:
                compiled = self._compile(gm, examples, sources)
        except Exception as error:
            self.failures.report("a graph", error, first_location(gm))
            return Runner(gm.forward)
        said = tuple(f"{what}: {why}" for what, why in refusals.items())
        calls = self.config.verify
        if not calls:
            return replace(compiled, refusals=said)
        return Runner(verified(gm, compiled.run, self.failures, calls), assumes=compiled.assumes, refusals=said)

    def _compile(self, gm: fx.GraphModule, examples: Sequence[torch.Tensor], sources: Mapping[str, str]) -> Runner:
        backend = self.config.backend
        if backend == WITHOUT_AOT:
            return Runner(gm.forward)
        if not isinstance(backend, (str, Backend)):
            return Runner(backend(gm, examples))
        chosen = backend_for(backend, examples, gm)
        report = self._begin_report(gm, sources)
        begun = time.perf_counter()
        compiler = self._backend_compiler(backend, gm, report)
        compiled = framesmith_aot.compile_graph(
            gm,
            examples,
            compiler=compiler,
            lowers=chosen.lowers,
            transform_step=self._transform_step(chosen),
            memory_budget=memory_budget(cast("float | None", self.config.options.get(MEMORY_BUDGET))),
            late_traces=_no_pass_of_the_user,
            on_error=partial(self.failures.report, location=first_location(gm)),
            boxed=self.boxed,
            observe=None if report is None else report.note_trace,
        )
        if report is not None:
            if self.observe is not None:
                for one in compiled.backward_passes:
                    one.prepare()
                self.observe(report)
            report.seconds = time.perf_counter() - begun
            log_step(report)
        return compiled.runner

    def _begin_report(self, gm: fx.GraphModule, sources: Mapping[str, str]) -> StepReport | None:
        """Return the report to be filled in, with the parts of the graph marked; None where nobody asks for it."""
        if self.observe is None and not logs_steps():
            return None
        if self.part is None:
            mark_updates(gm.graph)
        else:
            for node in gm.graph.nodes:
                PART.set(node, self.part)
        return StepReport(CompileContext.current_trace_id() or "-", first_location(gm), sources)

    def _transform_step(self, backend: Backend) -> TransformStep | None:
        """Return what a backend does to a training step, or None; a failure in it is reported."""
        if not isinstance(backend, TransformsStep):
            return None

        def transform_step(graph: fx.Graph) -> fx.Graph | None:
            on_error = partial(self.failures.report, partial=True)
            try:
                return backend.transform_step(graph, options_for(backend, self.config), on_error)
            except Exception as error:
                on_error("a training step", error)
                return None

        return transform_step

    def _warn_of_mode(self, chosen: Backend) -> None:
        """Warn of graphs for a backend that takes no mode; `compile` has warned where no backend takes one."""
        mode = self.config.mode
        if mode != "default" and "mode" not in chosen.options and takes_mode_here(AUTO):
            self.failures.warn_once(
                f"mode={mode!r} has no effect on some graphs: the backend {chosen.name!r}, which compiles them for "
                "their tensors' devices, takes no mode"
            )

    def _backend_compiler(
        self, backend: str | Backend, torch_graph: fx.GraphModule, report: StepReport | None
    ) -> Compiler:
        compilation, begin = CompileContext.try_get(), first_location(torch_graph)

        def compile_aten(gm: fx.GraphModule, inputs: Sequence[torch.Tensor], role: Role) -> BoxedFn:
            # A backward graph is compiled while the user's code runs, for the compilation of its forward one.
            with (
                framesmith_frames.deactivated(),
                compile_context(compilation),
                located(lambda: begin),
                full_collections_postponed(),
                nullcontext() if report is None else report.timing(role, gm.graph),
            ):
                log_aten_graph(gm, role)
                try:
                    chosen = select(backend, gm, inputs, role)
                    if backend == AUTO:
                        self._warn_of_mode(chosen)
                    on_error = partial(self.failures.report, location=begin, partial=True)
                    return chosen.compile(gm, inputs, role, options_for(chosen, self.config), on_error=on_error)
                except Exception as error:
                    self.failures.report(f"a graph ({role})", error)
                    return find_backend(ATEN_CALLS).compile(gm, inputs, role)

        return compile_aten


@contextmanager
def _no_pass_of_the_user() -> Iterator[None]:
    """Inside, aot differentiates fakes while the user's code runs: no frame is captured, and no backward pass."""
    with framesmith_frames.deactivated(), framesmith_autograd_compiler.disabled(), full_collections_postponed():
        yield


def first_location(gm: fx.GraphModule) -> Location | None:
    """Return the user's line of the first operation of a torch-level graph, or None."""
    return next((LOCATION.of(node) for node in gm.graph.nodes if LOCATION.get(node) is not None), None)


def select(backend: str | Backend, gm: fx.GraphModule, inputs: Sequence[torch.Tensor], role: Role) -> Backend:
    """The backend object that compiles this ATen graph.

    Raises ValueError when a named backend refuses the graph, and when a requirement of "auto"'s is not installed.
    """
    found = backend_for(backend, inputs, gm)
    reason = found.why_not(gm) if role in found.roles else f"it takes no {role} graphs"
    if reason is None:
        return found
    if backend == AUTO and why_not_here(found) is None:
        return find_backend(ATEN_CALLS)
    raise ValueError(f"the backend {found.name!r} cannot compile this graph: {reason}")


def options_for(backend: Backend, config: CompileConfig) -> Mapping[str, object]:
    """The options this backend declares, out of those given, and the mode where the backend takes one."""
    options = {name: value for name, value in config.options.items() if name in backend.options}
    if "mode" in backend.options:
        options.setdefault("mode", config.mode)
    return options
