"""Comparisons of symbolic sizes and numbers: eager's results, and one entry for all sizes but 0 and 1."""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import entries_for

X = torch.arange(3.0)


class Sized:
    """A size with operators of its own."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __add__(self, other: int) -> int:
        return self.n + other

    def __eq__(self, other: object) -> bool:
        return self.n == other

    __hash__ = None  # type: ignore[assignment]


def refuses(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.size() != (y.size(0), 3):
        raise ValueError(x.shape)
    return x + y


def same_tuple_copied(x: torch.Tensor, y: torch.Tensor) -> Any:
    key = (x.size(0), 3)
    return x + y, copy.deepcopy(key), copy.deepcopy(key) is key


def counts(x: torch.Tensor, y: torch.Tensor) -> Any:
    numbers = itertools.count(x.size(0), 2)
    return x + next(numbers) + next(numbers), next(itertools.count(x.size(0) > -1))


#: Programs of two tensors with equal numbers of rows. None specialises it.
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "shapes": lambda x, y: x + y if x.shape == y.shape else x,
    "unequal shapes": lambda x, y: x if x.shape != y.shape else x + y,
    "shape and tuple": refuses,
    "parts of shapes": lambda x, y: x + y if x.shape[:1] == y.shape[:1] else x,
    "index": lambda x, y: x + [x.size(0), 3].index(3),
    "count": lambda x, y: x + (2, x.size(0), 2).count(2),
    "order of tuples": lambda x, y: x + y if (x.size(0), 1) > (-3, 2) else x,
    "order decided later": lambda x, y: x + y if (x.size(0), 3) >= (y.size(0), 2) else x,
    "membership": lambda x, y: x + (x.size(0) in (None, 3)),
    "is None": lambda x, y: (x + y, x.size(0) is None, x.size(0) is x.size(1), x.size(0) is not None),
    "is itself": lambda x, y: (x + y, [n is m for n in [x.size(0)] for m in [n]]),
    "result of a method": lambda x, y: (x + (Sized(x.size(0)) + 2), Sized(x.size(0)) == 3),
    "copied": lambda x, y: x + copy.deepcopy(x.size(0)),
    "copied tuple": same_tuple_copied,
    "rounded": lambda x, y: x + round(x.size(0)),
    "counted": counts,
    "infinite": lambda x, y: (x + y, x.size(0) < math.inf, x.size(0) > -math.inf, x.size(0) == math.inf),
    "no number": lambda x, y: (x + y, x.size(0) < math.nan, x.size(0) == math.nan, x.size(0) != math.nan),
    "large": lambda x, y: (x + min(x.size(0), sys.maxsize), max(x.size(0), -sys.maxsize), x.size(0) < 2**31),
    "larger": lambda x, y: (x + y, x.size(0) > 2**63, x.size(0) <= 2**64, x.size(0) == 2**40, -(2**80) < x.size(0)),
    "other types": lambda x, y: (x + y, x.size(0) != None, x.size(0) == "a", x.size(0) == torch.float32),  # noqa: E711
    "complex": lambda x, y: (x + y, x.size(0) != 1j, x.size(0) == 3 + 0j, 3j == x.size(0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_comparing_does_not_ask_for_the_number(name: str) -> None:
    tensors = [torch.arange(3.0 * n).reshape(n, 3) for n in (5, 6, 7, 8, 9, 6)]
    calls = [(x, x + 1) for x in tensors]
    assert entries_for(PROGRAMS[name], calls, fullgraph=True) == [1, 2, 2, 2, 2, 2]
    assert entries_for(PROGRAMS[name], calls, fullgraph=True, dynamic=True) == [1] * 6


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_are_eagers_for_all_sizes(name: str, dynamic: bool | None) -> None:
    tensors = [torch.arange(3.0 * n).reshape(n, 3) for n in (5, 1, 6, 0, 3, 2, 1, 12)]
    entries_for(PROGRAMS[name], [(x, x + 1) for x in tensors], fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_shapes_that_differ(dynamic: bool | None) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2 if x.shape == y.shape else (x.shape < y.shape, y + 1)

    sizes = [(5, 5), (6, 6), (6, 7), (9, 8), (8, 8), (1, 1), (1, 4), (0, 0), (4, 0)]
    entries_for(program, [(torch.ones(n, 3), torch.ones(m, 3)) for n, m in sizes], fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "values",
    [(5, 7, -4, 2**31, 0, 2**40, -(2**31), 9), (0.5, 2.5, math.inf, math.nan, 2.0**40, 0.0, 3.5)],
)
def test_numbers_beyond_those_of_graphs(values: tuple[Any, ...], dynamic: bool | None) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        large = n < 2**31, n == 2**40, n > 2**60, n >= -(2**31), n <= 2.0**31
        return x * n, *large, n < math.inf, n == math.nan, n is None, n == 5 + 0j, n != "a"

    entries_for(program, [(X, n) for n in values], fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_computed_of_an_answer_is_compared_again(dynamic: bool | None) -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        computed = (-int(n < 2) - 1) * 3
        return x * computed, x[computed % x.size(0)], 1 if int(n < 2) * 3 - 4 > -3 else 0

    entries_for(program, [(torch.arange(5.0), n) for n in (3, 1, -5, 7, -9, 0, 2)], fullgraph=True, dynamic=dynamic)


def test_an_argument_is_compared_with_large_numbers_and_stays_a_symbol() -> None:
    program: Callable[..., Any] = lambda x, n: (x * n, n < 2**31, n == 2**40, n < math.inf, n is None)  # noqa: E731
    assert entries_for(program, [(X, n) for n in (5, 7, 9, -4, 100)], fullgraph=True) == [1, 2, 2, 2, 2]
    floats: Callable[..., Any] = lambda x, n: (x * n, n < 2**31, n == 2**40, n is None, n == "a")  # noqa: E731
    assert entries_for(floats, [(X, n) for n in (0.5, 2.5, -9.5, 1e9)], fullgraph=True) == [1, 2, 2, 2]
