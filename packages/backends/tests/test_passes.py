"""Passes as rows: what observers see, what verification catches and names, what is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from graphs.tracing import trace
from torch import fx

from framesmith_backends import CpuBackend, CudaBackend, cuda, passes, pipeline
from framesmith_backends.cuda import stages_of
from framesmith_backends.ir.fused.attention import FusedAttention
from framesmith_backends.ir.verify import Malformed
from framesmith_backends.passes import Pass, observed_by
from framesmith_backends.pipeline import Compilation, plan_graph
from framesmith_backends.schedule import plan as planning
from framesmith_backends.target import CPU, Target
from framesmith_guards.torch_adapter import OpOverload

INPUTS = [torch.arange(6.0).reshape(2, 3), torch.ones(3)]


def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + y, 1)


def test_observers_see_each_pass_in_order() -> None:
    seen: list[tuple[str, bool]] = []
    with observed_by(lambda name, ir, changed, seconds: seen.append((name, changed))):
        CpuBackend().compile(trace(softmax, INPUTS), INPUTS)
    names = [name for name, _ in seen]
    assert names[: names.index("lowering")][-2:] == ["partial-writes", "in-place-calls"]
    assert ("lowering", True) in seen and ("native-sorts", False) in seen
    assert names[-1] == "drops" and "copy-kernels" in names and "combined-copies" not in names


def test_passes_that_change_nothing_say_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "framesmith.passes"):
        stages_of(trace(lambda x: x + 1, INPUTS[:1]))
        CpuBackend().explain(trace(lambda x: x + 1, INPUTS[:1]))
    said = [record.getMessage().split(": ") for record in caplog.records]
    changes = [name for name, what in said if what.startswith("changed")]
    assert changes == ["lowering", "dead-definitions", "drops"] * 2  # the definitions in memory, the last uses


def test_both_targets_drive_the_same_lists() -> None:
    def driven(run: object) -> set[str]:
        seen: set[str] = set()
        with observed_by(lambda name, *_: seen.add(name)):
            run()  # type: ignore[operator]
        return seen

    gm = trace(softmax, INPUTS)
    cpu, cuda = driven(lambda: CpuBackend().explain(gm)), driven(lambda: stages_of(gm))
    assert {"split-reductions", "inline", "reverse-scans", "in-place-writes", "shaped-outputs", "drops"} <= cpu & cuda
    assert cuda - cpu == {"unfused-bias", "row-layouts", "combined-copies"}


def sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sum(1), (x - x.sum(1, keepdim=True)).sum(0)


@pytest.fixture
def shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last pass before fusion puts definitions behind their readers; the tests' own verification is off."""

    def shuffle(program: planning.Program, _: planning.Fusing) -> planning.Program:
        return replace(program, defs=dict(reversed(program.defs.items())))

    monkeypatch.setattr(planning, "FUSION_PASSES", (*planning.FUSION_PASSES, Pass("shuffle", shuffle)))
    monkeypatch.setattr(passes, "EVERYWHERE", [])


@pytest.mark.usefixtures("shuffled")
@pytest.mark.parametrize(
    "run",
    [
        lambda gm, options: CpuBackend().compile(gm, INPUTS, options=options),
        lambda gm, options: CpuBackend().explain(gm, options),
        lambda gm, options: CudaBackend().explain(gm, options),
    ],
    ids=["compile", "explain", "explain for a GPU"],
)
def test_a_pass_that_breaks_the_ir_is_named(run: Callable[[fx.GraphModule, dict[str, object]], object]) -> None:
    broken = r"after pass 'shuffle': definition .*: .* is read before it is defined"
    with pytest.raises(Malformed, match=broken):
        run(trace(sums, INPUTS), {"verify_ir": True})


@pytest.mark.usefixtures("shuffled")
def test_verification_is_off_unless_asked_for() -> None:
    seen: list[str] = []
    with observed_by(lambda name, *_: seen.append(name)):
        CpuBackend().explain(trace(sums, INPUTS), {"verify_ir": False})
    assert "shuffle" in seen


def test_passes_over_a_training_step_are_verified_and_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: fx.Graph, _: Compilation) -> fx.Graph:
        raise RuntimeError("no")

    def copied(graph: fx.Graph, _: Compilation) -> fx.Graph:
        made = fx.Graph()
        made.output(made.graph_copy(graph, {}))
        return made

    def mixed(graph: fx.Graph, _: Compilation) -> fx.Graph:
        made = fx.Graph()
        made.output([*graph.nodes][0])
        return made

    steps = (Pass("fail", fail), Pass("copy", copied), Pass("mix", mixed))
    monkeypatch.setattr(pipeline, "STEP_PASSES", steps)
    monkeypatch.setattr(passes, "EVERYWHERE", [])
    graph, reports = trace(softmax, INPUTS).graph, dict[str, Exception]()
    made = CpuBackend().transform_step(graph, {"verify_ir": True}, reports.__setitem__)
    assert made is not None and made is not graph and len(made.nodes) == len(graph.nodes)
    assert [*reports] == ["a training step (pass 'fail')", "a training step (pass 'mix')"]
    assert isinstance(reports["a training step (pass 'mix')"], Malformed)
    with pytest.raises(RuntimeError, match="no"):
        CpuBackend().transform_step(graph)


def test_a_target_without_native_operators_calls_aten() -> None:
    def many(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attended = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return x.sort(-1)[0], x.cumsum(-1), torch.dropout(x, 0.5, True), attended, x @ x.transpose(-1, -2)

    gm = trace(many, [torch.zeros(1, 8, 512, 64)])

    def called(target: Target) -> set[str]:
        options = {"matmul": "native"} if target.native_ops else {}
        graph = plan_graph(gm, Compilation(target, "inference", options), "cpu").graph.graph
        return {node.target.namespace for node in graph.nodes if isinstance(node.target, OpOverload)}

    assert called(CPU) == {"aten", "framesmith_backends"}
    assert called(replace(CPU, scratch=False, native_ops=False)) == {"aten"}


def test_passes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "framesmith.passes"):
        CpuBackend().compile(trace(softmax, INPUTS), INPUTS)
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("inline: changed, ") and line.endswith(" ms") for line in lines)
    assert any(line.startswith("after drops:\ninputs ") for line in lines)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = torch.softmax(q @ k.transpose(-1, -2), -1)
    return probabilities @ v, probabilities.sum()


def test_explain_says_why_attention_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_attends", lambda dtype, device: True)
    stages = stages_of(trace(attention, [torch.empty(2, 64, 32) for _ in range(3)]))
    assert "no fused attention for bmm_default_1: the probabilities have other readers" in stages.text()
    alone = stages_of(trace(lambda q, k, v: attention(q, k, v)[0], [torch.empty(2, 64, 32) for _ in range(3)]))
    assert alone.plan.items_of(FusedAttention) and not alone.refusals


def test_native_attention_says_why_it_declines() -> None:
    x = torch.zeros(1, 2, 8, 16, dtype=torch.float64)
    gm = trace(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), [x])
    reasons = CpuBackend().explain(gm).refusals
    assert [*reasons.values()] == ["tensors that are not dense, float32 and on the CPU"]
