"""Loops over containers that change during the loop, or whose order differs between calls; loops with a breaking
head.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import check, compiled

X = torch.arange(6.0).reshape(2, 3)


def adds(d, key):
    d["new"] = 1


def removes(d, key):
    d.pop("b", None)


def swaps(d, key):
    if "b" in d:
        del d["b"]
        d["z"] = 1


def stores(d, key):
    d["c"] = 7


def clears(d, key):
    d.clear()


def moves(d, key):
    d.move_to_end("a")


def loop(x, d, log, change, view, backwards):
    shown = getattr(d, view)() if view else d
    try:
        for key in reversed(shown) if backwards else shown:
            log.append(key)
            change(d, key)
            if len(log) > 6:
                break
    except RuntimeError as error:
        log.append(str(error))
    return x + 1


CHANGES: list[tuple[Any, Any]] = [
    *itertools.product([dict, OrderedDict], [adds, removes, swaps, stores, clears]), (OrderedDict, moves),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("cls", "change"), CHANGES, ids=lambda value: value.__name__)
def test_dicts_that_change_in_a_loop(cls: Any, change: Any, backwards: bool) -> None:
    for view in ("", "keys", "values", "items"):
        check(loop, X, cls(a=1, b=2, c=3), [], change, view, backwards)


def asked_again(x, d, log):
    it = iter(d)
    next(it)
    d["new"] = 1
    for _ in range(3):
        try:
            log.append(next(it, "end"))
        except RuntimeError as error:
            log.append(str(error))
        d.pop("new", None)
    return x + 1


@pytest.mark.parametrize("cls", [dict, OrderedDict])
def test_an_iterator_complains_again_or_has_ended(cls: Any) -> None:
    check(asked_again, X, cls(a=1, b=2), [])


def grows(x, s, log):
    try:
        for item in s:
            log.append(item)
            s.add(item + 10)
    except RuntimeError as error:
        log.append(str(error))
    return x + 1


def replaced(x, s, log):
    s = {v for v in s}
    for item in s:
        s.discard(item)
        s.add(item)
        log.append(item)
    return x + 1


def deque_grows(x, d, log):
    it = iter(d)
    d.append(1)
    for _ in range(2):
        try:
            log.append(next(it, "end"))
        except RuntimeError as error:
            log.append(str(error))
    return x + 1


@pytest.mark.parametrize(
    ("fn", "container"),
    [(grows, {1, 2}), (replaced, {1, 2}), (deque_grows, deque([1, 2]))],
    ids=["grows", "replaced", "deque grows"],
)
def test_sets_and_deques_that_change_in_a_loop(fn: Any, container: Any) -> None:
    check(fn, X, container, [])


def broken_over_new_values(x, d, log):
    d["new"] = x
    log.append([print(v.ndim) for v in d.values()])
    return x + 1


def broken_inside(x, d, log):
    items = iter(d.items())
    next(items)
    print("now")
    return x + 1, list(items)


def backwards_over_a_changed_list(x, d, log):
    items = list(d.values())
    it = reversed(items)
    items.append(x)
    print("now")
    return x + 1, [v.ndim for v in it]


@pytest.mark.parametrize("cls", [dict, OrderedDict])
@pytest.mark.parametrize(
    "fn", [broken_over_new_values, broken_inside, backwards_over_a_changed_list], ids=lambda fn: fn.__name__
)
def test_iterators_that_a_break_interrupts(fn: Any, cls: Any) -> None:
    check(fn, X, cls(a=X, b=X[0]), [])


class Loud:
    """An iterator that prints, and counts the calls of its `__iter__`."""

    def __init__(self, log):
        self.log = log
        self.left = 2

    def __iter__(self):
        self.log.append("iter")
        return self

    def __next__(self):
        print(self.left)
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


def head_calls_a_function(x, log):
    y = x * 2
    for v in map(print, [1, 2]):
        log.append(v)
        y = y + 1
    return y


def head_is_an_iterator_of_the_users(x, log):
    y = x * 2
    for v in Loud(log):
        y = y + v
    return y


def head_raises_in_a_block(x, log):
    y = x * 2
    try:
        for _ in map(print, [1, 2], iter([3])):
            y = y + 1
        for _ in map(lambda v: [print(v)][v], [0, 1]):
            y = y + 1
    except IndexError as error:
        log.append(str(error))
    return y


def set_of_the_callers(x, log, s=frozenset([5])):
    y = x * 2
    for v in set(s) | {v for v in log}:
        print(v)
        y = y + v
    return y


@pytest.mark.parametrize(
    "fn",
    [head_calls_a_function, head_is_an_iterator_of_the_users, head_raises_in_a_block, set_of_the_callers],
    ids=lambda fn: fn.__name__,
)
def test_the_head_of_a_loop_may_break(fn: Any) -> None:
    assert check(fn, X, []).graphs


class Holder:
    """Holds a table."""

    def __init__(self, table):
        self.table = table


class Keys:
    """A key compared by identity."""


FIRST, SECOND = Keys(), Keys()


def table_of_an_argument(x, holder):
    return x + 1, list(holder.table), list(holder.table.values()), list(holder.table.items())


def text_of_its_keys(x, holder):
    return x + 1, [str(key) for key in reversed(holder.table) if isinstance(key, str)], len(holder.table)


def moved_once_more(x, holder):
    first = next(iter(holder.table))
    holder.table.move_to_end(first)
    return x + 1, list(holder.table.values())


ORDERED: list[Callable[..., Any]] = [table_of_an_argument, text_of_its_keys, moved_once_more]


@pytest.mark.parametrize(
    "keys", [("a", "b", "c"), (FIRST, "s", SECOND), (1, 2.5, "s")], ids=["names", "objects", "mixed"]
)
@pytest.mark.parametrize("fn", ORDERED, ids=lambda fn: fn.__name__)
def test_an_ordered_dict_that_is_reordered_between_calls(fn: Any, keys: tuple[Any, ...]) -> None:
    subject = compiled(fn)
    mine, theirs = (Holder(OrderedDict((key, i) for i, key in enumerate(keys))) for _ in range(2))
    for moved in (0, 1, 1, 2, 0, 2, 1):
        for holder in (mine, theirs):
            holder.table.move_to_end(keys[moved], last=moved != 0)
        assert subject(X, mine)[1:] == fn(X, theirs)[1:]
        assert mine.table == theirs.table and list(mine.table) == list(theirs.table)


def test_copies_and_updates_follow_the_order() -> None:
    def f(x, d):
        d.move_to_end("a")
        seen = [list(d)]
        d["z"] = 1
        d.move_to_end("c", last=False)
        return x + 1, d, [*seen, list(d)], copy.copy(d), OrderedDict(d), dict(d)

    check(f, X, OrderedDict(a=1, b=2, c=3))
