"""The examples at the top of the project's README and of the meta-package's run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from framesmith.reports.logs import TOPICS

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


def test_the_readme_lists_every_log_topic() -> None:
    listed = (ROOT / "packages/framesmith/README.md").read_text().partition("Topics: ")[2].partition(";")[0]
    assert re.findall(r"`(\w+)`", listed) == list(TOPICS)
