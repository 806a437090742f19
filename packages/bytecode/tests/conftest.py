"""Shared fixtures. `FRAMESMITH_LONG=1` asks for the long versions of the tests that have one."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def long_run() -> bool:
    """Is this the long (nightly) run?"""
    return bool(os.environ.get("FRAMESMITH_LONG"))
