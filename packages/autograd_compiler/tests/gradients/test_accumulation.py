"""Writes to `.grad` that follow each other: gradients are added to existing ones by one call."""

from __future__ import annotations

import pytest
import torch
from harness import identity, same_gradients

from framesmith_autograd_compiler import capture, disabled


def leaves(count):
    return [torch.randn(4, requires_grad=True) for _ in range(count)]


def loss(parameters):
    return sum((parameter.sin() * (number + 1)).sum() for number, parameter in enumerate(parameters))


def separate(parameters):
    pass


def one_tensor(parameters):
    shared = torch.zeros(4)
    for parameter in parameters:
        parameter.grad = shared


def parts_of_a_buffer(parameters):
    flat = torch.zeros(4 * len(parameters))
    for number, parameter in enumerate(parameters):
        parameter.grad = flat[4 * number : 4 * number + 4]


def overlapping_parts(parameters):
    flat = torch.zeros(4 + len(parameters))
    for number, parameter in enumerate(parameters):
        parameter.grad = flat[number : number + 4]


def some_absent(parameters):
    for parameter in parameters[::2]:
        parameter.grad = torch.ones(4)


@pytest.mark.parametrize("prepare", [separate, one_tensor, parts_of_a_buffer, overlapping_parts, some_absent])
def test_sums_are_those_of_the_engine(prepare):
    def make():
        parameters = leaves(6)
        prepare(parameters)
        return parameters, lambda: loss(parameters).backward()

    same_gradients(make)


def test_a_gradient_keeps_its_identity():
    parameters = leaves(3)
    with capture(identity):
        loss(parameters).backward()
        held = [parameter.grad for parameter in parameters]
        loss(parameters).backward()
    assert all(parameter.grad is before for parameter, before in zip(parameters, held, strict=True))


def test_writes_before_one_that_raises_are_done():
    parameters = leaves(3)
    for parameter in parameters:
        parameter.grad = torch.zeros(4)

    def run():
        parameters[1].grad = torch.zeros(4, requires_grad=True) * 1  # no leaf: refused in place
        parameters[1].grad.data = torch.zeros(2, 4)[:, :1].squeeze(1)
        with pytest.raises(RuntimeError):
            loss(parameters).backward()
        return [parameter.grad.sum() != 0 for parameter in (parameters[0], parameters[2])]

    with disabled():
        expected = run()
    for parameter in parameters:
        parameter.grad = torch.zeros(4)
    with capture(identity):
        assert run() == expected
