"""The benchmarks themselves: every suite imports, every registered model and kernel takes an eager step."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import replace

import pytest
import torch

from benchmarks.harness import tensors_made
from benchmarks.harness.agreement import check
from benchmarks.harness.isolated import IsolatedCandidate
from benchmarks.harness.summary import slower_than
from benchmarks.harness.timing import Row
from benchmarks.kernel_cases import CASES as KERNELS
from benchmarks.kernel_cases import Case
from benchmarks.models.selection import Selection
from benchmarks.models.zoo import MODELS, Model, make_step, select
from benchmarks.suites import SUITES, module_of
from benchmarks.suites.kernels import kernels
from benchmarks.suites.models import memory, models
from framesmith_backends.launch.llvm.libraries import why_no_blas
from integration_tests.harness.sweeps import LONG

pytest.importorskip("transformers")

#: The matmuls of small_mlp, where torch's library does not show the function it calls, and its operator is called.
CALLED_MATMULS = 0 if why_no_blas() is None else 3
KERNELS_IN_TYPES = [(case, dtype) for case in KERNELS for dtype in case.dtypes]
#: Each type and each mode of a model, but both together in long runs alone: in bfloat16 a CPU trains slowly.
CASES = [
    (row, mode, dtype)
    for row in MODELS
    for dtype in row.dtypes
    for mode in row.modes
    if LONG or dtype == row.dtypes[0] or mode == row.modes[0]
]


@pytest.mark.parametrize("suite", SUITES)
def test_suite_imports(suite: str) -> None:
    assert callable(importlib.import_module(module_of(suite)).run)


@pytest.mark.sampled(25)
@pytest.mark.parametrize(("row", "mode", "dtype"), CASES, ids=[f"{r.name}-{m}-{d}" for r, m, d in CASES])
def test_model_takes_an_eager_step(row: Model, mode: str, dtype: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert make_step(row, mode, dtype, lambda module: module)().isfinite().all()


def test_table_holds_what_is_promised() -> None:
    assert len({row.name for row in MODELS}) == len(MODELS)
    assert sum("float32" in row.dtypes and "inference" in row.modes for row in MODELS) >= 25
    assert sum("training" in row.modes for row in MODELS) >= 25
    assert sum("bfloat16" in row.dtypes for row in MODELS) >= 8


def test_pattern_without_match_lists_models() -> None:
    with pytest.raises(ValueError, match="there are: bert"):
        select("brt")


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("case", "dtype"), KERNELS_IN_TYPES, ids=[f"{case.name}-{d}" for case, d in KERNELS_IN_TYPES])
def test_kernel_takes_an_eager_step_in_its_type(case: Case, dtype: str) -> None:
    inputs = kernels.inputs_of(case, dtype)
    kernels.make_step(case, case.fn, inputs)()
    assert str(getattr(torch, dtype)) in {str(x.dtype) for x in kernels.tensors(inputs)}


def test_kernels_are_many_and_have_names_of_their_own() -> None:
    assert len({(case.name, dtype) for case, dtype in KERNELS_IN_TYPES}) == len(KERNELS_IN_TYPES)
    assert sum(case.kind not in ("elementary", "special") for case in KERNELS) >= 60
    assert sum("bfloat16" in case.dtypes for case in KERNELS) >= 60


def test_kernels_suite_measures_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[str] = []
    asked = Selection(
        "gelu_sin_sigmoid_small",
        ("eager", "framesmith"),
        dtypes=("float32",),
        rounds=1,
        floor=True,
        keep=lambda found: kept.extend(row.candidate for row in found),
    )
    rows = kernels.run(asked)
    assert [row.candidate for row in rows] == kept == ["eager", "framesmith"]
    assert {row.case for row in rows} == {"gelu_sin_sigmoid_small 8, float32"}
    assert all(row.seconds > 0 and not row.reason for row in rows)
    printed = capsys.readouterr().out
    assert "framesmith / eager: geometric mean" in printed and "floor" in printed


def test_wrong_kernel_is_a_row_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in KERNELS if case.name == "gelu_sin_sigmoid_small")
    monkeypatch.setattr(kernels, "CASES", (case,))
    monkeypatch.setattr(kernels, "wrap", lambda name, fn, **settings: lambda *inputs: fn(*inputs) + 1)
    (row,) = kernels.run(Selection(candidates=("framesmith",), dtypes=("float32",), rounds=1))
    assert row.reason.startswith("AssertionError: 8 of 8 in result 0, at (0,)")
    monkeypatch.setattr(kernels, "CASES", (replace(case, random=True),))
    (row,) = kernels.run(Selection(candidates=("framesmith",), dtypes=("float32",), rounds=1))
    assert not row.reason


def test_result_in_float64_will_do() -> None:
    one, eager = torch.tensor([1.0, 2.0]), torch.tensor([torch.nan, 2.0])
    check([one], [eager], lambda: [one.double()], 1.0)
    with pytest.raises(AssertionError, match=r"1 of 2 in result 0, at \(0,\) 1, eager nan, in float64 3"):
        check([one], [eager], lambda: [one.double() + 2], 1.0)


def test_worst_rows_come_first() -> None:
    rows = [Row(case, "framesmith", 1.0, {"eager": ratio}, 1) for case, ratio in (("a", 1.02), ("b", 1.1), ("c", 2.0))]
    assert slower_than("eager", rows) == [(2.0, "c"), (1.1, "b")]


def test_memory_of_a_step_is_that_of_its_tensors() -> None:
    x, kept = torch.randn(1 << 18), []

    def step() -> None:
        kept[:] = [x + 1]
        one = x * 2
        del one
        kept.append(torch.empty_strided((1 << 18,), (1,)))

    step()
    assert 0 <= tensors_made.peak_bytes(step) - (2 << 20) < 1024
    assert tensors_made.tensor_objects(step) == 3
    assert tensors_made.tensor_objects(lambda: None) == 0


def test_memory_suite_measures_in_processes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Also from a process whose pool of threads has started."""
    torch.randn(1 << 20).exp()
    eager, ours = memory.run(Selection("small_mlp", ("eager", "framesmith"), ("inference",), ("float32",)))
    assert not eager.reason and not ours.reason
    assert ours.figures[memory.ADDED] > eager.figures[memory.ADDED]
    assert 0 < ours.figures[memory.PEAK] < 1 << 20
    assert 0 < ours.figures[memory.OBJECTS] <= eager.figures[memory.OBJECTS] + CALLED_MATMULS
    assert "compiling adds at most" in capsys.readouterr().out


def _refuses() -> None:
    raise ValueError("of its own accord")


def test_models_suite_measures_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "TARGET", 1e-3)
    selection = Selection("small_mlp", ("eager", "framesmith"), ("inference",), ("float32",), rounds=1)
    eager, ours = models.run(selection)
    assert [row.candidate for row in (eager, ours)] == ["eager", "framesmith"]
    assert ours.seconds > 0 and ours.ratio_to["eager"] == pytest.approx(
        1 / eager.ratio_to["framesmith"]
    )  # of one round
    assert ours.figures["operator calls"] == CALLED_MATMULS < eager.figures["operator calls"]
    assert f"operator calls: 5 eager  {CALLED_MATMULS} framesmith" in capsys.readouterr().out


def test_a_separate_candidate_says_why_it_cannot() -> None:
    with pytest.raises(RuntimeError, match="ValueError: of its own accord"):
        IsolatedCandidate(_refuses).ready()
