"""Tests of every folder: by default `sampled(n)` runs about one in `n` cases of a test, and `nightly` none."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # `tools`, for tests that run away from here


def number_of(name: str) -> int:
    """The number by which a case is chosen: `FRAMESMITH_SAMPLE=anything` chooses others."""
    chosen = name + os.environ.get("FRAMESMITH_SAMPLE", "")
    return int.from_bytes(hashlib.blake2b(chosen.encode(), digest_size=4).digest(), "big")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `nightly` the cases of sampled tests that the default run leaves out.

    The choice is by the case's name and FRAMESMITH_SAMPLE: it does not follow the order of a table.
    The first case always runs.
    """
    met: set[str] = set()
    for item in items:
        mark = item.get_closest_marker("sampled")
        test = item.nodeid.partition("[")[0]
        if mark is not None and test in met and number_of(item.name) % mark.args[0]:
            item.add_marker(pytest.mark.nightly)
        met.add(test)
