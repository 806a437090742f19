"""What is known of numbers that data tell."""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from framesmith_aten.symbolic import may_all_hold


def told(env, least=0):
    number = env.create_unbacked_symint()
    torch._check(number >= least)
    return number


def test_what_may_hold_of_numbers_that_data_tell():
    env = ShapeEnv()
    one, other = told(env), told(env)
    assert may_all_hold([])
    assert may_all_hold([one > other, other > 2])
    assert not may_all_hold([one > other, other > one])


def test_what_has_been_said_of_them_holds_too():
    env = ShapeEnv()
    one, other = told(env), told(env)
    torch._check(one % 2 == 0)
    torch._check(other > one)
    assert not may_all_hold([one // 2 * 2 < one])
    assert may_all_hold([other // 2 * 2 < other])


def test_what_has_no_value_for_some_numbers_does_not_hold_there():
    env = ShapeEnv()
    one, other = told(env), told(env)
    assert may_all_hold([one % other == 1])
    assert not may_all_hold([one % other > other])
