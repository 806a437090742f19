"""Reductions over unbacked lengths: nothing is asked of them that the operators do not ask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from framesmith_aten.fakes import new_fake_mode
from framesmith_aten.fakes.symbols import new_shape_env

REDUCTIONS = {
    "softmax": lambda x: F.softmax(x, 0),
    "softmax of rows": lambda x: F.softmax(x.t(), 0),
    "log_softmax": lambda x: F.log_softmax(x, -2),
    "logsumexp": lambda x: x.logsumexp(0),
    "logsumexp of rows": lambda x: x.logsumexp(-1, keepdim=True),
    "logsumexp of all": lambda x: x.logsumexp((0, 1)),
    "logsumexp, transposed": lambda x: x.t()[None].logsumexp(1),
    "cummax": lambda x: x.t().cummax(-1)[0],
    "indices of cummin": lambda x: x.cummin(0)[1],
    "norm": lambda x: torch.linalg.vector_norm(x),
    "norm kept": lambda x: torch.linalg.vector_norm(x, 3, keepdim=True),
    "norm of dimensions": lambda x: torch.linalg.vector_norm(x, dim=[0]),
    "norm in another type": lambda x: torch.linalg.vector_norm(x, dtype=torch.float64),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_nothing_is_asked_of_unbacked_lengths(name: str, dtype: torch.dtype) -> None:
    reduce = REDUCTIONS[name]
    env: Any = new_shape_env()
    mode = new_fake_mode(env)
    length = env.create_unbacked_symint()
    torch._check(length >= 0)
    with mode:
        x = torch.empty(length, 3, dtype=dtype)
        asserted = {key: list(value) for key, value in env.deferred_runtime_asserts.items()}
        result = reduce(x)
    assert env.deferred_runtime_asserts == asserted and not env.guards
    expected = reduce(torch.ones(5, 3, dtype=dtype))
    assert result.dtype is expected.dtype and result.dim() == expected.dim()
    shape = [5 if isinstance(size, torch.SymInt) else size for size in result.shape]
    assert shape == list(expected.shape)
