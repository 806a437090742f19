"""The README's examples run."""

import re
from pathlib import Path

import pytest

import framesmith_bytecode


def readme():
    path = Path(__file__).parents[1] / "README.md"
    if not path.exists():
        pytest.skip("the README is not beside the tests")
    return path.read_text(encoding="utf-8")


def test_examples(capsys):
    text = readme()
    first, *others = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(first, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert "FOR_ITER" in printed
    shown = re.search(r"on every version:\n\n```\n(.*?)```", text, re.DOTALL).group(1)
    assert printed.endswith(shown)
    for example in others:
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
        assert re.search(r"CALL|looked|\[3\]", capsys.readouterr().out)


def test_all_names_are_mentioned():
    """Every public name but those of results and exceptions stands in the table or is said elsewhere."""
    text = readme()
    results = {"Block", "ContinuationError", "DecodeError", "Item", "Liveness", "Parameter", "Split"}
    assert {name for name in framesmith_bytecode.__all__ if f"`{name}" not in text} == results
