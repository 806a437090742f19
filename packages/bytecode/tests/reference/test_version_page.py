"""The page about adding a version names tests, files and fields that exist."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import framesmith_bytecode
from framesmith_bytecode.cpython.version_table import TABLES, VersionTable

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "bytecode" / "add-a-cpython-version.md"


@pytest.fixture
def names():
    """Texts of the page in code font."""
    if not PAGE.exists():
        pytest.skip("not in the repository")
    return set(re.findall(r"`([^`\n]+)`", PAGE.read_text(encoding="utf-8")))


def test_every_step_names_tests_that_exist(names):
    """The page names tests and files of other packages too."""
    files = [*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("integration_tests/**/test_*.py")]
    defined = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))}
    named = {name for name in names if name.startswith("test_")}
    assert len(named) > 15
    assert named <= defined | {path.name for path in files}


def test_files_exist(names):
    folders = [
        Path(framesmith_bytecode.__file__).parent,
        *ROOT.glob("packages/*/src/*"),
        *ROOT.glob("packages/*/tests"),
    ]
    files = {name for name in names if re.fullmatch(r"[a-z_]+/[a-z0-9_]+\.py", name)}
    assert len(files) > 8
    assert [name for name in sorted(files) if not any((folder / name).exists() for folder in folders)] == []


def test_every_field_is_described():
    for field in fields(VersionTable):
        assert field.name == "version" or f"`{field.name}`" in (VersionTable.__doc__ or "")
    assert list(TABLES) == sorted(TABLES)
