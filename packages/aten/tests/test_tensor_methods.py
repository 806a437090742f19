"""The methods that are more than their operators are methods, and no function or operator that only has their name."""

from __future__ import annotations

import pytest
import torch

from framesmith_aten import tensor_methods

TABLES = ("AUTOGRAD_STATE", "ENGINE", "STORAGE", "DATA", "CALLBACK")


@pytest.mark.parametrize("table", TABLES)
def test_tensors_have_the_methods(table):
    names = getattr(tensor_methods, table) - {"alias_"}  # an identity view that has no form in place
    assert [name for name in names if not callable(getattr(torch.Tensor, name, None))] == []


def test_each_is_about_one_thing():
    names = [name for table in TABLES for name in getattr(tensor_methods, table)]
    assert len(names) == len(set(names))


def test_what_a_call_means():
    assert tensor_methods.method_of("set_") == "set_"
    assert tensor_methods.method_of(torch.Tensor.requires_grad_) == "requires_grad_"
    assert tensor_methods.method_of(torch.resize_as_) == "resize_as_"
    assert tensor_methods.method_of(torch.autograd.backward) == "backward"
    assert tensor_methods.method_of(torch.ops.aten.detach_.default) is None
    assert tensor_methods.method_of(torch.ops.aten.set_) is None

    def storage(x):
        return x

    assert tensor_methods.method_of(storage) is None
