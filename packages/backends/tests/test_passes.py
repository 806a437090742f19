"""Passes as rows: what observers see, what verification catches and names, what is logged."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend, cuda
from framesmith_backends.cuda import stages_of
from framesmith_backends.ir.fused.attention import FusedAttention
from framesmith_backends.ir.verify import Malformed
from framesmith_backends.passes import EVERYWHERE, Pass, observed_by, run_passes
from framesmith_backends.pipeline import verifying
from framesmith_backends.schedule import plan as planning

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
    def passes(run: object) -> set[str]:
        seen: set[str] = set()
        with observed_by(lambda name, *_: seen.add(name)):
            run()  # type: ignore[operator]
        return seen

    gm = trace(softmax, INPUTS)
    cpu, cuda = passes(lambda: CpuBackend().explain(gm)), passes(lambda: stages_of(gm))
    assert {"split-reductions", "inline", "reverse-scans", "in-place-writes", "shaped-outputs", "drops"} <= cpu & cuda
    assert cuda - cpu == {"unfused-bias", "row-layouts", "combined-copies"}


def test_a_pass_that_breaks_the_ir_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_it(program: planning.Program, _: planning.Fusing) -> planning.Program:
        return replace(program, defs=dict(reversed(program.defs.items())))

    monkeypatch.setattr(planning, "FUSION_PASSES", (*planning.FUSION_PASSES, Pass("shuffle", break_it)))
    monkeypatch.setattr("framesmith_backends.passes.EVERYWHERE", [])
    gm = trace(lambda x, y: (x.sum(1), (x - x.sum(1, keepdim=True)).sum(0)), INPUTS)
    with pytest.raises(Malformed, match=r"after pass 'shuffle': definition .*: .* is read before it is defined"):
        CpuBackend().compile(gm, INPUTS, options={"verify_ir": True})


def test_verification_is_off_unless_asked_for() -> None:
    assert EVERYWHERE, "the tests verify every compile"
    with verifying({"verify_ir": False}):
        assert run_passes((Pass("none", lambda ir, _: ir),), 1, None) == 1


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
