"""Gradients of compiled functions with bodies, first and second, against finite differences and eager mode."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._pytree import tree_leaves

import framesmith
from integration_tests.transforms.autograd_functions.differentiable import FUNCTIONS, Tensor
from integration_tests.transforms.transforms import close

pytestmark = pytest.mark.usefixtures("fresh")


def point() -> Tensor:
    made = torch.linspace(0.2, 1.4, 12, dtype=torch.float64).reshape(3, 4)
    return (made * torch.tensor([1.0, -1.0, 0.5, 1.0], dtype=torch.float64)).requires_grad_()


def test_there_are_enough() -> None:
    assert len(FUNCTIONS) >= 40


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = framesmith.compile(function, fullgraph=True, strict=True)
    x = point()
    close(compiled(x), function(x), [x])

    def leaves(x: Tensor) -> Any:
        return tuple(tree_leaves(compiled(x)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of replays in eager mode
        assert gradcheck(leaves, point())
        assert gradgradcheck(leaves, point())
