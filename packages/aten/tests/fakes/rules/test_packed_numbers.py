"""Fakes of operators of many tensors whose numbers are in one tensor."""

import pytest
import torch

from framesmith_aten.fakes import new_fake_mode

NAMES = ["_foreach_addcdiv", "_foreach_addcmul"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_results_are_like_the_tensors(name, device):
    with new_fake_mode():
        tensors = [torch.empty(3, device=device), torch.empty(2, 2, device=device).t()]
        results = getattr(torch, name)(tensors, tensors, tensors, torch.empty(2))
        by_name = getattr(torch, name)(tensors, tensors, tensors, scalars=torch.empty(2))
        getattr(torch, f"{name}_")(tensors, tensors, tensors, torch.empty(2))
    for found in (results, by_name):
        assert [(r.shape, r.stride(), r.device) for r in found] == [(t.shape, t.stride(), t.device) for t in tensors]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [lambda: torch.empty(3), lambda: torch.empty(4)[::2], lambda: torch.empty(2, 1)])
def test_numbers_that_the_operator_refuses(name, wrong):
    with new_fake_mode(), pytest.raises(RuntimeError):
        getattr(torch, name)([torch.empty(3)] * 2, [torch.empty(3)] * 2, [torch.empty(3)] * 2, wrong())
