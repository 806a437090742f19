"""The `cuda` backend: the same lowering and schedule as `cpu`, rendered as Triton kernels."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from framesmith_aten.contract import ROLES, BoxedFn, OnError, Role
from framesmith_aten.operators import applied_to_each
from framesmith_backends.eager import run_eagerly
from framesmith_backends.launch.kernel_runs import KernelRun
from framesmith_backends.launch.source import executed, write
from framesmith_backends.lower.graph import Lowering, has_rule, lower_graph, why_not_functional
from framesmith_backends.options import checked_options, checked_role
from framesmith_backends.render.triton.kernel import TritonKernel, render_triton
from framesmith_backends.rewrite.in_place_calls import with_calls_in_place
from framesmith_backends.rewrite.written_parts import with_parts_written
from framesmith_backends.schedule.plan import Plan, make_plan
from framesmith_backends.schedule.split import FOR_GPU
from framesmith_backends.schedule.steps import Run


@dataclass(frozen=True, slots=True)
class TritonStages:
    """Every stage of one compilation, for reading; `graph` is what was lowered."""

    graph: fx.GraphModule
    lowering: Lowering
    plan: Plan
    kernels: tuple[TritonKernel, ...]
    source: str

    def text(self) -> str:
        """All stages, under headings."""
        notes = "\n".join(f"{name}: {why}" for name, why in self.lowering.notes.items())
        parts = (
            ("lowered", self.lowering.program.text()), ("ATen calls, and why", notes),
            ("kernels", "\n\n".join(k.text() for k in self.plan.kernels)), ("plan", self.plan.text()),
            ("launcher", self.source), ("Triton", "\n".join(form.source for k in self.kernels for form in k.forms)),
        )  # fmt: skip
        return "\n\n".join(f"# {title}\n{body}" for title, body in parts)


class CudaBackend:
    """Compiles graphs of CUDA tensors. With TRITON_INTERPRET=1 it takes CPU tensors, slowly, to check numerics."""

    name = "cuda"
    devices: tuple[str, ...] = ("cuda",)
    roles: tuple[Role, ...] = ROLES
    options: Mapping[str, object] = {}

    def takes_whole(self, op: OpOverload) -> bool:
        return has_rule(op) or applied_to_each(op) is not None  # one launch for many tensors

    def compile(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        role: Role = "inference",
        options: Mapping[str, object] | None = None,
        on_error: OnError | None = None,
    ) -> BoxedFn:
        checked_role(role, self.name)
        checked_options(options, self.options, {}, self.name)
        problem = self.why_not_here()
        if problem is not None:
            raise RuntimeError(f"backend 'cuda' cannot run here: {problem}")
        if why_not_functional(gm) is not None or len(_device_indices(gm)) > 1:
            return run_eagerly(gm)
        stages = _stages(gm, on_error)
        return _launcher(stages)

    def why_not_here(self) -> str | None:
        """What this machine lacks, and what to install; or None."""
        return why_no_triton()

    def why_not(self, gm: fx.GraphModule) -> str | None:
        return self.why_not_here() or why_not_functional(gm)

    def explain(self, gm: fx.GraphModule, options: Mapping[str, object] | None = None) -> TritonStages:
        """Lower, schedule and render the graph; needs neither a GPU nor triton."""
        checked_options(options, self.options, {}, self.name)
        return _stages(gm)


def _stages(gm: fx.GraphModule, on_error: OnError | None = None) -> TritonStages:
    gm = with_calls_in_place(with_parts_written(gm))
    lowering = lower_graph(gm, device_of(gm), on_error, in_order=False)
    plan = make_plan(lowering.program, scratch=False, apart=False, splitting=FOR_GPU)
    kernels = tuple(render_triton(k, f"triton_{k.name}") for k in plan.kernels if k.points != 0)
    return TritonStages(gm, lowering, plan, kernels, write(plan, gm)[0])


def interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def why_no_triton() -> str | None:
    """Why Triton kernels cannot run in this process, or None."""
    missing = [name for name in ("triton", "llvmlite") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{missing[0]} is not installed: python -m pip install 'framesmith-backends[cuda]'"
    if not torch.cuda.is_available() and not interpreting():
        return "torch sees no CUDA device (TRITON_INTERPRET=1 runs its kernels on CPU tensors, slowly)"
    return None


def device_of(gm: fx.GraphModule) -> str:
    """The device type kernels are made for: cuda, except that interpreted kernels work on the CPU."""
    kinds = {v.device.type for n in gm.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)}
    return "cpu" if kinds == {"cpu"} else "cuda"


def device_index(gm: fx.GraphModule) -> int:
    """The number of the CUDA device that the graph's tensors are on; the current one where they do not say."""
    indices = _device_indices(gm)
    return indices.pop() if indices else torch.cuda.current_device()


def _device_indices(gm: fx.GraphModule) -> set[int]:
    devices = {v.device for n in gm.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)}
    return {device.index for device in devices if device.type == "cuda" and device.index is not None}


def _launcher(stages: TritonStages) -> BoxedFn:
    from framesmith_backends.launch.cuda_native import native_entries
    from framesmith_backends.launch.triton_jit import entry

    source, space = write(stages.plan, stages.graph)
    runs = kernel_runs(stages)
    entries = {run.step.entry: entry(run.kernels, run.places) for run in runs}
    if runs and not interpreting():
        from framesmith_backends.launch.cuda_driver import driver

        device = device_index(stages.graph)
        major, minor = torch.cuda.get_device_capability(device)
        instead = {name: _on_device(run, device) for name, run in entries.items()}
        entries = native_entries(runs, instead, device, 10 * major + minor, driver())
    return executed(source, space | entries)


def kernel_runs(stages: TritonStages) -> list[KernelRun]:
    """The runs of kernels, with their Triton forms, and where these find their arguments."""
    rendered = {k.name: k for k in stages.kernels}
    found = []
    for run in (step for step in stages.plan.steps if isinstance(step, Run)):
        kernels = [k for k in run.kernels if k.points != 0]
        names = (*run.buffers, *run.numbers)
        places = [tuple(names.index(n) for n in (*(p.name for p in k.params), *k.numbers)) for k in kernels]
        found.append(KernelRun(run, [rendered[f"triton_{k.name}"] for k in kernels], places))
    return found


def _on_device(run: Callable[..., None], device: int) -> Callable[..., None]:
    """The run while that device is current."""

    def call(*values: Any) -> None:
        with torch.cuda.device(device):
            run(*values)

    return call


backend = CudaBackend()
