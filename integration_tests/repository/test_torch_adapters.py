"""Names that may move in torch are used by the adapters alone, and a torch without one of them compiles the rest."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import framesmith
from framesmith.releases import NEWEST_TESTED, OLDEST, check_release, release_of
from framesmith_guards import needs
from integration_tests.harness.sweeps import a_part

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
TABLES = {table.package: table for table in needs.TABLES}

#: The keys of tables, by their paths in torch.
ASKED = sorted(needs.ASKED)


def is_private(parts: list[str]) -> bool:
    """Whether a dotted name is of torch, and no public one."""
    if parts[0] != "torch" or len(parts) == 1:
        return False
    inside = any(part.startswith("_") and not part.startswith("__") for part in parts[1:])
    return inside or parts[1:3] == ["fx", "experimental"]


def names(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """The dotted names of torch that a file imports or reads, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.lineno, [*node.module.split("."), alias.name]) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"torch(\.\w+)+", ast.unparse(node)):
            yield node.lineno, ast.unparse(node).split(".")


#: Torch's rules, loaded for what importing them adds; a switch of torch's own that a stand-in for a module reads.
ELSEWHERE = {"torch._decomp.decompositions", "torch.fx.experimental._config.translation_validation"}


def test_private_names_of_torch_are_in_adapters_alone() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}: {'.'.join(parts)}"
        for path in SOURCES
        if path.name != "torch_adapter.py"
        for line, parts in names(ast.parse(path.read_text()))
        if is_private(parts) and not any(name.startswith(".".join(parts)) for name in ELSEWHERE)
    }
    assert not found, "take it by way of the package's torch_adapter.py: " + ", ".join(sorted(found))


def test_versions_of_torch_are_compared_for_the_warning_alone() -> None:
    compares = re.compile(
        r"TorchVersion|torch\.version\b(?!\.(cuda|hip))|torch\.__version__.*(<|>|split)|parse_version"
    )
    found = [path for path in SOURCES if compares.search(path.read_text())]
    assert not found, found


def test_each_path_in_torch_is_asked_for_in_one_way() -> None:
    """A need of one table, or a key of others: what torch lacks is logged once."""
    rows = [path for table in TABLES.values() for row in table for path in row.paths[:1]]
    assert not needs.ASKED & set(rows)
    assert len(rows) == len(set(rows)), sorted(path for path in set(rows) if rows.count(path) > 1)


# A torch without something


def outcomes(cases: list[str]) -> list[dict[str, Any]]:
    """Return the reports of `missing_needs.py` for cases."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parents[1] / "harness" / "missing_needs.py"), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 20 * len(cases))
    assert done.returncode == 0, done.stderr
    seen: list[dict[str, Any]] = json.loads(done.stdout)
    return seen


@pytest.mark.sampled(60)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("package", sorted(TABLES))
def test_without_one_need_the_rest_works(package: str) -> None:
    rows = a_part(TABLES[package], of=6)
    problems = []
    for row, seen in zip(rows, outcomes([",".join(row.paths) for row in rows]), strict=True):
        works = seen.get("same") and len(seen["lines"]) == int(row.built)
        if row.essential:
            works = works and seen["graphs"] == 0 and len(seen["warnings"]) == 1 and row.paths[0] in seen["warnings"][0]
        else:
            works = works and seen["graphs"] > 0
        if not works:
            problems.append((row.name, seen))
    assert not problems


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_without_some_keys_of_tables_the_rest_works() -> None:
    """Each key of a table that torch lacks is one line; what is not about it is compiled.

    But of those that the programs tried are about: that `t` is a `permute` to kernels, say.
    """
    used = re.compile(
        r"aten\.(relu|mm|mul|sum|add|threshold_backward|view|t|permute|expand|detach|copy_|clone)(_?)(\.|$)"
    )
    rest = [path for path in ASKED if not used.search(path)]
    cases = [rest[at::8] for at in range(8)]
    for paths, seen in zip(cases, outcomes([",".join(case) for case in cases]), strict=True):
        assert seen.get("same") and seen["graphs"] > 0, seen
        assert {path for path in paths if any(path in line for line in seen["lines"])} == set(paths)
        assert len(seen["lines"]) == len(set(seen["lines"]))


# Releases


def test_untested_releases_warn_once_and_old_ones_are_refused() -> None:
    major, minor = NEWEST_TESTED
    for version in (f"{major}.{minor + 1}.0a0+git", f"{major + 1}.0.0"):
        with pytest.warns(framesmith.releases.NewTorchWarning, match=re.escape(f"torch {version} is newer")):
            check_release(version)
    with pytest.raises(ImportError, match=r"2\.11"):
        check_release("2.10.1")
    for version in (torch.__version__, f"{major}.{minor}.7+cu130", "unknown"):
        check_release(version)


def test_the_releases_are_those_of_the_metadata_and_of_the_test_matrix() -> None:
    floors = {
        need
        for file in ROOT.glob("packages/*/pyproject.toml")
        for need in tomllib.loads(file.read_text())["project"].get("dependencies", ())
        if need.partition(">")[0] == "torch"
    }
    assert floors == {f"torch>={OLDEST[0]}.{OLDEST[1]}"}  # and no cap
    found = re.search(r"^TORCHES = (\[.*?\])$", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert found is not None
    tested = [release_of(version) for version in ast.literal_eval(found[1])]
    assert (tested[0], tested[-1]) == (OLDEST, NEWEST_TESTED)
