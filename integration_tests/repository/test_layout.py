"""Folders and files stay small enough to be looked through: at most 15 files a folder, at most 600 lines a test."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES, MOST_LINES = 15, 600
#: Files that people read and change; `py.typed`, results of benchmarks and other data are not counted.
SUFFIXES = (".py", ".pyi", ".c", ".h", ".md", ".toml")


def tracked() -> list[str]:
    """Return the files that git tracks, relative to the root."""
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no checkout of git")
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


def crowded(names: Iterable[str]) -> dict[str, int]:
    """Return the folders with more than `MOST_FILES` source files each, and how many these are."""
    counts = Counter(name.rpartition("/")[0] for name in names if name.endswith(SUFFIXES))
    return {folder: count for folder, count in counts.items() if count > MOST_FILES}


def long_tests(lengths: Mapping[str, int]) -> list[str]:
    """Return the Python files below folders of tests that have more than `MOST_LINES` lines."""
    return [name for name, count in lengths.items() if "tests/" in name and count > MOST_LINES]


def test_no_folder_has_more_than_fifteen_files() -> None:
    assert crowded(tracked()) == {}


def test_no_test_file_has_more_than_six_hundred_lines() -> None:
    lengths = {name: len((ROOT / name).read_bytes().splitlines()) for name in tracked() if name.endswith(".py")}
    assert long_tests(lengths) == []


def test_planted_ones_are_found() -> None:
    names = [f"packages/x/src/x/a{k}.py" for k in range(MOST_FILES)]
    assert crowded([*names, "packages/x/src/x/py.typed"]) == {}
    assert crowded([*names, "packages/x/src/x/one.c"]) == {"packages/x/src/x": 16}
    lengths = {"packages/x/tests/y/test_a.py": 601, "integration_tests/b.py": 600, "packages/x/src/x/c.py": 900}
    assert long_tests(lengths) == ["packages/x/tests/y/test_a.py"]


def test_no_folder_of_tests_is_named_as_a_module() -> None:
    """pytest imports a package's tests below their folder: one named `builtins` would take the place of Python's."""
    folders = {path.parent for path in ROOT.glob("packages/*/tests/**/*.py") if path.parent.name != "tests"}
    assert sorted(str(folder) for folder in folders if folder.name in sys.stdlib_module_names) == []
