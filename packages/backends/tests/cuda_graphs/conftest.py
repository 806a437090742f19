"""The warnings of captures: each is reported once in every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from framesmith_backends import reporting


@pytest.fixture(autouse=True)
def notices(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    reporting.log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "framesmith.plan"):
        yield caplog
