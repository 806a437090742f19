"""The suites for GPUs, on the CPU: workers that share cases, deadlines, what is compared, and the tables at the end."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.harness import device, workers
from benchmarks.harness.agreement import check_norms
from benchmarks.harness.candidates import MANY, REPLAYING, settings_of, wrap
from benchmarks.harness.summary import FIRST_CALL, SHARE, kernels_table, models_table
from benchmarks.harness.timing import Row, Step
from benchmarks.harness.workers import Job, Limits, OutOfTime, prepared, stopped_at, timed
from benchmarks.models.selection import Selection
from benchmarks.models.zoo import MODELS
from benchmarks.suites.kernels import kernels, large_kernels
from benchmarks.suites.models import gpu_models
from tools import gpu_check

ROOT = Path(__file__).parents[2]
LARGE = large_kernels.cases(large_kernels.DIVISORS["cpu"])


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers import this checkout's benchmarks."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    yield
    assert device.chosen() == "cpu"


def test_models_are_compiled_and_timed_by_workers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    kept: list[Row] = []
    names = ("eager", "framesmith", "framesmith reduce-overhead")
    asked = Selection("small_mlp", names, dtypes=("float32",), rounds=1, keep=kept.extend)
    rows = gpu_models.run(asked, Limits(2, 100.0, 120.0))
    printed = capsys.readouterr().out
    assert [row.reason for row in rows] == [""] * 6, printed
    assert {(row.case, row.candidate) for row in rows} == {
        (f"small_mlp, {mode}, float32", name) for mode in ("inference", "training") for name in names
    }
    assert sorted(map(repr, kept)) == sorted(map(repr, rows))
    assert all(row.seconds > 0 and row.figures[FIRST_CALL] >= 0 and len(row.ratio_to) == 2 for row in rows)
    assert "inference  framesmith" in printed and "not measured: 0, and 0 for lack of time" in printed


@pytest.mark.nightly
def test_large_kernels_have_shares(capsys: pytest.CaptureFixture[str]) -> None:
    rows = large_kernels.run(Selection("total", ("eager", "framesmith"), rounds=1), Limits(1, 100.0, 120.0))
    printed = capsys.readouterr().out
    assert [row.reason for row in rows] == [""] * 4, printed
    assert all(SHARE in row.figures and row.seconds > 0 for row in rows)
    assert [line.split()[:3] for line in printed.splitlines() if line.startswith("  total")] == [
        ["total", "1048576", "bfloat16"]
    ]


@pytest.mark.nightly
def test_nothing_is_begun_after_the_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    assert large_kernels.run(Selection("total", ("eager",)), Limits(1, 0.0, 60.0)) == []
    late = large_kernels.run(Selection("total", ("eager",), dtypes=("float32",)), Limits(1, 60.0, 0.0))
    assert [(row.candidate, row.reason) for row in late] == [("eager", "not timed in time")]


@pytest.mark.nightly
def test_a_worker_that_dies_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`jobs` of a suite made for this ends its process in the middle of a case."""
    suite = ROOT / "benchmarks" / "dying_suite_of_a_test.py"
    suite.write_text(
        "import os\nfrom benchmarks.harness.workers import Job\n"
        "def jobs(asked):\n    return [Job('deadly', ('eager',), lambda name: os._exit(7), lambda steps: [])]\n"
    )
    try:
        (row,) = workers.share(f"benchmarks.{suite.stem}", {}, Limits(1, 30.0, 60.0))
    finally:
        suite.unlink()
    assert (row.case, row.candidate, row.reason) == ("deadly", "eager", "worker 0 ended with status 7")
    (row,) = workers.share("benchmarks.no_such_suite", {}, Limits(1, 30.0, 60.0))
    assert (row.candidate, row.reason) == ("all", "ended with status 1, see its log")


@pytest.mark.nightly
def test_only_one_at_a_time_has_the_lock(tmp_path: Path) -> None:
    """A case is timed when nobody compiles any more, by one process; here they write when they begin and end."""
    suite = ROOT / "benchmarks" / "slow_suite_of_a_test.py"
    log = tmp_path / "log"
    suite.write_text(
        "import time\nfrom benchmarks.harness.timing import Row\nfrom benchmarks.harness.workers import Job\n"
        f"def note(text):\n    with open({str(log)!r}, 'a') as file: file.write(text + '\\n')\n"
        "def compiled(name):\n    note('compiles'); time.sleep(0.3); note('compiled'); return (lambda: None), 0.0\n"
        "def measured(steps):\n    note('times'); time.sleep(0.2); note('timed')\n"
        "    return [Row('a', name, 1.0, {}, 1) for name in steps]\n"
        "def jobs(asked):\n    return [Job(str(n), ('eager',), compiled, measured) for n in range(4)]\n"
    )
    try:
        workers.share(f"benchmarks.{suite.stem}", {}, Limits(2, 60.0, 90.0))
    finally:
        suite.unlink()
    lines = log.read_text().split()
    assert set(lines[:8]) == {"compiles", "compiled"}
    assert lines[8:] == ["times", "timed"] * 4


def test_reasons_of_candidates() -> None:
    def prepare(name: str) -> tuple[Step, float]:
        if name == "late":
            time.sleep(5)
        if name == "wrong":
            raise AssertionError("3 of 8")
        return (lambda: None), 0.25

    def fails(steps: dict[str, Step]) -> list[Row]:
        raise ValueError("of a device")

    notes: list[str] = []
    job = Job("case", ("right", "wrong", "late"), prepare, fails)
    done = prepared(job, notes.append, time.monotonic() + 0.2)
    assert notes == ["right", "wrong", "late", "timing"]
    assert {row.candidate: row.reason for row in done.refused} == {
        "wrong": "AssertionError: 3 of 8",
        "late": "not compiled in time",
    }
    assert done.first_calls == {"right": 250}
    assert [row.reason for row in timed(done, time.monotonic() + 9)] == ["ValueError while timed: of a device"]


def test_the_alarm_is_taken_back() -> None:
    with stopped_at(time.monotonic() + 0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(OutOfTime), stopped_at(time.monotonic() - 1):
        time.sleep(1)


def test_first_cases_are_the_most_informative() -> None:
    cases = gpu_models.in_order(Selection())
    assert len(cases) == len(set(cases)) == sum(len(row.dtypes) * len(row.modes) for row in MODELS)
    assert [(row.name, mode, dtype) for row, mode, dtype in cases[:2]] == [
        ("bert", "inference", "bfloat16"),
        ("gpt2", "inference", "bfloat16"),
    ]
    assert [mode for _, mode, _ in cases[:39]] == ["inference"] * 20 + ["training"] * 19
    assert cases[-1][2] == "float32" and "bfloat16" in cases[-1][0].dtypes


def test_norms_detect_wrong_results() -> None:
    right = [torch.randn(100), torch.randn(3, 3)]
    check_norms([x * 1.01 for x in right], right, 0.02, 0.25)
    with pytest.raises(AssertionError, match="off where eager's norm"):
        check_norms([x.flip(0) for x in right], right, 0.02, 0.25)
    check_norms([x.flip(0) for x in right], right, None, 0.25)
    with pytest.raises(AssertionError):
        check_norms([x * 2 for x in right], right, None, 0.25)
    with pytest.raises(AssertionError):
        check_norms([right[0] * torch.nan, right[1]], right, 0.02, 0.25)
    with pytest.raises(AssertionError, match="float64"):
        check_norms([x.double() for x in right], right, 0.02, 0.25)


@pytest.mark.nightly
def test_models_with_dropout_are_compared_as_random() -> None:
    pytest.importorskip("transformers")
    rows = {row.name: row for row in MODELS}
    for name, random in (("small_mlp", False), ("bert", True)):
        case = gpu_models.Measured(rows[name], "training", "float32", 1)
        case.prepare("eager")
        assert case.random is random


def test_wrong_gradients_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.name: row for row in MODELS}
    case = gpu_models.Measured(rows["small_mlp"], "training", "float32", 1)

    def wrong(name: str, fn: torch.nn.Module, **settings: object) -> torch.nn.Module:
        if name != "eager":
            fn[0].weight.register_hook(lambda grad: grad * 3)
        return fn

    monkeypatch.setattr(gpu_models, "wrap", wrong)
    case.prepare("eager")
    with pytest.raises(AssertionError, match="results are"):
        case.prepare("framesmith")


def test_replaying_candidates_are_the_compilers_in_a_mode() -> None:
    x = torch.randn(4)
    for name in REPLAYING:
        assert settings_of(name)["dynamic"] is False
    assert settings_of("framesmith reduce-overhead", fullgraph=True)["fullgraph"] is True
    assert settings_of("framesmith")["recompile_limit"] == MANY
    assert settings_of("eager") == {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # backends without such a mode say so
        assert torch.equal(wrap("framesmith reduce-overhead", lambda x: x + 1)(x), x + 1)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", LARGE, ids=[case.name for case in LARGE])
def test_large_kernel_takes_an_eager_step(case: large_kernels.Case) -> None:
    inputs = kernels.inputs_of(case, "bfloat16")
    results = kernels.make_step(case, case.fn, inputs)()
    kernels.check_results(case, "bfloat16", results, inputs)
    assert kernels.bytes_moved(case, "bfloat16") > 1 << 19


def test_large_kernels_fill_a_gpu() -> None:
    """Inputs alone, without making them: more than its caches in bfloat16, and all of them at once in its memory."""
    total = 0
    for case in large_kernels.cases(large_kernels.DIVISORS["cuda"]):
        with torch.device("meta"):
            sizes = [x.nbytes for x in kernels.tensors(case.make(torch.bfloat16))]
            total += sum(sizes) + sum(x.nbytes for x in kernels.tensors(case.make(torch.float32)))
        assert 60e6 < sum(sizes) < 600e6, case.name
    assert total < 25e9


def test_device_is_not_torchs_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device._Choice, "name", "cpu")
    with pytest.raises(ValueError, match="there are: cpu, cuda"):
        device.choose("tpu")
    device.choose("cuda")
    assert device.building() == torch.device("cuda") and torch.get_default_device().type == "cpu"
    device.choose("cpu")
    assert device.device_seconds(lambda: time.sleep(0.001), 3) >= 0.001


def row(case: str, candidate: str, ratio: float, **figures: int) -> Row:
    other = {"torch.compile": ratio} if candidate == "framesmith" else {}
    return Row(case, candidate, 1e-3, other, 1, figures=figures)


def test_tables_show_means_losses_and_reasons() -> None:
    rows = [row(f"m{n}, inference, float32", "framesmith", ratio) for n, ratio in enumerate((0.5, 2.0))]
    rows += [
        workers.cannot("m2, inference, float32", "framesmith", reason) for reason in ("broke", "not timed in time")
    ]
    rows.append(row("m0, inference, float32", "torch.compile", 1.0))
    text = "\n".join(models_table(rows))
    assert "1.000x torch.compile (2)" in text, text
    assert "framesmith slower than torch.compile, 1 cases: m1, inference, float32 2.00" in text
    assert "not measured: 1, and 1 for lack of time" in text and "framesmith: broke" in text
    shares = [row(f"softmax 4x4, {dtype}", "framesmith", 1.0, **{SHARE: 85}) for dtype in ("bfloat16", "float32")]
    assert any(line.split() == "softmax 4x4 bfloat16 85 float32 85".split() for line in kernels_table(shares))


@pytest.mark.nightly
def test_check_runs_its_steps_and_ends_with_tables(tmp_path: Path) -> None:
    """On the CPU, with time for little."""
    arguments = ["--device", "cpu", "--limit", "40", "--workers", "1", "--steps", "machine,large_kernels"]
    done = subprocess.run(
        [sys.executable, "tools/gpu_check.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "gpu_check: large_kernels: " in done.stdout and "== large_kernels" in done.stdout, done.stdout + done.stderr
    assert {"steps.log", "tables.txt", "large_kernels.json"} == {path.name for path in tmp_path.iterdir()}


def test_tests_that_failed_are_named_also_where_their_step_was_cut_off() -> None:
    log = ["[gw1] [ 10%] FAILED a.py::test_one[x]", "[gw0] [ 11%] PASSED a.py::test_FAILED", "E   ValueError: why"]
    cut_off = gpu_check.end_of("cuda-tests", 124, "\n".join(log))
    assert cut_off.splitlines() == [log[0], log[2], "passed so far: 1"]
    whole = gpu_check.end_of("cuda-tests", 1, "\n".join([*log, "FAILED a.py::test_one[x] - why", "1 failed"]))
    assert whole.splitlines() == [log[0], "FAILED a.py::test_one[x] - why", log[2], "1 failed"]


def test_every_file_with_tests_that_need_a_device_is_run() -> None:
    files = gpu_check.with_device_tests()
    assert "integration_tests/gpu/test_on_a_gpu.py" in files
    assert "packages/backends/tests/render/triton/test_scans_on_gpus.py" in files
    assert "packages/backends/tests/test_symbolic.py" not in files


def test_steps_that_hang_or_fail_do_not_stop_the_others(tmp_path: Path) -> None:
    python = [sys.executable, "-c"]
    status, said = gpu_check.run("hanging", [*python, "import time; time.sleep(9)"], tmp_path, 0.5)
    assert (status, said) == (124, "")
    status, said = gpu_check.run("failing", [*python, "print('why'); exit(3)"], tmp_path, 9.0)
    assert (status, said.strip()) == (3, "why")


def test_what_is_not_installed_comes_from_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = ("framesmith_frames", "framesmith_guards")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in there else None)
    monkeypatch.setenv("PYTHONPATH", "wheels")
    paths = gpu_check.environment(tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(ROOT) and paths[-1] == "wheels"
    assert {Path(path).parent.name for path in paths[1:-1]} == {
        path.name for path in (ROOT / "packages").iterdir() if path.name not in ("frames", "guards")
    }
