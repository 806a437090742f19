"""Makes the modules beside the tests importable, and limits torch to one thread."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


def pytest_configure(config):
    config.addinivalue_line("markers", "broad: the whole operator database (minutes)")


def pytest_collection_modifyitems(config, items):
    if "broad" in config.option.markexpr:
        return
    selected = [item for item in items if item.get_closest_marker("broad") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in selected])
    items[:] = selected
