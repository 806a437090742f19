"""Tests that need a GPU on the simulated one: `python -m pytest -p integration_tests.simulated_gpu.plugin`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from integration_tests.simulated_gpu.device import ROOT, start

GPU = start()
# Processes that tests start have one, too.
_FOLDERS = [str(Path(__file__).parent / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(folder for folder in _FOLDERS if folder)

import pytest  # noqa: E402

from integration_tests.simulated_gpu.not_built import Reports  # noqa: E402

#: Seconds for a test that has a limit for a GPU.
PATIENCE = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Emulated, what takes a device a moment takes minutes."""
    for item in items:
        item.add_marker(pytest.mark.timeout(PATIENCE), append=False)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reports(GPU.not_built))


@pytest.fixture(autouse=True)
def _simulated_gpu() -> Iterator[None]:
    """A test whose kernels did what a device objects to fails, and the next one finds a sound device."""
    yield
    errors = GPU.recover()
    assert not errors, errors[0]
