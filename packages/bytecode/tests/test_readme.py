"""The README's example runs."""

import re
from pathlib import Path

import pytest


def test_example(capsys, tmp_path):
    path = Path(__file__).parents[1] / "README.md"
    if not path.exists():
        pytest.skip("the README is not beside the tests")
    source = re.search(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL).group(1)
    exec(compile(source, str(path), "exec"), {"__name__": "readme"})
    assert "FOR_ITER" in capsys.readouterr().out
