"""Loops in which the graph breaks: functions called in their first iteration are not compiled twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driver import check

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def work(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).cos()


def more(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x.exp() * by


def pieces(x):
    total = torch.zeros(())
    for piece in x.chunk(2):
        y = work(piece)
        print("piece")
        total = total + y.sum()
    return total


def behind_other_work(x):
    x = x.square().sum(1)
    for at in range(3):
        x = work(x)
        print(at)
    return x * 2


def behind_a_mapped_function(x):
    x = torch.vmap(lambda row: row.square().exp().neg().sum(0))(x)
    for at in range(3):
        x = work(x)
        print(at)
    return x * 2


def numbered(x):
    found = []
    for at, (row, other) in enumerate(zip(x, reversed(list(x)), strict=True)):
        found.append(work(row) + more(other, at))
        print(at)
    return found


def nested(x):
    for row in x:
        for at in range(2):
            row = work(row)
            print(at)
        x = x + more(row)
    return x


def in_a_later_round(x):
    for at in range(4):
        x = work(x)
        if at == 2:
            print("late")
    return x


def own_operations(x):
    for at in range(3):
        x = x * 2
        print(at)
        x = x + 1
    return x


def leaves_early(x):
    for at in range(5):
        x = work(x)
        print(at)
        if at == 1:
            break
    else:
        return x * 100
    return more(x)


def of_nothing(x):
    for at in range(x.shape[1] - 3):
        x = work(x)
        print(at)
    return more(x)


def while_it_is_small(x):
    at = 0
    while at < 3:
        x = work(x)
        print(at)
        at += 1
    return x


def in_a_block(x):
    with torch.no_grad():
        for at in range(3):
            x = work(x)
            print(at)
    return x + 1


def caught(x):
    try:
        for at in range(3):
            x = work(x)
            print(at)
            if at == 1:
                raise ValueError(at)
    except ValueError as error:
        return x, error.args
    return x


def changes_a_list(x):
    rows = [x[0], x[1]]
    for row in rows:
        rows[0] = work(row)
        print(len(rows))
        if len(rows) < 4:
            rows.append(more(row))
    return rows


def of_a_generator(x):
    def rows() -> Iterator[torch.Tensor]:
        for row in x:
            print("row")
            yield work(row)

    total = torch.zeros(3)
    for row in rows():
        total = total + more(row)
    return total


def endless(x):
    for at in itertools.count():
        x = work(x)
        print(at)
        if at == 2:
            return x
    return None


def comprehended(x):
    def printing(row: torch.Tensor) -> torch.Tensor:
        y = work(row)
        print("row")
        return y

    return [printing(row) for row in x]


def sometimes(x, loops=(False, True, False)):
    if loops[x.shape[0] % 3]:
        for at in range(2):
            x = work(x)
            print(at)
    return more(x)


#: program -> how often the operations of `work` are compiled
PROGRAMS: dict[Callable[..., Any], int] = {
    pieces: 1,
    behind_other_work: 1,
    behind_a_mapped_function: 1,
    numbered: 1,
    nested: 1,
    in_a_later_round: 4,  # the three iterations that come first, and `work` for the rest
    own_operations: 0,
    leaves_early: 1,
    of_nothing: 0,
    while_it_is_small: 2,
    in_a_block: 1,
    caught: 1,
    changes_a_list: 1,
    of_a_generator: 1,
    endless: 1,
    comprehended: 1,
    sometimes: 1,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_rounds(program: Callable[..., Any]) -> None:
    found = check(program, X)
    assert found.calls.count("cos") == PROGRAMS[program], found.calls


@pytest.mark.parametrize("program", [pieces, numbered, endless], ids=lambda program: program.__name__)
def test_nothing_before_a_loop_is_no_frame(program: Callable[..., Any]) -> None:
    found = check(program, X)
    assert program.__code__ not in [event.code for event in found.of_kind("entry")]


def test_what_is_before_a_loop_is_compiled() -> None:
    found = check(behind_other_work, X)
    assert "square" in found.calls


def test_a_call_that_does_not_come_to_the_loop_is_compiled() -> None:
    """The function is still inlined for callers that do not reach the loop."""
    found = check(sometimes, X)
    check_again = check(sometimes, X[:3])
    assert "exp" in found.calls
    assert "exp" in check_again.calls
