"""Padding by symbolic numbers: the operator's layout, and a guard where it decides the layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from framesmith_aten.fakes import new_fake_mode, python_kernels
from framesmith_aten.fakes.symbols import symbolic_fake
from framesmith_guards import LocalSource

#: The first pad, whether the tensor is transposed, and the number of guards.
PADDED = [(8, True, 1), (5, True, 1), (8, False, 0), (5, False, 0)]


@pytest.mark.parametrize(("length", "transposed", "conditions"), PADDED)
@pytest.mark.parametrize("sign", [1, -1])
def test_nothing_to_pad_keeps_the_layout(length: int, transposed: bool, conditions: int, sign: int) -> None:
    x = torch.randn(7, length).t() if transposed else torch.randn(length, 7)
    mode = new_fake_mode()
    fake = symbolic_fake(mode, x, LocalSource("x"), range(2))

    def pad(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, sign * (x.shape[0] % 4)))

    with mode, python_kernels(mode):
        result = pad(fake)
    env: Any = mode.shape_env
    expected = pad(x)
    now = [one.node.hint if isinstance(one, torch.SymInt) else one for one in (*result.shape, *result.stride())]
    assert now == [*expected.shape, *expected.stride()]
    assert sign < 0 or len(env.guards) == conditions
