"""Functions that compute with numbers and change nothing, and others."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from framesmith_dynamo.admission.number_functions import changes_nothing

SIZE, LOG, RATES = 5, object(), [0.1, 0.2]


def helper(epoch: int) -> float:
    return epoch / SIZE


def counts(epoch: int) -> float:
    global SIZE
    SIZE += 1
    return 1.0


def closing(held: Any) -> Any:
    return lambda epoch: held


@pytest.mark.parametrize(
    "function",
    [
        lambda epoch: 0.95**epoch,
        lambda epoch: max(0.0, math.cos(math.pi * epoch / SIZE)),
        lambda epoch: helper(epoch) + RATES[0],
        lambda epoch: sum([0.5 for _ in range(epoch)]),
        partial(helper),
        partial(lambda epoch, n: epoch / n, n=3),
        closing(3),
        closing((1, 2.0)),
        closing(None),
    ],
)
def test_functions_of_numbers(function: Any) -> None:
    assert changes_nothing(function)


@pytest.mark.parametrize(
    "function",
    [
        counts,
        print,
        lambda epoch: print(epoch),
        lambda epoch: RATES.append(epoch),
        lambda epoch: RATES.__setitem__(0, epoch),
        lambda epoch: LOG,
        lambda epoch: setattr(LOG, "a", epoch),
        closing(object()),
        closing(print),
        partial(print, end=""),
        partial(lambda epoch, n: n.append(epoch), n=[]),
        math,
        helper.__call__,
        [],
    ],
)
def test_other_functions(function: Any) -> None:
    assert not changes_nothing(function)


def test_stores_to_items_are_changes() -> None:
    def store(epoch: int) -> float:
        RATES[0] = epoch
        return 1.0

    assert not changes_nothing(store)
