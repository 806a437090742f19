"""The README's example runs."""

import re
from pathlib import Path

import pytest

import framesmith_bytecode


def test_example(capsys, tmp_path):
    path = Path(__file__).parents[1] / "README.md"
    if not path.exists():
        pytest.skip("the README is not beside the tests")
    source = re.search(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL).group(1)
    exec(compile(source, str(path), "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert "FOR_ITER" in printed
    shown = re.search(r"on every version:\n\n```\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL).group(1)
    assert printed.endswith(shown)


def test_all_names_are_mentioned():
    """Every public name but those of results and exceptions stands in the table or is said elsewhere."""
    path = Path(__file__).parents[1] / "README.md"
    if not path.exists():
        pytest.skip("the README is not beside the tests")
    text = path.read_text(encoding="utf-8")
    results = {"Block", "ContinuationError", "DecodeError", "Item", "Liveness", "Parameter", "Split"}
    assert {name for name in framesmith_bytecode.__all__ if f"`{name}" not in text} == results
