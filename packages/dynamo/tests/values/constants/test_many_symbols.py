"""Thousands of symbolic numbers: guards and nodes grow linearly with their count."""

from __future__ import annotations

import time

import pytest
import torch
from driver import compiled, same

X = torch.arange(4.0)


def added(x, *numbers):
    return x + sum(numbers)


def not_zero(x, *numbers):
    return x + (sum(numbers) != 0)


def from_a_start(x, *numbers):
    return x * sum(numbers[1:], numbers[0])


def of_a_generator(x, *numbers):
    return x + sum(2 * n for n in numbers if n > 3)


def with_constants(x, *numbers):
    return x + sum([1, *numbers, True, -2])


def twice_the_same(x, *numbers):
    return x + sum([*numbers, *numbers])


def a_tensor_among_them(x, *numbers):
    return x + sum([*numbers, x, *numbers])


def a_float_among_them(x, *numbers):
    return x + sum([*numbers, 0.5, *numbers])


def one_by_one(x, *numbers):
    total = 0
    for n in numbers:
        total += n
    return x + total


SUMS = [
    added, not_zero, from_a_start, of_a_generator, with_constants, twice_the_same, a_tensor_among_them,
    a_float_among_them, one_by_one,
]  # fmt: skip


@pytest.mark.parametrize("fn", SUMS, ids=lambda fn: fn.__name__)
def test_sums(fn):
    subject = compiled(fn, dynamic=True)
    for first in (5, 7, 50):
        numbers = range(first, first + 12)
        assert same(subject(X, *numbers), fn(X, *numbers))
    assert len(subject.of_kind("entry")) == 1 and not subject.of_kind("break")


def test_a_sum_is_one_node():
    subject = compiled(added, dynamic=True)
    numbers = range(2, 302)
    assert same(subject(X, *numbers), added(X, *numbers))
    assert subject.calls == ["sym_sum", "add"]


def test_a_sum_of_thousands():
    """A second or two; a minute where each number is compared with all others."""
    subject = compiled(not_zero, dynamic=True)
    numbers = range(1500)
    begun = time.process_time()
    assert same(subject(X, *numbers), not_zero(X, *numbers))
    assert time.process_time() - begun < 15
