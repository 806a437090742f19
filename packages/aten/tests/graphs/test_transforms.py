"""`vmapped`: torch's vmap over a graph, by operands and results."""

from __future__ import annotations

import pytest
import torch

from framesmith_aten.graphs.transforms import vmapped


def body(a, w):
    return a * 2 + w, w.exp(), a.sum()


def test_dimensions_of_operands_and_results():
    a, w = torch.randn(4, 3), torch.randn(4)
    found = vmapped(body, (1, None), (1, None, 0), "error", a, w)
    for one, other in zip(found, (a * 2 + w[:, None], w.exp(), a.sum(0)), strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_comes_out():
    assert vmapped(lambda a: (), (0,), (), "error", torch.ones(3)) == ()


def test_no_transform_is_left_behind():
    def fails(a):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        vmapped(fails, (0,), (0,), "error", torch.ones(3))
    assert torch._C._functorch.peek_interpreter_stack() is None
