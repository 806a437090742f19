"""Dtypes of norms' results on fakes are those that kernels give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from framesmith_aten.fakes.modes import new_fake_mode

aten = torch.ops.aten
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def calls(
    of: torch.dtype, of_parameters: torch.dtype, of_running: torch.dtype
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    x = torch.randn(2, 4, 3).to(of)
    one, each = (None if of_parameters is None else torch.ones(size, dtype=of_parameters) for size in (3, 4))
    running = torch.ones(4, dtype=of_running), torch.ones(4, dtype=of_running)
    yield aten.native_layer_norm.default, (x, [3], one, None, 1e-5)
    yield aten.native_layer_norm.default, (x, [3], None, None, 1e-5)
    yield aten.native_group_norm.default, (x, each, each, 2, 4, 3, 2, 1e-5)
    yield aten.native_batch_norm.default, (x, each, each, *running, True, 0.1, 1e-5)
    yield aten._native_batch_norm_legit_functional.default, (x, each, each, *running, True, 0.1, 1e-5)
    yield aten._native_batch_norm_legit.no_stats, (x, each, each, True, 0.1, 1e-5)
    yield aten._native_batch_norm_legit_no_training.default, (x, each, each, *running, 0.1, 1e-5)


def dtypes(op: Any, args: tuple[Any, ...]) -> list[torch.dtype]:
    return [result.dtype for result in op(*args)]


@pytest.mark.parametrize("of_running", TYPES)
@pytest.mark.parametrize("of_parameters", [None, *TYPES])
@pytest.mark.parametrize("of", TYPES)
def test_dtypes_are_the_kernels(of: torch.dtype, of_parameters: torch.dtype | None, of_running: torch.dtype) -> None:
    compared = 0
    for op, args in calls(of, of_parameters, of_running):
        try:
            expected = dtypes(op, args)
        except RuntimeError:  # eager refuses these dtypes together
            continue
        with new_fake_mode() as mode:
            fakes = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in args]
            assert dtypes(op, tuple(fakes)) == expected, op
        compared += 1
    assert compared
