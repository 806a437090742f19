"""Helpers around an optimizer in whole training steps: equal to eager mode over ten steps, in few graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import framesmith
from benchmarks.models.helper_cases import HELPERS, trained


def comparable(found: Any) -> Any:
    """Tensors and numbers of nested containers, without functions, which `state_dict`s of schedulers hold, too."""
    if isinstance(found, dict):
        return {str(key): comparable(one) for key, one in found.items() if comparable(one) is not None}
    if isinstance(found, (list, tuple)):
        return [comparable(one) for one in found if comparable(one) is not None]
    return found if isinstance(found, (torch.Tensor, bool, int, float)) else None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", HELPERS)
def test_ten_steps_are_eagers(name: str) -> None:
    framesmith.reset()
    found = trained(name, lambda step: framesmith.compile(step, strict=True))
    expected = trained(name, lambda step: step)
    torch.testing.assert_close(comparable(found), comparable(expected), rtol=1e-4, atol=1e-5)
    stats = framesmith.stats()
    assert stats["frames_failed"] == 0
    assert 0 < stats["graphs"] <= 2, stats
    assert stats["breaks"] == 0, stats
