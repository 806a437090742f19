"""Captured backward passes beside DistributedDataParallel and FSDP2, on two processes with gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from integration_tests.autograd.distributed_passes import KINDS, STEPS

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not built")


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    command = [sys.executable, "-m", "integration_tests.autograd.distributed_passes", *KINDS]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {kind: results for kind, *results in lines}


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_as_without_capture(kind: str, found: dict[str, list[Any]]) -> None:
    expected, captured = found[kind]
    assert captured["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    for one, two in zip(captured["parameters"], expected["parameters"], strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(two), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "Python" in kind or "fsdp2" in kind])
def test_passes_are_captured(kind: str, found: dict[str, list[Any]]) -> None:
    assert found[kind][1]["runs"] == STEPS and not found[kind][1]["fallbacks"]


@pytest.mark.parametrize("kind", ["ddp", "ddp without_sync"])
def test_passes_of_the_reducer_in_cpp_run_in_the_engine(kind: str, found: dict[str, list[Any]]) -> None:
    reasons = found[kind][1]["fallbacks"]
    assert found[kind][1]["runs"] == 0 and len(reasons) == STEPS
    assert all("python_reducer" in reason for reason in reasons)
