"""From an ATen graph to a launch list: the passes that every backend drives, with its target."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import fx

from framesmith_aten.contract import OnError, Role
from framesmith_backends.ir.fused.attention import Attends
from framesmith_backends.ir.program import Program
from framesmith_backends.ir.verify import Malformed, verify_item, verify_program
from framesmith_backends.lower.graph import Lowering, lower_graph
from framesmith_backends.native_ops.attention.rewrite import use_native_attention
from framesmith_backends.native_ops.matmul.rewrite import move_matmuls
from framesmith_backends.native_ops.random_numbers.rewrite import with_drawn_numbers
from framesmith_backends.native_ops.recurrent.rewrite import with_recurrent_layers
from framesmith_backends.native_ops.scans.rewrite import with_scans
from framesmith_backends.native_ops.sorts.rewrite import with_sorts
from framesmith_backends.passes import Pass, observe, observed_by, run_passes
from framesmith_backends.rewrite.attention import with_cheaper_attention
from framesmith_backends.rewrite.attention_gradient import recompute_probabilities
from framesmith_backends.rewrite.channels_last import channels_last, with_channels_last
from framesmith_backends.rewrite.convolution_layouts import ON_CPU, ON_CUDA
from framesmith_backends.rewrite.in_place_calls import with_calls_in_place
from framesmith_backends.rewrite.log_probabilities import decompose_log_softmax
from framesmith_backends.rewrite.partial_writes import write_parts
from framesmith_backends.rewrite.unfused_bias import without_bias
from framesmith_backends.schedule.matmuls.epilogues import ChooseTiles
from framesmith_backends.schedule.plan import Plan, list_steps
from framesmith_backends.target import Target


@dataclass(frozen=True, slots=True)
class Compilation:
    """The context of passes over a graph: `attends` says which attention is one kernel, if any is."""

    target: Target
    role: Role
    options: Mapping[str, object]
    attends: Attends | None = None


def _on_cpu(about: Compilation) -> bool:
    return not about.target.on_gpu


def _takes_native_ops(about: Compilation) -> bool:
    return about.target.native_ops


def _on_gpu(about: Compilation) -> bool:
    return about.target.on_gpu


def _lays_out(about: Compilation) -> bool:
    return about.options.get("layout") == "channels_last"


#: Passes over the graph of a training step, before it is partitioned into forward and backward.
STEP_PASSES: tuple[Pass[fx.Graph, Compilation], ...] = (
    Pass("decompose-log-softmax", lambda graph, _: decompose_log_softmax(graph) or graph, _on_gpu),
    Pass(
        "recompute-probabilities",
        lambda graph, about: (about.attends and recompute_probabilities(graph, about.attends)) or graph,
        _on_gpu,
    ),
    Pass(
        "channels-last",
        lambda graph, about: with_channels_last(graph, ON_CUDA if about.target.on_gpu else ON_CPU) or graph,
        _lays_out,
    ),
)
#: Passes over a whole graph, before it is partitioned for capture. Those of training were laid out by STEP_PASSES.
LAYOUT_PASSES: tuple[Pass[fx.GraphModule, Compilation], ...] = (
    Pass(
        "channels-last",
        lambda gm, about: channels_last(gm, ON_CUDA if about.target.on_gpu else ON_CPU),
        lambda about: about.role == "inference" and _lays_out(about),
    ),
)
#: Passes over a graph, or over a part of one that is captured by itself.
GRAPH_PASSES: tuple[Pass[fx.GraphModule, Compilation], ...] = (
    Pass("recurrent-layers", lambda gm, _: with_recurrent_layers(gm), _takes_native_ops),
    Pass(
        "matmul-providers",
        lambda gm, about: move_matmuls(gm, str(about.options.get("matmul", "aten"))),
        _takes_native_ops,
    ),
    Pass("random-numbers", lambda gm, _: with_drawn_numbers(gm), _takes_native_ops),
    Pass("native-scans", lambda gm, _: with_scans(gm), _takes_native_ops),
    Pass("native-sorts", lambda gm, _: with_sorts(gm), _takes_native_ops),
    Pass("grouped-query-attention", lambda gm, _: with_cheaper_attention(gm), _on_cpu),
    Pass("native-attention", lambda gm, _: use_native_attention(gm), _takes_native_ops),
    Pass("unfused-bias", lambda gm, _: without_bias(gm), _on_gpu),
    Pass("partial-writes", lambda gm, _: write_parts(gm)),
    Pass("in-place-calls", lambda gm, _: with_calls_in_place(gm)),
)


def transform_step(graph: fx.Graph, about: Compilation, on_error: OnError | None = None) -> fx.Graph | None:
    """Return the graph of a training step after STEP_PASSES; None where nothing changes.

    A pass that fails is reported to `on_error` by its name, and the others run; without `on_error` it raises.
    """
    made = graph
    with verifying(about.options):
        for one in STEP_PASSES:
            try:
                made = run_passes((one,), made, about)
            except Exception as error:
                if on_error is None:
                    raise
                on_error(f"a training step (pass {one.name!r})", error)
    return None if made is graph else made


@dataclass(frozen=True, slots=True)
class Planned:
    """The graph after its passes, its lowering, and its launch list, which `schedule.plan.place_buffers` completes."""

    graph: fx.GraphModule
    lowering: Lowering
    plan: Plan


def plan_graph(
    gm: fx.GraphModule,
    about: Compilation,
    device: str,
    on_error: OnError | None = None,
    native: bool = False,
    choose: ChooseTiles | None = None,
) -> Planned:
    """Run GRAPH_PASSES, lower the graph of tensors on that type of device, and schedule it; see `list_steps`."""
    gm = run_passes(GRAPH_PASSES, gm, about)
    start = time.perf_counter()
    lowering = lower_graph(gm, about.target, device, on_error)
    observe("lowering", lowering.program, True, time.perf_counter() - start)
    return Planned(gm, lowering, list_steps(lowering.program, about.target, native, choose, about.attends))


def verifying(options: Mapping[str, object]) -> AbstractContextManager[None]:
    """Return a context in which each pass is followed by `verify_after`, if the options ask for that."""
    return observed_by(verify_after) if options.get("verify_ir") else nullcontext()


def verify_after(name: str, ir: object, _changed: bool, _seconds: float) -> None:
    """Check an IR's invariants after a pass, as an observer. Raises `ir.verify.Malformed`, which names the pass."""
    try:
        if isinstance(ir, (fx.Graph, fx.GraphModule)):
            (ir.graph if isinstance(ir, fx.GraphModule) else ir).lint()
        elif isinstance(ir, Program):
            verify_program(ir)
        elif isinstance(ir, Plan):
            for item in ir.items:
                verify_item(item)
    except Exception as error:
        raise Malformed(f"after pass {name!r}: {error}") from error
