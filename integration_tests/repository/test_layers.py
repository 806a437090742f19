"""`tools/check_layers.py` refuses what the layer table forbids: each planted violation is found, and named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.check_layers import check

ROOT = Path(__file__).resolve().parents[2]

PLANTS = {
    "upward": ("guards/src/framesmith_guards/planted.py", "import framesmith_dynamo\n", "framesmith_dynamo"),
    "sibling": (
        "aot/src/framesmith_aot/trace/planted.py",
        "from framesmith_backends import eager\n",
        "framesmith_backends",
    ),
    "replaced system": (
        "dynamo/src/framesmith_dynamo/planted.py",
        "def lazily():\n    import torch._dynamo.config\n    return torch\n",
        "torch._dynamo",
    ),
    "replaced partitioner": (
        "aot/src/framesmith_aot/planted.py",
        "from torch._functorch import partitioners\n",
        "torch._functorch.partitioners",
    ),
    "dynamic import": (
        "bytecode/src/framesmith_bytecode/planted.py",
        "import importlib\nimportlib.import_module('torch')\n",
        "torch",
    ),
    "private name": (
        "sideeffects/src/framesmith_sideeffects/planted.py",
        "from framesmith_bytecode import _hidden\n",
        "_hidden",
    ),
    "a test's sibling": ("aot/tests/planted.py", "from framesmith_backends import eager\n", "framesmith_backends"),
    "a test's undeclared tool": ("guards/tests/planted.py", "def lazily():\n    import scipy.linalg\n", "scipy"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the checker reads."""
    ignore = shutil.ignore_patterns("__pycache__", "*.so", ".hypothesis")
    shutil.copytree(ROOT / "packages", tmp_path / "packages", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_as_it_is_passes(tree: Path) -> None:
    assert check(tree) == []


def test_the_script_ends_as_the_check_does(tree: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "check_layers.py"), str(tree)]
    assert subprocess.run(command, check=False).returncode == 0
    (tree / "packages" / PLANTS["upward"][0]).write_text(PLANTS["upward"][1])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and PLANTS["upward"][2] in done.stdout


def test_planted_imports_are_found(tree: Path) -> None:
    for path, text, _ in PLANTS.values():
        assert not (tree / "packages" / path).exists()
        (tree / "packages" / path).write_text(text)
    found = check(tree)
    for plant, (path, _, named) in PLANTS.items():
        assert any(path in line and named in line for line in found), (plant, found)


def test_a_planted_cycle_is_found(tree: Path) -> None:
    source = tree / "packages/guards/src/framesmith_guards"
    (source / "planted_a.py").write_text(
        "def lazily():\n    from framesmith_guards import planted_b\n    return planted_b\n"
    )
    (source / "planted_b.py").write_text("import framesmith_guards.planted_a\n")
    found = check(tree)
    assert any("cycle" in line and "planted_a" in line for line in found), found


def test_a_planted_upward_dependency_is_found(tree: Path) -> None:
    pyproject = tree / "packages/guards/pyproject.toml"
    pyproject.write_text(
        pyproject.read_text().replace("dependencies = [", 'dependencies = [\n    "framesmith-dynamo",')
    )
    found = check(tree)
    assert any("only lower layers" in line for line in found), found
