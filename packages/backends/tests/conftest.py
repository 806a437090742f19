"""Shared set-up: the tests' own helper modules are importable, and torch uses few threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    torch.set_num_threads(2)
