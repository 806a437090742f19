"""Rules for metadata agree with what the real operators give."""

from __future__ import annotations

import pytest
import torch

from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_aten.tracing.shape_rules import SHAPE_RULES

aten = torch.ops.aten
TYPES = (None, torch.float32, torch.bfloat16)


def metadata(results):
    return [(result.dtype, result.shape, result.stride()) for result in results]


def on_fakes(op, args):
    """The rule's result, or None where it declines."""
    mode = new_fake_mode()
    fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    with mode:
        return SHAPE_RULES[op](*fakes)


def real(op, args):
    try:
        return op(*args)
    except RuntimeError:
        return None  # types that do not go together


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(affine):
    x, weight = torch.randn(2, 3, 4), torch.ones(4) if affine else None
    args = (x, [4], weight, weight, 1e-5)
    op = aten.native_layer_norm.default
    assert metadata(on_fakes(op, args)) == metadata(op(*args))
    assert on_fakes(op, (x.transpose(0, 1), *args[1:])) is None


LAID_OUT = {
    "transposed": lambda: torch.randn(5, 7, 3).transpose(1, 2),
    "permuted": lambda: torch.randn(6, 3, 4, 5).permute(2, 1, 0, 3),
    "channels last": lambda: torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last),
    "a part of channels last": lambda: torch.randn(4, 3, 5, 8).to(memory_format=torch.channels_last)[..., ::2],
    "channels last of volumes": lambda: torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "a part": lambda: torch.randn(4, 3, 6, 12)[:, :, :, ::2],
    "turned": lambda: torch.randn(3, 10).t(),
    "expanded": lambda: torch.randn(1, 3, 6, 6).expand(8, 3, 6, 6),
    "one channel": lambda: torch.randn(4, 1, 5, 6).to(memory_format=torch.channels_last),
    "one pixel": lambda: torch.randn(4, 3, 1, 1).to(memory_format=torch.channels_last),
    "contiguous": lambda: torch.randn(4, 3, 5, 6),
}


@pytest.mark.parametrize("dtype", TYPES[1:])
@pytest.mark.parametrize("name", LAID_OUT)
def test_batch_norm_of_other_layouts(name, dtype):
    x = LAID_OUT[name]().to(dtype)
    channels = x.shape[1]
    stats = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)
    forward = [
        (aten._native_batch_norm_legit_functional.default, (x, None, None, *stats, True, 0.1, 1e-5)),
        (aten._native_batch_norm_legit.no_stats, (x, None, None, True, 0.1, 1e-5)),
        (aten._native_batch_norm_legit_no_training.default, (x, None, None, *stats, 0.1, 1e-5)),
    ]
    backward = aten.native_batch_norm_backward.default
    for grad in (x.clone(), x.clone(memory_format=torch.contiguous_format), torch.ones_like(x)):
        saved = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)
        forward.append((backward, (grad, x, stats[1], *stats, *saved, True, 1e-5, [True, True, True])))
    mode = new_fake_mode()
    for op, args in forward:
        found = on_fakes(op, args)
        if found is None:
            fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
            with mode:
                found = op(*fakes)
        wanted = op(*args)
        assert [one.stride() for one in found] == [one.stride() for one in wanted], op
