"""Blocks that Triton's interpreter reduces as a whole, pairs of neighbours at a time."""

from __future__ import annotations

import importlib.util

import pytest
from interpreter_scripts.run import interpreted


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_results_are_those_of_torch() -> None:
    assert interpreted("blocks").count("ok ") == 6 * 5
