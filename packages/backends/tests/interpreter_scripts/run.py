"""Run a script of this folder with TRITON_INTERPRET=1, which Triton reads at its import: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def interpreted(script: str, *arguments: str) -> str:
    """The output of this folder's script of that name, which ends well."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-m", f"interpreter_scripts.{script}", *arguments],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
