"""The supported versions of CPython are those of bytecode's table, wherever else they are stated."""

from __future__ import annotations

import ast
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from framesmith_bytecode.cpython.version_table import TABLES

ROOT = Path(__file__).resolve().parents[2]


def _pythons() -> list[str]:
    """Return `PYTHONS` of the noxfile, whose imports these tests do without."""
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == "PYTHONS":
            return list(ast.literal_eval(node.value))  # type: ignore[union-attr, arg-type]
    raise AssertionError("PYTHONS is not in noxfile.py")


PYTHONS = _pythons()
VERSIONS = [f"{major}.{minor}" for major, minor in TABLES]
OLDEST, NEWEST = min(TABLES), max(TABLES)
#: The first version that is not supported.
END = (NEWEST[0], NEWEST[1] + 1)
PROJECTS = sorted(ROOT.glob("packages/*/pyproject.toml"))
HEADERS = sorted(ROOT.glob("packages/*/src/*/_native/compat.h"))
LISTED = "Programming Language :: Python :: 3."


def test_no_version_is_left_out() -> None:
    assert list(TABLES) == [(OLDEST[0], minor) for minor in range(OLDEST[1], END[1])]


def test_there_is_a_project_for_each_package_and_a_header_for_each_with_c_code() -> None:
    assert [path.parent for path in PROJECTS] == sorted(path for path in ROOT.glob("packages/*") if path.is_dir())
    assert [path.parts[-5] for path in HEADERS] == ["frames", "guards"]


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_projects(path: Path) -> None:
    project = tomllib.loads(path.read_text())["project"]
    assert project["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]},<{END[0]}.{END[1]}"
    listed = [line.rpartition(" ")[2] for line in project["classifiers"] if line.startswith(LISTED)]
    assert listed == VERSIONS


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.parts[-5])
def test_headers(path: Path) -> None:
    bounds, message = re.findall(r"#if (PY_VERSION_HEX < .*)\n#error \"(.*)\"", path.read_text())[0]
    first, end = (f"0x{major:02X}{minor:02X}0000" for major, minor in (OLDEST, END))
    assert bounds == f"PY_VERSION_HEX < {first} || PY_VERSION_HEX >= {end}"
    assert message.endswith(f" supports CPython {VERSIONS[0]} to {VERSIONS[-1]} only")


def test_sessions() -> None:
    assert PYTHONS == VERSIONS


def test_the_run_of_all_checks_looks_for_each() -> None:
    """It runs on the oldest, looks for the others below pyenv's folder, and has the newest ones brought."""
    script = (ROOT / ".ci/run").read_text()
    pattern = re.findall(r"bin/python(3\.\S+?);", script)
    brought = re.findall(r"^for version in (3\..*); do$", script, re.MULTILINE)
    assert len(pattern) == len(brought) == 1
    assert [version for version in VERSIONS if fnmatchcase(version, pattern[0])] == VERSIONS[1:]
    assert brought[0].split() == VERSIONS[-len(brought[0].split()) :]


@pytest.mark.parametrize(("page", "times"), [("README.md", 2), ("CONTRIBUTING.md", 1)])
def test_pages(page: str, times: int) -> None:
    found = re.findall(r"CPython (?:from )?(3\.\d+) to (3\.\d+)", (ROOT / page).read_text())
    assert found == [(VERSIONS[0], VERSIONS[-1])] * times
