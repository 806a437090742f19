"""Fixtures; makes the modules of `helpers` importable. `FRAMESMITH_LONG=1` selects the long versions of tests."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "helpers"))


@pytest.fixture(scope="session")
def long_run() -> bool:
    """Whether this is the long (nightly) run."""
    return bool(os.environ.get("FRAMESMITH_LONG"))


@pytest.fixture
def no_collection():
    """Disable garbage collection: its callbacks (hypothesis has one) would add events."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pytest_terminal_summary(terminalreporter):
    """Report the counts and durations of a long run's tests."""
    if not os.environ.get("FRAMESMITH_LONG"):
        return
    for report in terminalreporter.stats.get("passed", []):
        for line in report.capstdout.splitlines():
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]} ({report.duration:.0f} s): {line}")
