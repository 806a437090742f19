"""Reports of features that the simulated GPU lacks; these tests need no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = """
import pytest
from integration_tests.simulated_gpu.not_built import EXPECTED, NotBuilt, Reports

def taken():
    found = [*NotBuilt.reached]
    NotBuilt.reached.clear()
    return found

EXPECTED["known *"] = "a test"

def pytest_configure(config):
    config.pluginmanager.register(Reports(taken))
"""
TESTS = """
import pytest
from integration_tests.simulated_gpu.not_built import NotBuilt

def test_known():
    raise NotBuilt("known one")

def test_behind_another():
    try:
        raise NotBuilt("known one")
    except NotBuilt as error:
        raise RuntimeError("could not compile") from error

def test_reported_by_the_runtime():
    with pytest.raises(NotImplementedError):
        raise NotBuilt("known one")
    raise RuntimeError("CUDA error: the simulated GPU cannot do that")

def test_passed_over():
    with pytest.raises(NotImplementedError):
        raise NotBuilt("known other")

def test_new():
    raise NotBuilt("new thing")

def test_new_one_passed_over():
    with pytest.raises(NotImplementedError):
        raise NotBuilt("new thing")

def test_skipped_for_it():
    with pytest.raises(NotImplementedError):
        raise NotBuilt("new thing")
    pytest.skip("does not work")

def test_fails_by_itself():
    with pytest.raises(NotImplementedError):
        raise NotBuilt("known other")
    assert 1 == 2

def test_of_something_else():
    raise NotImplementedError("something else")

def test_all_is_well():
    pass
"""


def run(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--rootdir", str(folder), *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    found = subprocess.run([*command, str(folder)], capture_output=True, text=True, env=environment, cwd=folder)
    assert found.returncode == 1, found.stdout + found.stderr
    return found.stdout


def test_what_is_not_built_is_listed_and_a_new_one_fails(tmp_path: Path) -> None:
    output = run(tmp_path)
    outcomes = {
        line.split("::")[1].split(" ")[0]: line.split(" ")[0]
        for line in output.splitlines()
        if line.startswith(("PASSED", "FAILED")) and "::" in line
    }
    assert outcomes == {
        "test_passed_over": "PASSED", "test_all_is_well": "PASSED", "test_new": "FAILED",
        "test_new_one_passed_over": "FAILED", "test_skipped_for_it": "FAILED", "test_fails_by_itself": "FAILED",
        "test_of_something_else": "FAILED",
    }  # fmt: skip
    assert "nor expected in integration_tests.simulated_gpu.not_built: new thing" in output
    assert "not on the simulated GPU: known other" in output  # a note at what failed by itself
    listed = output.split("= not on the simulated GPU =")[1]
    assert "known one: 3 skipped\n" in listed
    assert "known other: 1 failed, 1 passed\n" in listed
    assert "new thing: 3 failed (not expected)\n" in listed
    assert "5 failed, 2 passed, 3 skipped" in output


def test_it_is_listed_where_others_run_the_tests(tmp_path: Path) -> None:
    listed = run(tmp_path, "-n", "2").split("= not on the simulated GPU =")[1]
    assert "known one: 3 skipped\n" in listed and "new thing: 3 failed (not expected)\n" in listed
