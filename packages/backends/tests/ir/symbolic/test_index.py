"""Index expressions: simplified ones have the values of the plain arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from graphs.meaning import index_value
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var

X, Y, Z = Var("x", 6), Var("y", 4), Var("z", 10)
VARIABLES = (X, Y, Z)


def points() -> list[dict[Var, int]]:
    return [dict(zip(VARIABLES, p)) for p in itertools.product(*(range(v.size) for v in VARIABLES))]


POINTS = points()


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[Ix, list[int]]:
    """An expression and its value at every point."""
    kind = draw(st.integers(0, 5 if depth else 1))
    if kind == 0:
        var = draw(st.sampled_from(VARIABLES))
        return index.of(var), [p[var] for p in POINTS]
    if kind == 1:
        value = draw(st.integers(-5, 20))
        return index.const(value), [value] * len(POINTS)
    a, left = draw(expressions(depth - 1))
    if kind == 2:
        b, right = draw(expressions(depth - 1))
        return index.add(a, b), [i + j for i, j in zip(left, right)]
    k = draw(st.integers(1, 12))
    if kind == 3:
        factor = draw(st.sampled_from((k, -k)))
        return index.scale(a, factor), [i * factor for i in left]
    if kind == 4:
        return index.floordiv(a, k), [i // k for i in left]
    return index.mod(a, k), [i % k for i in left]


@settings(max_examples=200, deadline=None)
@given(expressions())
def test_values_and_bounds(pair: tuple[Ix, list[int]]) -> None:
    expression, values = pair
    low, high = index.bounds(expression)
    for point, value in zip(POINTS, values):
        assert index_value(expression, point) == value
        assert low <= value <= high


def divided(expression: Ix) -> Iterator[Ix]:
    for atom, _ in expression.terms:
        if not isinstance(atom, Var):
            yield atom.base
            yield from divided(atom.base)


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_dividends_are_not_negative(pair: tuple[Ix, list[int]]) -> None:
    assert all(index.bounds(base)[0] >= 0 for base in divided(pair[0]))


@settings(max_examples=100, deadline=None)
@given(expressions(), st.integers(1, 6))
def test_substitution_is_evaluation(pair: tuple[Ix, list[int]], k: int) -> None:
    expression, _ = pair
    moved = index.substitute(expression, {X: index.mod(index.of(Z), k)})
    for point in POINTS[::7]:
        assert index_value(moved, point) == index_value(expression, {**point, X: point[Z] % k})


@settings(max_examples=300, deadline=None)
@given(expressions(), st.sampled_from((2, 3)))
def test_offsets_in_blocks(pair: tuple[Ix, list[int]], count: int) -> None:
    offsets = index.block_offsets(pair[0], X, count)
    if offsets is not None:
        for point in POINTS:
            begin = point[X] // count * count
            first = index_value(pair[0], {**point, X: begin})
            assert index_value(pair[0], point) - first == offsets[point[X] - begin]


def test_offsets_in_blocks_are_known() -> None:
    pixel = index.of(Var("w", 128))
    (var,) = index.variables(pixel)
    halves = index.floordiv(index.add(pixel, index.const(1)), 2)
    turns = index.mod(index.add(pixel, index.scale(index.of(Y), 3)), 3)
    assert index.block_offsets(halves, var, 4) == (0, 1, 1, 2)
    assert index.block_offsets(turns, var, 6) == (0, 1, 2, 0, 1, 2)
    assert index.block_offsets(turns, var, 4) is None


def test_reshapes_are_affine_again() -> None:
    for old, new in (((24,), (4, 6)), ((4, 6), (2, 2, 6)), ((2, 3, 4), (6, 4)), ((4, 1, 6), (24,))):
        here = [index.of(Var(f"d{k}", size)) for k, size in enumerate(new)]
        moved = index.delinearize(index.linearize(here, new), old)
        back = index.linearize(moved, old)
        assert back is index.linearize(here, new)
        assert math.prod(old) - 1 == index.bounds(back)[1]


def test_equal_expressions_are_one_object() -> None:
    a = index.add(index.of(X), index.scale(index.of(Y), 3))
    b = index.add(index.scale(index.of(Y), 3), index.of(X))
    assert a is b
