"""Scripts that have Triton interpret kernels, each in a process of its own: Triton decides at import whether to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def interpreted(script: str, *arguments: str) -> str:
    """The output of the script of that name beside this file, which ends well."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *arguments],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
