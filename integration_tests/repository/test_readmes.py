"""The examples at the top of the project's README and of the meta-package's run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["README.md", "packages/framesmith/README.md"])
def test_the_first_example_runs(page: str, tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert found is not None
    program = tmp_path / "example.py"
    program.write_text(found.group(1))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "graph(s)" in done.stdout and "Warning" not in done.stderr, done.stdout + done.stderr
