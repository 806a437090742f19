"""The README's example runs with this package and what it declares, and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_example(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    [printed] = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
    assert "framesmith_dynamo" not in example
