"""Shared set-up: the tests' own helper modules are importable, and torch uses few threads,
and nothing is kept in the user's cache folder."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from framesmith_backends.passes import EVERYWHERE
from framesmith_backends.pipeline import verify_after
from tools.warm_process import preload

sys.path.insert(0, str(Path(__file__).parent))
_CACHE = tempfile.TemporaryDirectory(prefix="framesmith-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name
EVERYWHERE.append(verify_after)  # the IR is verified after each pass of every compile
preload("torch.fx.experimental.proxy_tensor", "framesmith_backends")


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    torch.set_num_threads(2)
