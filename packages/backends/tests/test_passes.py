"""Passes as rows: what observers see, what verification catches and names, what is logged."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.cuda import stages_of
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
