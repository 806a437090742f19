"""Errors of changed parts of torch's fakes are defects; those of operations are not."""

import pytest
import torch
import torch.nn.functional as F

from framesmith_aten.fakes import is_defect, new_fake_mode
from framesmith_aten.fakes.rules import memory_reads, symbolic_results
from framesmith_aten.fakes.rules.python_kernels import python_kernels
from framesmith_aten.fakes.symbols import attach_shape_env, symbolic_fake
from framesmith_guards import LocalSource


def symbolic():
    mode = new_fake_mode()
    attach_shape_env(mode)
    return mode, symbolic_fake(mode, torch.ones(5, 4), LocalSource("x"), [0])


def test_a_failure_in_remembering_results_is_a_defect(monkeypatch):
    mode, x = symbolic()

    def fail(*args):
        raise ValueError("planted")

    monkeypatch.setattr(symbolic_results, "_key", fail)
    with mode, pytest.raises(ValueError, match="planted") as caught:
        x + 1
    assert is_defect(caught.value)


@pytest.mark.parametrize("wrong", [lambda x: x @ x, lambda x: x.reshape(3, 3, -1), lambda x: torch.cat([x, x[0]])])
def test_what_an_operation_refuses_is_none(wrong):
    mode, x = symbolic()
    with mode, pytest.raises(RuntimeError) as caught:
        wrong(x)
    assert not is_defect(caught.value)


def test_the_end_of_the_stack_is_none(monkeypatch):
    mode, x = symbolic()

    def endless(*args):
        return endless()  # CPython 3.15 counts no call that unpacks arguments

    monkeypatch.setattr(symbolic_results, "_key", endless)
    with mode, pytest.raises(RecursionError) as caught:
        x + 1
    assert not is_defect(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: torch.tensordot(x, torch.ones(9, 2), dims=1),
        lambda x: F.bilinear(x, x, torch.ones(2, 9, 9)),
        lambda x: F.cross_entropy(x, torch.ones(9).long()),
        lambda x: torch.trapezoid(x, x, dim=5),
        lambda x: F.group_norm(x[None], 7),
        lambda x: F.linear(x, torch.ones(2, 9)),
    ],
)
def test_what_kernels_in_cpp_refuse_is_none(wrong):
    mode, x = symbolic()
    with mode, python_kernels(mode), pytest.raises((RuntimeError, ValueError, IndexError)) as caught:
        wrong(x)
    assert not is_defect(caught.value)


def test_a_failure_in_trying_a_kernel_is_a_defect(monkeypatch):
    mode, x = symbolic()

    def fail(*args):
        raise ValueError("planted")

    monkeypatch.setattr(memory_reads, "_may_be_read", fail)
    with mode, python_kernels(mode), pytest.raises(ValueError, match="planted") as caught:
        torch.tensordot(x, torch.ones(9, 2), dims=1)
    assert is_defect(caught.value)
