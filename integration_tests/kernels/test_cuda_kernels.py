"""Kernels of the cuda backend without a GPU: their machine code, the interpreter's numbers, their memory traffic.

With FRAMESMITH_LONG all of the registries' kernels and models, and of torch's operators; else a few.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

import framesmith
from benchmarks.models.selection import Selection
from benchmarks.suites.kernels import cubins, traffic
from benchmarks.suites.kernels.gpu_kernels import Collector, Made, programs
from framesmith_backends.render.triton.tile import Axis, Tile
from integration_tests.harness.sweeps import LONG
from tools.warm_process import run_module

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
#: The kinds of kernels whose traffic is to be the least; without FRAMESMITH_LONG these of them.
PLAIN = ("pointwise", "elementary", "special", "reductions", "columns", "rows", "channel_norms", "losses", "updates")
SOME = ("columns", "losses")


def made(only: str) -> list[Made]:
    collector = Collector()
    for name, run in programs(Selection(only, dtypes=("float32",))):
        framesmith.reset()
        collector.case = name
        run(collector)
    return list(collector.made.values())


@pytest.mark.parametrize("kind", PLAIN if LONG else SOME)
def test_plain_kernels_move_what_they_have_to(kind: str) -> None:
    figures = {
        f"{one.case} {one.triton.name}": found for one in made(kind) if (found := cubins.traffic_figures(one.kernel))
    }
    assert figures and not {name: found for name, found in figures.items() if not cubins.is_near_least(found)}


def test_the_model_sees_what_is_read_across_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [one.kernel for one in made("transpose_and_add") if one.kernel is not None]
    turned = [kernel for kernel in kernels if len(kernel.outer) > 1]
    assert turned and all(cubins.is_near_least(cubins.traffic_figures(kernel)) for kernel in turned)
    monkeypatch.setattr(traffic, "tile_of", lambda kernel: Tile((Axis(kernel.lane, 1024),)))
    assert all(traffic.modelled(kernel).bytes > 2 * traffic.modelled(kernel).least for kernel in turned)


@needs_triton
def test_kernels_compile_for_every_kind_of_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    patterns = ("kernels", "models", "operators") if LONG else ("transpose_and_add",)
    rows = [row for only in patterns for row in cubins.run(Selection(only))]
    assert rows and not [row for row in rows if row.reason]
    spilling = {f"{row.case}, {row.candidate}" for row in rows if row.figures[cubins.SPILLED]}
    assert all(row.figures[cubins.REGISTERS] > 0 for row in rows)
    output = capsys.readouterr().out
    assert all(f"{name}: spills" in output for name in spilling)


@needs_triton
def test_interpreted_kernels_equal_eager() -> None:
    patterns = ("operators",) if LONG else ("nn.functional.[ls][om]*",)
    agreed = 0
    for only in patterns:
        arguments = ("interpreted", "--only", only, "--dtype", "float32")
        done = run_module("benchmarks", *arguments, variables={"TRITON_INTERPRET": "1"}, timeout=3600)
        found = re.search(r"(\d+) of (\d+) kernels agree with eager; (\d+) of", done.stdout)
        assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
        assert found[1] == found[2] and found[3] == "0", done.stdout[-3000:]
        agreed += int(found[1])
    assert agreed >= (600 if LONG else 10)
