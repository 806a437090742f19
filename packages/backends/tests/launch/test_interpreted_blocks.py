"""Blocks that Triton's interpreter reduces and scans as a whole, beside its own way, element after element."""

from __future__ import annotations

import importlib.util

import pytest
from interpreting import interpreted


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_results_are_those_of_single_elements() -> None:
    assert interpreted("interpret_blocks.py").count("ok ") == 46
