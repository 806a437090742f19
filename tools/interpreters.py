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


def has_jit(version: str) -> bool:
    """Return whether the Python of a version is found and is built with CPython's experimental JIT."""
    found = find_interpreter(version)
    program = "import sys; print(hasattr(sys, '_jit') and sys._jit.is_available())"
    return found is not None and subprocess.check_output([found, "-c", program], text=True) == "True\n"
