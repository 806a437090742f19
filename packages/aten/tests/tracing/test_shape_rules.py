"""Rules for metadata agree with what the real operators give."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode as new_fake_mode

from framesmith_aten.tracing.shape_rules import SHAPE_RULES

aten = torch.ops.aten
TYPES = (None, torch.float32, torch.bfloat16)


def metadata(results):
    return [(result.dtype, result.shape, result.stride()) for result in results]


def on_fakes(op, args):
    """What the rule says, or None where it declines."""
    mode = new_fake_mode()
    fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    with mode:
        return SHAPE_RULES[op](*fakes)


def real(op, args):
    try:
        return op(*args)
    except RuntimeError:
        return None  # types that do not go together


@pytest.mark.parametrize(("param", "running"), [*itertools.product(TYPES, TYPES[1:])])
@pytest.mark.parametrize("dtype", TYPES[1:])
def test_batch_norm(dtype, param, running):
    x = torch.randn(4, 3, 5).to(dtype)
    weight = None if param is None else torch.ones(3, dtype=param)
    stats = (torch.zeros(3, dtype=running), torch.ones(3, dtype=running))
    calls = [
        (aten._native_batch_norm_legit_functional.default, (x, weight, weight, *stats, True, 0.1, 1e-5)),
        (aten._native_batch_norm_legit.no_stats, (x, weight, weight, True, 0.1, 1e-5)),
        (aten._native_batch_norm_legit_no_training.default, (x, weight, weight, *stats, 0.1, 1e-5)),
    ]
    for op, args in calls:
        found, wanted = on_fakes(op, args), real(op, args)
        assert (found is None) == (dtype is torch.float32)
        if found is not None and wanted is not None:
            assert metadata(found) == metadata(wanted), op


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(affine):
    x, weight = torch.randn(2, 3, 4), torch.ones(4) if affine else None
    args = (x, [4], weight, weight, 1e-5)
    op = aten.native_layer_norm.default
    assert metadata(on_fakes(op, args)) == metadata(op(*args))
    assert on_fakes(op, (x.transpose(0, 1), *args[1:])) is None
