"""Facts about unbacked numbers."""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges

from framesmith_aten.symbolic import hint_assuming, holds_assuming, may_all_hold


def unbacked(env, least=0):
    number = env.create_unbacked_symint()
    torch._check(number >= least)
    return number


def test_conditions_that_unbacked_numbers_may_satisfy():
    env = ShapeEnv()
    one, other = unbacked(env), unbacked(env)
    assert may_all_hold([])
    assert may_all_hold([one > other, other > 2])
    assert not may_all_hold([one > other, other > one])


def test_what_has_been_said_of_them_holds_too():
    env = ShapeEnv()
    one, other = unbacked(env), unbacked(env)
    torch._check(one % 2 == 0)
    torch._check(other > one)
    assert not may_all_hold([one // 2 * 2 < one])
    assert may_all_hold([other // 2 * 2 < other])


def test_what_has_no_value_for_some_numbers_does_not_hold_there():
    env = ShapeEnv()
    one, other = unbacked(env), unbacked(env)
    assert may_all_hold([one % other == 1])
    assert not may_all_hold([one % other > other])


def test_hints_of_unbacked_expressions_agree():
    env = ShapeEnv()
    one, other = unbacked(env), unbacked(env)
    env._update_var_to_range(other.node.expr, ValueRanges(5, 9))
    assert [hint_assuming(number, 2) for number in (one, 2 * one, one * one + 3, other, one - 2, 7)] == [
        2,
        4,
        7,
        5,
        0,
        7,
    ]


def test_an_expression_without_a_value_at_an_assumed_size():
    env = ShapeEnv()
    one = unbacked(env)
    assert hint_assuming(torch.sym_float(6) / torch.sym_float(one - 2), 2) == 2  # what `hint_or_guess` takes it to be
    assert hint_assuming(torch.sym_float(6) / torch.sym_float(one - 2), 8) == 1.0


def test_conditions_at_an_assumed_size():
    env = ShapeEnv()
    one = unbacked(env)
    holds = [holds_assuming((condition).node.expr, env, 8) for condition in (one > 7, one < 8, one * 2 == 16)]
    assert holds == [True, False, True]
