"""C functions that take items: each with iterators that read the container, change it, raise, or are odd."""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

X = torch.arange(3.0)

STARTS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, 2, 3, 4],
    "deque": lambda: collections.deque([1, 2], 3),
    "set": lambda: {1, 2, 4},
    "dict": lambda: {1: 1, 2: 2},
    "nothing": list,
}
#: `c`: the container, `it`: the iterable, `log`: the program's observations, `r`: the result.
CALLS: dict[str, list[str]] = {
    "list": [
        "c.extend(it)", "c += it", "c[1:2] = it", "c[::2] = it", "c[5:] = it", "c[2:1] = it", "r = c + [*it]",
        "c.__iadd__(it)",
        "c.extend(c)",
    ],
    "deque": ["c.extend(it)", "c.extendleft(it)", "c += it", "c.extendleft(c)", "c.extend(c)"],
    "set": [
        "c.update(it)", "c.update([9], it)", "c.difference_update(it)", "c.intersection_update(it)",
        "c.symmetric_difference_update(it)",
        "r = c.union(it)", "r = c.intersection(it)", "r = c.difference(it)", "r = c.symmetric_difference(it)",
        "r = c.isdisjoint(it)",
        "r = c.issubset(it)", "r = c.issuperset(it)", "r = frozenset(c).isdisjoint(it)",
        "r = c.intersection({1, 9}, it)",
        "c.difference_update(c)", "c |= set(it)",
    ],
    "dict": [
        "c.update((v, v) for v in it)", "c |= ((v, len(c)) for v in it)", "r = c.keys() & it", "r = c.keys() | it",
        "r = c.keys() - it",
        "r = c.keys() ^ it", "r = c.keys().isdisjoint(it)", "r = {1, 5} & c.keys()", "r = dict.fromkeys(it)",
        "r = dict((v, len(c)) for v in it)", "c.update([v, 1] for v in it)",
    ],
    "nothing": [
        "r = any(v > 1 for v in it)", "r = all(it)", "r = min(it)",
        "r = max(it, key=lambda v: (log.append(('k', v)), -v)[1])",
        "r = sum(it, 0.5)", "r = sum(([v] for v in it), [])", "r = list(zip(it, 'ab'))", "r = list(map(str, it))",
        "r = sorted(it, key=lambda v: (log.append(v), -v)[1])", "r = 2 in it", "r = tuple(it)", "r = [*it, *'ab']",
        "r = {*it, 5}",
        "a, b, *r = it", "a, b = it", "r = list(itertools.islice(it, 2))", "r = list(itertools.accumulate(it))",
        "r = list(itertools.product(it, 'ab'))", "r = functools.reduce(operator.add, it, 10)",
        "r = ','.join(str(v) for v in it)",
        "r = ','.join(it)", "r = collections.Counter(it)", "r = list(heapq.merge(it, [2, 5]))", "r = fn(*it)",
        "r = math.prod(it)",
        "r = collections.deque(it, maxlen=2)", "r = frozenset(it)", "r = list(it)",
        "r = set([1, [], log.append('not reached')])",
        "r = next(filter(lambda v: v > 1, it), None)", "r = dict(enumerate(it))", "r = max(*it)",
    ],
}  # fmt: skip


def walk(c: Any, log: list[Any], how: str) -> Iterator[Any]:
    """Yield numbers, logging each in the given way."""
    try:
        for i in (1, 2, 3):
            log.append(("at", i, len(c), sorted(map(repr, c))))
            if how == "grow" and i < 3:
                if isinstance(c, dict):
                    c[10 + i] = i
                else:
                    (c.add if isinstance(c, set) else c.append)(10 + i)
            if how == "shrink" and i > 1 and len(c) > 0:
                if isinstance(c, dict):
                    c.popitem()
                elif isinstance(c, set):
                    c.discard(1)
                    c.discard(2)
                else:
                    c.pop()
            if how == "raise" and i == 3:
                raise ValueError("midway")
            yield [] if how == "unhashable" and i == 2 else i
    finally:
        log.append("closed")


class Iterable:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __iter__(self) -> Iterator[Any]:
        self.log.append("iter")
        return walk([], self.log, "")


class Sized(Iterable):
    def __len__(self) -> int:
        self.log.append("len")
        return 3


class Hinting(Iterable):
    def __length_hint__(self) -> Any:
        self.log.append("hint")
        return NotImplemented


class Unsized(Iterable):
    def __len__(self) -> int:
        raise ValueError("no length")


ITERABLES = [
    "walk(c, log, '')", "walk(c, log, 'grow')", "walk(c, log, 'shrink')", "walk(c, log, 'raise')",
    "walk(c, log, 'unhashable')",
    "Iterable(log)", "Sized(log)", "Hinting(log)", "Unsized(log)", "[1, [], 2]", "'ab'", "{2: 1, 5: 2}",
    "frozenset([1])", "None", "c", "range(2, 4)",
]  # fmt: skip
NAMES: dict[str, Any] = {
    "collections": collections, "functools": functools, "heapq": heapq, "itertools": itertools, "math": math,
    "operator": operator,
    "walk": walk, "Iterable": Iterable, "Sized": Sized, "Hinting": Hinting, "Unsized": Unsized,
}  # fmt: skip
CASES = [pytest.param(kind, call, id=f"{kind}: {call}") for kind, calls in CALLS.items() for call in calls]


def program(call: str, iterable: str) -> Callable[..., Any]:
    names = dict(NAMES)
    exec(
        f"def f(x, c, log):\n    r = a = b = None\n    it = {iterable}\n    try: {call}\n"
        "    except Exception as e: r = type(e).__name__, str(e)\n    return x + 1, r, a, b, c, log",
        names,
    )
    return names["f"]  # type: ignore[no-any-return]


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("kind", "call"), CASES)
def test_items_are_taken_as_eager_takes_them(kind: str, call: str) -> None:
    for iterable in ITERABLES:
        fn = program(call, iterable)
        frames.reset()
        c, log = STARTS[kind](), []
        expected = fn(X, c, log)
        mine, seen = STARTS[kind](), []
        found = compiled(fn)(X, mine, seen)
        assert found[4] is mine or call.startswith("c"), iterable
        assert same(found[:4], expected[:4]) and same(mine, c) and seen == log, (iterable, found, expected)


def test_what_c_code_holds_is_not_dropped() -> None:
    def f(x: Any, log: list[Any]) -> Any:
        class Slow:
            def __add__(self, other: Any) -> Any:
                log.append("add")
                return self

        return x + 1, len([sum(Iterable(log), Slow()), max(Iterable(log), key=lambda v: log.append(v) or -v)])

    frames.reset()
    expected, found = [], []
    assert same(compiled(f)(X, found), f(X, expected)) and found == expected
