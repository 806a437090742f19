"""Shared set-up: the tests' own helper modules are importable, and torch uses few threads,
and nothing is kept in the user's cache folder."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
_CACHE = tempfile.TemporaryDirectory(prefix="framesmith-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    torch.set_num_threads(2)
