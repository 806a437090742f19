"""Symbolic sizes: simplified ones have the values of plain arithmetic; what is said of all values holds for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from graphs.meaning import index_value
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends.ir.symbolic import index, size
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, Undecided

N, M, ANY = size.symbol("n", 2, 5), size.symbol("m", 0, 7), size.symbol("k", None, 3)
VALUES = [
    {size.Symbol("n", 2, 5): n, size.Symbol("m", 0, 7): m, size.Symbol("k", None, 3): k}
    for n, m, k in itertools.product((2, 3, 5, 8, 17), (0, 1, 4, 9), (-7, -1, 0, 2, 11))
]


@st.composite
def sizes(draw: st.DrawFn, depth: int = 3) -> tuple[Size, list[int]]:
    """A size and its value at every point of `VALUES`."""
    kind = draw(st.integers(0, 7 if depth else 1))
    if kind == 0:
        chosen = draw(st.sampled_from([N, M, ANY]))
        return chosen, [size.evaluate(chosen, values) for values in VALUES]
    if kind == 1:
        constant = draw(st.integers(-4, 12))
        return constant, [constant] * len(VALUES)
    (a, left), (b, right) = draw(sizes(depth - 1)), draw(sizes(depth - 1))
    if kind in (2, 3, 4):
        operation: Callable[[Size, Size], Size] = [lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y][kind - 2]
        return operation(a, b), [operation(i, j) for i, j in zip(left, right)]  # type: ignore[misc]
    if kind == 5:
        divisor = draw(st.sampled_from([N, 3, 2 * N, N * N, N + 1]))
        by = [size.evaluate(divisor, values) for values in VALUES]
        if draw(st.booleans()):
            return a // divisor, [i // j for i, j in zip(left, by)]
        return a % divisor, [i % j for i, j in zip(left, by)]
    largest = draw(st.booleans())
    choose = max if largest else min
    return size.extreme(a, b, largest), [choose(i, j) for i, j in zip(left, right)]


@settings(max_examples=400, deadline=None)
@given(sizes())
def test_a_size_has_the_values_of_plain_arithmetic(drawn: tuple[Size, list[int]]) -> None:
    found, wanted = drawn
    assert [size.evaluate(found, values) for values in VALUES] == wanted
    low = size.lower_bound(found)
    assert low is None or low <= min(wanted)
    if isinstance(found, size.Sym):
        names = {symbol: symbol.name for symbol in size.symbols(found)}
        text = size.size_text(found, names)
        named = [{symbol.name: value for symbol, value in values.items()} for values in VALUES]
        assert [eval(text, {"max": max, "min": min, **values}) for values in named] == wanted


@settings(max_examples=400, deadline=None)
@given(sizes(), sizes())
def test_decisions_hold_for_all_values(one: tuple[Size, list[int]], other: tuple[Size, list[int]]) -> None:
    (a, left), (b, right) = one, other
    for compare in (lambda x, y: x >= y, lambda x, y: x > y, lambda x, y: x <= y, lambda x, y: x < y):
        try:
            decided = compare(a, b)
        except Undecided:
            continue
        assert {compare(i, j) for i, j in zip(left, right)} == {decided}
    if a == b:
        assert left == right
    assert not size.surely_positive(a) or min(left) > 0
    quotient = size.exact_quotient(a, b)
    if quotient is not None:
        parts = [size.evaluate(quotient, values) for values in VALUES]
        assert [i for i, j in zip(left, right) if j] == [p * j for p, j in zip(parts, right) if j]


def test_the_text_of_a_monomial_as_divisor() -> None:
    text = size.size_text(
        (M * M + 1) // (2 * N), {symbol: symbol.name for symbol in (*size.symbols(N), *size.symbols(M))}
    )
    assert eval(text, {"n": 5, "m": 9}) == 82 // 10


def test_quotients_known_by_bounds() -> None:
    assert -1 // N == -1 and -1 % N == N - 1
    assert (2 * N - 3) // 2 == N - 2 and (2 * N - 3) % 2 == 1
    assert size.split_multiple(3 * M - 7, 3) == (M - 3, 2)
    assert size.split_multiple(N * M + M, N + 1) == (M, 0)
    assert size.split_multiple(N + 5, 0) == (0, N + 5)


def test_strides_where_nothing_is_empty() -> None:
    stride = size.extreme(M, 1, True) * N
    assert stride != M * N
    assert size.where_not_empty(stride) == M * N
    assert size.where_not_empty(size.extreme(M, 2, True)) == size.extreme(M, 2, True)


def test_equal_sizes_are_one_object() -> None:
    assert (N + M) * (N - M) is N * N - M * M
    assert (N * M) // N is M
    assert (2 * N * M + 6 * N) // (2 * N) is M + 3
    with pytest.raises(Undecided):
        bool(N > M)


ROWS, COLUMNS = size.symbol("r", 1, 4), size.symbol("c", 1, 6)
LOOPS = (Var("x", ROWS), Var("y", COLUMNS), Var("z", 3))


def points() -> list[tuple[dict[size.Symbol, int], dict[Var, int]]]:
    found = []
    for rows, columns in ((1, 1), (1, 4), (3, 1), (2, 5), (4, 3)):
        known = {size.Symbol("r", 1, 4): rows, size.Symbol("c", 1, 6): columns}
        ranges = [range(size.evaluate(loop.size, known)) for loop in LOOPS]
        found += [(known, dict(zip(LOOPS, point))) for point in itertools.product(*ranges)]
    return found


POINTS = points()


@st.composite
def indices(draw: st.DrawFn, depth: int = 3) -> tuple[Ix, list[int]]:
    """An index that is not negative, of loops whose ranges change, and its value at every point."""
    kind = draw(st.integers(0, 4 if depth else 0))
    if kind == 0:
        loop = draw(st.sampled_from(LOOPS))
        return index.of(loop), [point[loop] for _, point in POINTS]
    a, left = draw(indices(depth - 1))
    if kind == 1:
        b, right = draw(indices(depth - 1))
        return index.add(a, b), [i + j for i, j in zip(left, right)]
    factor = draw(st.sampled_from([ROWS, COLUMNS, ROWS * COLUMNS, 2 * COLUMNS, 3, 2, COLUMNS + 1]))
    by = [size.evaluate(factor, known) for known, _ in POINTS]
    if kind == 2:
        return index.scale(a, factor), [i * j for i, j in zip(left, by)]
    if kind == 3:
        return index.floordiv(a, factor), [i // j for i, j in zip(left, by)]
    return index.mod(a, factor), [i % j for i, j in zip(left, by)]


@settings(max_examples=600, deadline=None)
@given(indices())
def test_an_index_has_the_values_of_plain_arithmetic(drawn: tuple[Ix, list[int]]) -> None:
    found, wanted = drawn
    assert [index_value(found, point, known) for known, point in POINTS] == wanted
    low, high = index.bounds(found)
    for (known, _), value in zip(POINTS, wanted):
        assert size.evaluate(low, known) <= value <= size.evaluate(high, known)


def test_a_reshape_and_back_is_the_index_itself() -> None:
    shape = (ROWS, COLUMNS, 3)
    here = tuple(index.of(loop) for loop in LOOPS)
    flat = index.linearize(here, shape)
    assert index.delinearize(flat, shape) == here
    merged = index.delinearize(flat, (ROWS * COLUMNS, 3))
    assert index.delinearize(index.linearize(merged, (ROWS * COLUMNS, 3)), shape) == here


def test_a_quotient_has_the_lower_bound_of_what_is_divided() -> None:
    length = size.symbol("s", 2, 5)
    assert size.surely_positive((length + 1) // 2)
    assert not size.surely_positive((length - 1) // 2)


@settings(deadline=None)
@given(st.lists(sizes(depth=2), max_size=6))
def test_a_total_is_the_sum(parts: list[tuple[Size, list[int]]]) -> None:
    found = size.total(part for part, _ in parts)
    assert found == sum((part for part, _ in parts), start=0)
    assert [size.evaluate(found, values) for values in VALUES] == [
        sum(each) for each in zip([0] * len(VALUES), *(v for _, v in parts))
    ]
