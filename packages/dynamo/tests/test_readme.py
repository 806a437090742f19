"""The README's example runs and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_example(tmp_path: Path) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("def forward") == 2
    assert "['graph', 'entry', 'recompile', 'graph', 'entry']" in done.stdout
    assert "L['scale']: expected 1, found 2" in done.stdout
    assert "def check(args, function)" in done.stdout
