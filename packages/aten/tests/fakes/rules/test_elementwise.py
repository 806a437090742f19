"""Derivatives of elementwise operators on tensors of unbacked lengths."""

from __future__ import annotations

from typing import Any

import torch

from framesmith_aten.fakes import new_fake_mode
from framesmith_aten.fakes.symbols import new_shape_env


def test_nothing_is_asked_of_what_logsigmoid_saves() -> None:
    env: Any = new_shape_env()
    length = env.create_unbacked_symint()
    torch._check(length >= 0)
    with new_fake_mode(env):
        x, saved = torch.empty(length, 3), torch.empty(length, 3)
        gradient = torch.ops.aten.log_sigmoid_backward(torch.empty(length, 3), x, saved)
    assert gradient.shape == x.shape and gradient.dtype is x.dtype and not env.guards
