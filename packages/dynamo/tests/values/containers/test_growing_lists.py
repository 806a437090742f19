"""Lists that a call only appends to: one entry for all lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from driver import check, compiled

X = torch.ones(2)


def appends(x: Any, log: list[Any]) -> Any:
    log.append(x.shape[0])
    log.extend(("a", [1]))
    log += [x * 2]
    log.append(log)
    return x + 1


def appends_then_looks(x: Any, log: list[Any]) -> Any:
    log.append(1)
    count = len(log)
    log.append(2)
    return x * count, log[-2], log[0]


def looks_then_appends(x: Any, log: list[Any]) -> Any:
    first = log[0] if log else 0
    log.append(3)
    return x * first


def extends_by_itself(x: Any, log: list[Any]) -> Any:
    log.append(1)
    log.extend(log)
    log.extend(v for v in (7, 8))
    return x


def appends_around_a_break(x: Any, log: list[Any]) -> Any:
    log.append(1)
    print(len(log))
    log.append(2)
    return x * 2


def passed_along(x: Any, log: list[Any]) -> Any:
    other = [log, log]
    other[0].append(x)
    return x, other[1] is log, log


def replaces(x: Any, log: list[Any]) -> Any:
    log.append(1)
    log.clear()
    log.append(2)
    return x


PROGRAMS = [
    appends, appends_then_looks, looks_then_appends, extends_by_itself, appends_around_a_break, passed_along, replaces,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("log", [[], [5], [5, 6]], ids=len)
def test_as_eager(program: Any, log: list[Any]) -> None:
    check(program, X, log)


@pytest.mark.parametrize("program", [appends, passed_along])
def test_one_entry_for_all_lengths(program: Any) -> None:
    subject = compiled(program)
    log: list[Any] = []
    for _ in range(12):
        subject(X, log)
    assert len(subject.of_kind("entry")) == 1


def test_looking_guards_the_length() -> None:
    subject = compiled(appends_then_looks)
    log: list[Any] = []
    for count in (1, 3, 5):
        assert subject(X, log)[0][0].item() == count
    assert len(subject.of_kind("entry")) == 3


def test_two_lists_that_turn_out_to_be_one() -> None:
    def both(x: Any, a: list[Any], b: list[Any]) -> Any:
        a.append(1)
        b.append(2)
        return x * 2

    subject = compiled(both)
    for same in (False, True, False):
        a: list[Any] = []
        b: list[Any] = a if same else []
        subject(X, a, b)
        assert (a, b) == (([1, 2], [1, 2]) if same else ([1], [2]))
