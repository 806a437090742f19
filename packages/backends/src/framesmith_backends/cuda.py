"""The `cuda` backend: the same lowering and schedule as `cpu`, rendered as Triton kernels."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from framesmith_aten.contract import MODES, ROLES, BoxedFn, OnError, Role
from framesmith_backends.autotune.matmuls import MatmulTuner
from framesmith_backends.autotune.tiles import TileTuner
from framesmith_backends.cuda_graphs.capturable import launches_anything, parameters, takes_unbacked, why_not_captured
from framesmith_backends.cuda_graphs.partition import Part, in_sequence, partition
from framesmith_backends.eager import run_eagerly
from framesmith_backends.launch.cuda.kernel_runs import KernelRun, kernel_run, render_runs
from framesmith_backends.launch.loops import CompileBody
from framesmith_backends.launch.source import executed, write
from framesmith_backends.lower.graph import Lowering, has_rule, why_not_functional
from framesmith_backends.options import check_role, checked_options
from framesmith_backends.passes import run_passes
from framesmith_backends.pipeline import LAYOUT_PASSES, Compilation, plan_graph, transform_step, verifying
from framesmith_backends.render.triton.horizontal import TritonLaunch
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.reporting import PLAN_LOG, log_once, noted_refusals
from framesmith_backends.rewrite.scalars import with_scalars_moved
from framesmith_backends.schedule.plan import Plan, place_buffers
from framesmith_backends.schedule.steps import Allocate
from framesmith_backends.target import GPU
from framesmith_backends.torch_adapter import rounds_float32
from framesmith_guards.torch_adapter import OpOverload

#: The values of each option, the default first.
CHOICES: Mapping[str, tuple[object, ...]] = {
    "mode": tuple(MODES), "layout": ("channels_last", "traced"), "verify_ir": (False, True),
}  # fmt: skip
#: Modes in which launches are captured, and in which candidates of matmuls and kernels are timed.
CAPTURING, MEASURING = ("reduce-overhead", "max-autotune"), ("max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, slots=True)
class TritonStages:
    """Every stage of one compilation, for reading; `graph` is what was lowered.

    `kernels` are those of the plan, each as a function of its own, `launches` those of each run's entry, `capture` says
    whether they are captured as a CUDA graph, and why not. `matmuls` and `tiles` report what was measured. `parts` are
    those of a partitioned graph.
    """

    graph: fx.GraphModule
    lowering: Lowering
    plan: Plan
    kernels: tuple[TritonKernel, ...]
    launches: Mapping[str, Sequence[TritonLaunch]]
    source: str
    capture: str = "not asked for"
    matmuls: str = ""
    tiles: str = ""
    parts: tuple[TritonStages, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """All stages, under headings; of a partitioned graph those of its parts, one part after another."""
        if self.parts:
            texts = [f"# part {at + 1} of {len(self.parts)}\n\n{part.text()}" for at, part in enumerate(self.parts)]
            return "\n\n".join([f"# CUDA graph\n{self.capture}", *texts])
        notes = "\n".join(f"{name}: {why}" for name, why in {**self.lowering.notes, **self.refusals}.items())
        parts = (
            ("lowered", self.lowering.program.text()), ("ATen calls, and why", notes), ("CUDA graph", self.capture),
            ("matmuls", self.matmuls), ("tiles", self.tiles),
            ("kernels", "\n\n".join(item.text() for item in self.plan.items)), ("plan", self.plan.text()),
            ("launcher", self.source), ("Triton", "\n".join(one.source for k in self.launched for one in k.versions)),
        )  # fmt: skip
        return "\n\n".join(f"# {title}\n{body}" for title, body in parts)

    @property
    def launched(self) -> list[TritonKernel]:
        """The launched kernels, in order."""
        return [launch.kernel for run in self.launches.values() for launch in run]


class CudaBackend:
    """Compiles graphs of CUDA tensors. With TRITON_INTERPRET=1 it takes CPU tensors, slowly, to check numerics.

    Option `mode`: "reduce-overhead" captures what a graph launches as a CUDA graph, in the second call with the same
    sizes, and replays it in later ones. "max-autotune" does so too, and "max-autotune-no-cudagraphs" does not: both
    measure on the device, while compiling, whether matmuls run faster as one kernel with what follows, and with what
    computes their operands, and in which of a few configurations other kernels are fastest.
    Option `layout`: "channels_last" computes convolutions in channels-last where cuDNN's tensor cores take them so;
    "traced" leaves every tensor in the layout it was traced with. Option `verify_ir`: see `CpuBackend`.
    """

    name = "cuda"
    devices: tuple[str, ...] = ("cuda",)
    roles: tuple[Role, ...] = ROLES
    options: Mapping[str, object] = {name: values[0] for name, values in CHOICES.items()}

    def lowers(self, op: OpOverload) -> bool:
        return has_rule(op)

    def transform_step(
        self, graph: fx.Graph, options: Mapping[str, object] | None = None, on_error: OnError | None = None
    ) -> fx.Graph | None:
        """Return the graph of a training step, before it is partitioned, after its passes; None for no change.

        Its convolutions are in channels-last, log-softmax is decomposed, and attention's probabilities are recomputed.
        """
        chosen = checked_options(options, self.options, CHOICES, self.name)
        return transform_step(graph, Compilation(GPU, "forward", chosen, _attends), on_error)

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
        about = Compilation(GPU, role, chosen, _attends)
        problem = self.why_not_here()
        if problem is not None:
            raise RuntimeError(f"backend 'cuda' cannot run here: {problem}")
        if device_of(gm) == "cpu" and not interpreting():
            log_once("backend='cuda': graphs of tensors on the CPU alone run as they are; 'auto' compiles them for it")
            return run_eagerly(gm)
        if not _is_lowered(gm):
            return _captured(run_eagerly(gm), gm, about)
        with verifying(chosen):
            return self._compiled(gm, about, on_error)

    def _compiled(self, gm: fx.GraphModule, about: Compilation, on_error: OnError | None) -> BoxedFn:
        graph, parts = run_passes(LAYOUT_PASSES, gm, about), None
        try:
            graph, parts = _partitioned(graph, about)
        except Exception as error:
            if on_error is None:
                raise
            on_error("partitioning a graph", error)
        if parts is not None:
            return _captured_in_parts(graph, parts, about, on_error)
        run = launcher(_measured_stages(graph, about, on_error), None, _body_compiler(about, on_error))
        return _captured(run, graph, about)

    def why_not_here(self) -> str | None:
        """The reason why this machine cannot run it, and what to install; or None."""
        missing = [name for name in ("triton", "llvmlite") if importlib.util.find_spec(name) is None]
        if missing:
            return f"{missing[0]} is not installed: python -m pip install 'framesmith-backends[cuda]'"
        if not torch.cuda.is_available() and not interpreting():
            return "torch sees no CUDA device (TRITON_INTERPRET=1 runs its kernels on CPU tensors, slowly)"
        return None

    def why_not(self, gm: fx.GraphModule) -> str | None:
        return self.why_not_here() or why_not_functional(gm)

    def explain(self, gm: fx.GraphModule, options: Mapping[str, object] | None = None) -> TritonStages:
        """Lower, schedule and render the graph, as one of inference; needs neither a GPU nor triton."""
        chosen = checked_options(options, self.options, CHOICES, self.name)
        about = Compilation(GPU, "inference", chosen, _attends)
        with verifying(chosen):
            graph, parts = run_passes(LAYOUT_PASSES, gm, about), None
            if _is_lowered(graph):
                graph, parts = _partitioned(graph, about)
            stages = replace(_stages(graph, about), capture=_capture_text(graph, parts, _mode(about)))
            kind = device_of(graph)
            found = (replace(_stages(part.graph, about, kind), capture=part.text()) for part in parts or ())
            return replace(stages, parts=tuple(found))


def _mode(about: Compilation) -> str:
    return str(about.options["mode"])


def _stages(gm: fx.GraphModule, about: Compilation, device: str | None = None) -> TritonStages:
    """All stages of the graph, its matmuls by their baselines, other kernels by rule."""
    choose, tiles = _choices(gm, _mode(about), measured=False)
    return stages_of(gm, None, choose, device, tiles, about)


def _measured_stages(
    gm: fx.GraphModule, about: Compilation, on_error: OnError | None, device: str | None = None
) -> TritonStages:
    """All stages of the graph; where the mode asks for that, its matmuls and kernels are measured."""
    choose, tiles = _choices(gm, _mode(about), not interpreting(), on_error)
    stages = stages_of(gm, on_error, choose, device, tiles, about)
    if choose is not None:
        for what, report in (("matmuls", stages.matmuls), ("tiles", stages.tiles)):
            if report:
                PLAN_LOG.info("%s:\n%s", what, report)
    return stages


def stages_of(
    gm: fx.GraphModule,
    on_error: OnError | None = None,
    choose: MatmulTuner | None = None,
    device: str | None = None,
    tiles: TileTuner | None = None,
    about: Compilation | None = None,
) -> TritonStages:
    """All stages of the graph; `choose` has candidates of matmuls, `tiles` those of other kernels, else by rule.

    Without `about` it is one of inference, with the default options.
    """
    about = about or Compilation(GPU, "inference", CudaBackend.options, _attends)
    with noted_refusals() as refusals:
        planned = plan_graph(gm, about, device or device_of(gm), on_error, choose=choose)
    gm, lowering, listed = planned.graph, planned.lowering, planned.plan
    made = render_runs(listed)
    plan = place_buffers(listed, lowering.program, GPU, arenas=True, positions=made.positions)
    every = [one for some in made.gathered.values() for one in some]
    allocated = {step.name: step.layout for step in listed.steps if isinstance(step, Allocate)}
    program = replace(lowering.program, layouts={**lowering.program.layouts, **allocated})
    chosen = {} if tiles is None else tiles(every, program)
    functions = dict(made.functions)
    for one in chosen.values():
        functions.update(one.functions)
    launched = {
        entry: [chosen[one.name].launch if one.name in chosen else one.launch(functions) for one in some]
        for entry, some in made.gathered.items()
    }
    reports = ["mode asks for no measuring" if choices is None else choices.text() for choices in (choose, tiles)]
    kernels, source = tuple(functions.values()), write(plan, gm)[0]
    return TritonStages(
        gm, lowering, plan, kernels, launched, source, matmuls=reports[0], tiles=reports[1], refusals=refusals
    )


def _attends(dtype: str, device: str) -> bool:
    """Whether attention whose queries and keys are of this type is one kernel: where tensor cores may multiply them."""
    known = device.startswith("cuda") and torch.cuda.is_available()
    capable = not known or torch.cuda.get_device_capability(device) >= (8, 0)
    return capable and (dtype != "f32" or rounds_float32("matmul"))


def _partitioned(gm: fx.GraphModule, about: Compilation) -> tuple[fx.GraphModule, list[Part] | None]:
    """The graph, as it is to be captured, and its parts; None where it is captured as one, or not at all."""
    if _mode(about) not in CAPTURING or not launches_anything(gm):
        return gm, None
    if why_no_cuda_graph(gm) is None and not takes_unbacked(gm):
        return gm, None
    kind = device_of(gm)
    if kind == "cpu":
        return gm, None  # nothing of it is launched
    device = torch.device(kind, *_device_indices(gm))
    graph = with_scalars_moved(gm, device)
    if why_no_cuda_graph(graph) is None and not takes_unbacked(graph):
        return graph, None
    parts = partition(graph, device, lambda part: plan_graph(part, about, kind, lambda *_: None).plan.launches)
    return (gm, None) if parts is None else (graph, parts)


def _captured_in_parts(
    gm: fx.GraphModule, parts: Sequence[Part], about: Compilation, on_error: OnError | None
) -> BoxedFn:
    """The graph by its parts, each a launcher of its own, captured or not."""
    from framesmith_backends.cuda_graphs.captured_graph import CapturedGraph
    from framesmith_backends.cuda_graphs.capturer import CudaCapturer

    name = _name(gm, about)
    PLAN_LOG.info("%s is captured in parts\n%s", name, "\n".join(part.text() for part in parts))
    kind, index = device_of(gm), device_index(gm)
    capturer = CudaCapturer(index)
    functions: list[BoxedFn] = []
    for at, part in enumerate(parts):
        run = launcher(_measured_stages(part.graph, about, on_error, kind), index, _body_compiler(about, on_error))
        if part.why is None:
            what = f"{name}, part {at + 1} of {len(parts)},"
            run = CapturedGraph(run, parameters(part.graph), capturer, what)
        functions.append(run)
    return in_sequence(gm, parts, functions)


def _captured(run: BoxedFn, gm: fx.GraphModule, about: Compilation) -> BoxedFn:
    """The function with its launches captured, where they may be; a warning names graphs where they may not."""
    if _mode(about) not in CAPTURING or not launches_anything(gm):
        return run
    name, why = _name(gm, about), why_no_cuda_graph(gm)
    if why is not None:
        log_once(f"{name} runs without CUDA graphs: {why}")
        return run
    from framesmith_backends.cuda_graphs.captured_graph import CapturedGraph
    from framesmith_backends.cuda_graphs.capturer import CudaCapturer

    return CapturedGraph(run, parameters(gm), CudaCapturer(device_index(gm)), name)


def _name(gm: fx.GraphModule, about: Compilation) -> str:
    first = next(str(node.target) for node in gm.graph.nodes if node.op == "call_function")
    return f"mode={_mode(about)!r}: the {about.role} graph of {first}"


def why_no_cuda_graph(gm: fx.GraphModule) -> str | None:
    """Why what the graph launches is not captured, or None."""
    indices = _device_indices(gm)
    if len(indices) > 1:
        return f"its tensors are on {len(indices)} devices"
    why = why_not_functional(gm)
    if why is not None:
        return f"it runs node by node, since {why}"
    return why_not_captured(gm, torch.device("cuda", *indices))


def _capture_text(graph: fx.GraphModule, parts: Sequence[Part] | None, mode: str) -> str:
    if mode not in CAPTURING:
        return f"none: mode is {mode!r}"
    if parts is not None:
        return "\n".join(["in parts, each lowered by itself", *(part.text() for part in parts)])
    why = why_no_cuda_graph(graph) if launches_anything(graph) else "nothing is launched"
    return "captured in the second call with the same sizes" if why is None else f"none: {why}"


def _is_lowered(gm: fx.GraphModule) -> bool:
    """Whether the graph is not run node by node."""
    return why_not_functional(gm) is None and len(_device_indices(gm)) <= 1


def _choices(
    gm: fx.GraphModule, mode: str, measured: bool, on_error: OnError | None = None
) -> tuple[MatmulTuner, TileTuner] | tuple[None, None]:
    """The choices of candidates of the graph's matmuls and kernels, on its device; not `measured`, the baselines."""
    if mode not in MEASURING:
        return None, None
    exact = not rounds_float32("matmul")
    if not measured or device_of(gm) != "cuda":
        return MatmulTuner(exact=exact), TileTuner()
    from framesmith_backends.autotune.clock import DeviceClock
    from framesmith_backends.launch.cuda.driver import device

    clock = DeviceClock(device(device_index(gm)))
    return MatmulTuner(clock, on_error, exact=exact), TileTuner(clock, on_error)


def interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


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


def _body_compiler(about: Compilation, on_error: OnError | None) -> CompileBody:
    """Compiles bodies of control flow: their launches are not captured, as the host decides how often they run."""
    modes = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
    options = {**about.options, "mode": modes.get(_mode(about), _mode(about))}
    return lambda body: backend.compile(body, [], "inference", options, on_error)


def launcher(stages: TritonStages, index: int | None = None, compile_body: CompileBody = run_eagerly) -> BoxedFn:
    """The launcher, on the device of that number, or on that of the graph's tensors."""
    from framesmith_backends.launch.cuda.one_by_one import entry

    source, space = write(stages.plan, stages.graph, compile_body)
    runs, place = kernel_runs(stages), None
    if runs and not interpreting():
        from framesmith_backends.launch.cuda.driver import device

        place = device(device_index(stages.graph) if index is None else index)
    entries = {run.step.entry: entry(run, place) for run in runs}
    if place is None:
        return executed(source, {**space, **entries})
    from framesmith_backends.launch.cuda.native import native_entries

    return executed(source, {**space, **native_entries(runs, entries, place)})


def kernel_runs(stages: TritonStages) -> list[KernelRun]:
    return [kernel_run(run, stages.launches[run.entry]) for run in stages.plan.runs]


backend = CudaBackend()
