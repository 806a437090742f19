"""Images of dynamic shapes, upsampled: one entry, and the tensors that eager mode saves for backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith

RANKS = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3),
    "linear": (1,), "bilinear": (2,), "trilinear": (3,), "bicubic": (2,),
}  # fmt: skip
BY_SCALE: dict[str, dict[str, Any]] = {
    "double": {"scale_factor": 2}, "half_again": {"scale_factor": 1.5}, "size": {"size": 11},
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> None:
    framesmith.reset()


def twice_back(resize: Callable[[torch.Tensor], torch.Tensor], image: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The upsampled image, and the gradient of two passes: nothing is kept that the first one frees."""
    x = image.clone(memory_format=torch.preserve_format).requires_grad_()
    resized = resize(x)
    gradient = torch.ones_like(resized).cumsum(-1)
    resized.backward(gradient)
    resized.backward(gradient)
    assert x.grad is not None
    return resized.detach(), x.grad


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("error::framesmith.FramesmithWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", BY_SCALE)
@pytest.mark.parametrize(("mode", "rank"), [(mode, rank) for mode, ranks in RANKS.items() for rank in ranks])
def test_one_entry_for_all_sizes(mode: str, rank: int, scale: str, dtype: torch.dtype) -> None:
    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode=mode, **BY_SCALE[scale])

    compiled = framesmith.compile(resize, dynamic=True, strict=True, recompile_limit=1)
    for shift in (5, 8, 6):
        image = torch.randn(2, 3, *range(shift, shift + rank)).to(dtype)
        for found, wanted in zip(twice_back(compiled, image), twice_back(resize, image), strict=True):
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_channels_stay_last(mode: str) -> None:
    compiled = framesmith.compile(lambda x: F.interpolate(x, mode=mode, scale_factor=2), dynamic=True, strict=True)
    for side in (4, 6):
        image = torch.randn(2, 3, side, side).contiguous(memory_format=torch.channels_last)
        eager = twice_back(lambda x: F.interpolate(x, mode=mode, scale_factor=2), image)
        for found, wanted in zip(twice_back(compiled, image), eager, strict=True):
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted)
