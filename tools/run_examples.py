"""Run the Python examples of a README, each as a program of its own: `python tools/run_examples.py README.md`.

Exits with the number of examples that fail.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def examples(page: Path) -> list[str]:
    """The text of every block of Python on the page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run(example: str, folder: Path) -> bool:
    """Whether the example runs to its end."""
    program = folder / "example.py"
    program.write_text(example)
    return subprocess.run([sys.executable, program.name], cwd=folder, check=False).returncode == 0


def main(page: Path) -> int:
    """Run all of them."""
    found = examples(page)
    if not found:
        print(f"{page}: no example")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        failed = sum(not run(example, Path(folder)) for example in found)
    print(f"{page}: {len(found) - failed} of {len(found)} examples ran")
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
