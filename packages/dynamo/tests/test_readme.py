"""The README's example runs and prints its comments; its table names existing files and decorators."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import framesmith_dynamo

README = (Path(__file__).parent.parent / "README.md").read_text()
#: The base of file names in the table: the package's own folder, or that of all distributions.
OWN = Path(framesmith_dynamo.__file__).parent
ROWS = re.findall(r"^\| ((?:an?|calling) [^|]*) \| ([^|]*) \| ([^|]*) \|$", README, re.MULTILINE)


def test_example(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("def forward") == 2
    assert "['graph', 'entry', 'recompile', 'graph', 'dynamic', 'entry']" in done.stdout
    assert "L['scale']: expected 1, found 2" in done.stdout
    assert "def check(args, function)" in done.stdout


def place(name: str) -> Path:
    """Return the file or folder that a row names."""
    package, _, rest = name.partition("/")
    if package.startswith("framesmith_"):
        return Path(str(__import__(package).__file__)).parent / rest
    return OWN / name


def defined_in(path: Path) -> set[str]:
    """Return the names that a module defines."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_table_is_read() -> None:
    assert len(ROWS) == README.count("\n", README.index("| I want to support"), README.rindex("|\n") + 2) - 2 >= 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_files_and_decorators_that_there_are(row: tuple[str, str, str]) -> None:
    _, where, by = row
    files = re.findall(r"`([\w/]+(?:\.py|/))`", where + by)
    assert files
    assert [name for name in files if not place(name).exists()] == []
    claims = re.findall(r"((?:`@?\w+`(?:, | or | and )?)+) of `([\w/]+\.py)`", where + by)
    assert claims
    for names, file in claims:
        assert {name.removeprefix("@") for name in re.findall(r"`(@?\w+)`", names)} <= defined_in(place(file))
