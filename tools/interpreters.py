"""CPython's versions on the path."""

from __future__ import annotations

import shutil
import subprocess


def find_interpreter(version: str) -> str | None:
    """Return the path of the Python of a version, as "3.14", or None if none runs: a shim may lead nowhere."""
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        return None
    return found
