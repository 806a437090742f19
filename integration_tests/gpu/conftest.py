"""No test begins after the deadline of `tools/gpu_check.py`."""

import os
import time

import pytest

#: No test begins after this time, in seconds since 1970: set by `tools/gpu_check.py`.
DEADLINE = float(os.environ.get("FRAMESMITH_GPU_DEADLINE", "inf"))


@pytest.fixture(autouse=True)
def _in_time() -> None:
    if time.time() > DEADLINE:
        pytest.skip("the machine's time is up")
