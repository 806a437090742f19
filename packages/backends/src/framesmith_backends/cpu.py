"""The `cpu` backend: kernels through LLVM in this process, everything else as ATen calls."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import fx

from framesmith_aten.contract import ROLES, BoxedFn, OnError, Role
from framesmith_backends.eager import run_eagerly
from framesmith_backends.ir.fused.attention import FusedAttention
from framesmith_backends.launch.background import made, waiting
from framesmith_backends.launch.llvm.libraries import why_no_blas
from framesmith_backends.launch.source import executed, write
from framesmith_backends.lower.graph import Lowering, has_rule, why_not_functional
from framesmith_backends.native_ops.base import pending_code
from framesmith_backends.native_ops.matmul.providers import PROVIDERS
from framesmith_backends.options import check_role, checked_options
from framesmith_backends.passes import run_passes
from framesmith_backends.pipeline import LAYOUT_PASSES, Compilation, plan_graph, transform_step, verifying
from framesmith_backends.reporting import KERNEL_LOG, PLAN_LOG, noted_refusals
from framesmith_backends.schedule.plan import Plan, place_buffers
from framesmith_backends.schedule.steps import Run
from framesmith_backends.target import CPU
from framesmith_guards.torch_adapter import OpOverload

#: The values of each option, the default first.
CHOICES: Mapping[str, tuple[object, ...]] = {
    "numerics": ("strict", "contract"), "matmul": ("auto", *PROVIDERS), "layout": ("channels_last", "traced"),
    "launch": ("native", "python"), "verify_ir": (False, True),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stages:
    """Every stage of one compilation, for reading; `refusals` are the reasons of matchers that declined."""

    lowering: Lowering
    plan: Plan
    llvm: str
    source: str
    refusals: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """All stages, under headings."""
        notes = "\n".join(f"{name}: {why}" for name, why in {**self.lowering.notes, **self.refusals}.items())
        kernels = "\n\n".join(item.text() for item in self.plan.items)
        parts = (
            ("lowered", self.lowering.program.text()), ("ATen calls, and why", notes), ("kernels", kernels),
            ("plan", self.plan.text()), ("launcher", self.source), ("LLVM", self.llvm),
        )  # fmt: skip
        return "\n\n".join(f"# {title}\n{body}" for title, body in parts)


class CpuBackend:
    """Compiles graphs of CPU tensors.

    Option `numerics`: "strict" rounds each operation as eager does; "contract" may fuse a*b+c, which is up to 7% faster
    in sums and wrong where eager's rounding errors cancel (a*a - b*b is not 0 for equal a and b).
    Option `layout`: "channels_last" computes convolutions in channels-last where that is faster; "traced" leaves every
    tensor in the layout it was traced with.
    Option `matmul`: what multiplies large float32 matrices, "aten", "onednn" or "native", the kernel of this package;
    "auto" asks the cost table, which measures each class of matmul once for the machine.
    Option `verify_ir`: True checks the IR's invariants after each pass.
    Option `launch`: "native" runs matmuls of float32 matrices between kernels, without tensor objects, and keeps what
    lives there in one block of memory; "python" calls every operator of ATen's from Python.
    """

    name = "cpu"
    devices: tuple[str, ...] = ("cpu",)
    roles: tuple[Role, ...] = ROLES
    options: Mapping[str, object] = {name: values[0] for name, values in CHOICES.items()}

    def lowers(self, op: OpOverload) -> bool:
        return has_rule(op)

    def transform_step(
        self, graph: fx.Graph, options: Mapping[str, object] | None = None, on_error: OnError | None = None
    ) -> fx.Graph | None:
        """Return the graph of a training step, before it is partitioned, in channels-last; None for no change."""
        chosen = checked_options(options, self.options, CHOICES, self.name)
        return transform_step(graph, Compilation(CPU, "forward", chosen), on_error)

    def compile(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        role: Role = "inference",
        options: Mapping[str, object] | None = None,
        on_error: OnError | None = None,
    ) -> BoxedFn:
        check_role(role, self.name)
        chosen = checked_options(options, self.options, CHOICES, self.name)
        if why_not_functional(gm) is not None:
            return run_eagerly(gm)
        return self._launcher(gm, chosen, role, on_error)[0]

    def why_not(self, gm: fx.GraphModule) -> str | None:
        if importlib.util.find_spec("llvmlite") is None:
            return "llvmlite is not installed: python -m pip install 'framesmith-backends[cpu]'"
        return why_not_functional(gm)

    def explain(self, gm: fx.GraphModule, options: Mapping[str, object] | None = None) -> Stages:
        """Compile the graph and keep every stage's text."""
        chosen = checked_options(options, self.options, CHOICES, self.name)
        with noted_refusals() as refusals:
            return replace(self._launcher(gm, chosen, "inference")[1], refusals=refusals)

    def _launcher(
        self, gm: fx.GraphModule, options: Mapping[str, object], role: Role, on_error: OnError | None = None
    ) -> tuple[BoxedFn, Stages]:
        traced, about = gm, Compilation(CPU, role, options, lambda kind, device: True)
        native = options["launch"] == "native" and why_no_blas() is None
        with verifying(options):
            planned = plan_graph(run_passes(LAYOUT_PASSES, gm, about), about, "cpu", on_error, native)
            gm, lowering = planned.graph, planned.lowering
            plan = place_buffers(planned.plan, lowering.program, CPU, native)
        source, space = write(plan, gm, partial(self._compile_body, options, on_error))
        runs = plan.runs
        llvm, entries = begin_machine_code(runs, strict=options["numerics"] == "strict") if runs else ("", made({}))
        PLAN_LOG.info("%d steps", len(plan.steps))
        KERNEL_LOG.info("%d kernels in %d runs", len(plan.kernels), len(runs))
        if PLAN_LOG.isEnabledFor(logging.DEBUG):
            PLAN_LOG.debug("%s", plan.text())
        KERNEL_LOG.debug("%s", llvm)

        def otherwise(error: Exception) -> BoxedFn:
            if on_error is None:
                raise error
            on_error(f"a graph ({role})", error)
            return run_eagerly(traced)

        launcher = waiting(executed(source, space), entries, pending_code(gm), otherwise)
        return launcher, Stages(lowering, plan, llvm, source)

    def _compile_body(self, options: Mapping[str, object], on_error: OnError | None, body: fx.GraphModule) -> BoxedFn:
        if why_not_functional(body) is not None:
            return run_eagerly(body)
        return self._launcher(body, options, "inference", on_error)[0]


def begin_machine_code(runs: Sequence[Run], strict: bool) -> tuple[str, Future[Mapping[str, object]]]:
    """LLVM's text of the runs, and what they are entered through. LLVM is loaded by the first graph that has any."""
    from framesmith_backends.launch.llvm.engine import TENSOR_TYPES, begin_module, machine
    from framesmith_backends.native_ops.attention.fused import render_fused_attention
    from framesmith_backends.render.llvm.module import KernelModule, NativeLaunch, Render, add_entry

    known = machine()
    renderers: dict[type, Render] = {FusedAttention: render_fused_attention}
    module = KernelModule(known.target, known.bytes_to_handle, (*TENSOR_TYPES,), strict, renderers)
    for run in runs:
        positions = run.positions
        launches = [
            NativeLaunch(
                item, tuple(positions[p.name] for p in item.params), tuple(map(run.numbers.index, item.numbers))
            )
            for item in run.items
        ]
        offsets = [one.offset for one in run.inner]
        add_entry(module, run.entry, len(run.buffers), launches, run.numbers, offsets)
    text = module.text()
    return text, begin_module(text, [run.entry for run in runs])


backend = CpuBackend()
