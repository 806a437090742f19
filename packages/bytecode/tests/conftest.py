"""Shared set-up: the tests' own helper modules are importable; `FRAMESMITH_LONG=1` asks for the long versions."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def long_run() -> bool:
    """Is this the long (nightly) run?"""
    return bool(os.environ.get("FRAMESMITH_LONG"))


@pytest.fixture
def no_collection():
    """No garbage collection meanwhile: its callbacks (hypothesis has one) are events, too."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pytest_terminal_summary(terminalreporter):
    """At the end of a long run, what its tests counted and how long they took."""
    if not os.environ.get("FRAMESMITH_LONG"):
        return
    for report in terminalreporter.stats.get("passed", []):
        for line in report.capstdout.splitlines():
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]} ({report.duration:.0f} s): {line}")
