"""Inputs that have history, called with gradients off."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from harness import compiled, graph_of


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("leaf", [True, False])
def test_an_input_that_requires_grad(mode: Callable[[], AbstractContextManager[Any]], leaf: bool) -> None:
    x = torch.randn(3, requires_grad=True)
    value = x if leaf else x * 2
    with mode():
        run = compiled(graph_of(lambda x: (x.sin() + x, x)), [value])
        assert run.backward_graph is None
        out, same = run(value)
        assert torch.equal(out, value.sin() + value) and not out.requires_grad
    assert same is value and value.requires_grad
