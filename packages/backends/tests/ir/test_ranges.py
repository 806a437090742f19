"""Ranges of integer expressions: every value lies in its expression's, and some ranges are narrow."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends.ir.dtypes import DTYPES, integer_range, is_integer
from framesmith_backends.ir.expr import Cast, Const, Expr, Index, Load, Op
from framesmith_backends.ir.ranges import is_within, range_of
from framesmith_backends.ir.spec import Memory, evaluate, grid_of
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var

TYPES = [name for name in DTYPES if is_integer(name)]
POINTS = Var("x", 8)


def numbers(dtype: str) -> st.SearchStrategy[int]:
    """Of a type: any, those near 0 and those near its ends."""
    least, most = integer_range(dtype)
    near = [st.integers(max(least, -3), 3), st.integers(least, least + 3), st.integers(most - 3, most)]
    return st.one_of(st.integers(least, most), *near)


@st.composite
def expressions(draw: st.DrawFn, memory: Memory, dtype: str, depth: int = 4) -> Expr:
    """An expression of that type; what it loads is put into memory."""

    def operand(of: str) -> Expr:
        return draw(expressions(memory, of, depth - 1))

    kind = draw(st.integers(0, 9 if depth else 2))
    if kind == 0:
        return Const(draw(numbers(dtype)), dtype)
    if kind == 1 and dtype == "i64":
        ix = index.add(index.scale(index.of(POINTS), draw(st.integers(-4, 4))), index.const(draw(st.integers(-9, 9))))
        return Index(draw(st.sampled_from((ix, index.mod(ix, 5), index.floordiv(ix, 3)))))
    if kind <= 2:
        name = f"m{len(memory)}"
        memory[name] = torch.tensor(draw(st.lists(numbers(dtype), min_size=8, max_size=8)), dtype=DTYPES[dtype].torch)
        return Load(name, (index.of(POINTS),), dtype)
    if kind == 3:
        return Cast(operand(draw(st.sampled_from(TYPES))), dtype)
    if kind == 4:
        last = Const(DTYPES[dtype].bits - 1, dtype)
        return Op("shr", operand(dtype), Op("max", Op("min", operand(dtype), last), Const(0, dtype)))
    if kind == 5:
        other = draw(st.sampled_from(TYPES))
        return Op("where", Op("lt", operand(other), operand(other)), operand(dtype), operand(dtype))
    if kind == 6:
        return Op(draw(st.sampled_from(("mul", "and", "or", "xor"))), operand(dtype), operand(dtype))
    return Op(draw(st.sampled_from(("add", "sub", "min", "max"))), operand(dtype), operand(dtype))


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(TYPES))
def test_values_lie_in_the_range(data: st.DataObject, dtype: str) -> None:
    memory: Memory = {}
    expression = data.draw(expressions(memory, dtype))
    least, most = range_of(expression)
    assert integer_range(dtype)[0] <= least <= most <= integer_range(dtype)[1]
    values = evaluate(expression, grid_of([POINTS]), memory, {}).flatten().tolist()
    assert least <= min(values)
    assert max(values) <= most
    for size in (1, 9, most + 1):
        assert not is_within(expression, size) or (min(values) >= 0 and max(values) < size)


def test_known_ranges() -> None:
    byte = Cast(Load("m", (index.of(POINTS),), "u8"), "i32")
    assert range_of(byte) == (0, 255)
    assert range_of(byte - 7) == (-7, 248)
    assert range_of(7 - byte) == (-248, 7)
    assert range_of(Op("shr", byte, Const(3, "i32"))) == (0, 31)
    assert range_of(Op("max", byte - 7, Const(0, "i32"))) == (0, 248)
    assert range_of(Cast(byte, "i8")) == (-128, 127)
    assert is_within(byte, 256)
    assert not is_within(byte, 255)
    assert range_of(Index(index.scale(index.of(POINTS), -2))) == (-14, 0)
