"""Eager mode of control flow is compiled by torch: what it has compiled for a file's programs ends with the file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def torch_compiles_afresh() -> Iterator[None]:
    """Sizes that changed in other files are no symbols here: torch's `map` fails with some."""
    torch.compiler.reset()
    yield
