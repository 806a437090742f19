"""Programs over iterators, itertools and polyfilled functions; iterators that outlive the compiled code."""

from __future__ import annotations

import bisect
import collections
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driver import check, compiled

PROGRAMS: list[Any] = []
X = torch.arange(6.0).reshape(2, 3)


def program(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append(pytest.param(fn, args, id=fn.__name__))
        return fn

    return register


@program([1, 2, 3])
def iterator_protocol(xs):
    it = iter(xs)
    first = next(it)
    rest = list(it)
    return (
        first,
        rest,
        next(it, "end"),
        list(it),
        iter(it) is it,
        2 in iter(xs),
        [*reversed(xs)],
        list(iter([4, 0, 5].pop, 0)),
    )


@program([1, 2, 3])
def iterators_see_mutations(xs):
    out = []
    for x in xs:
        out.append(x)
        if x < 3:
            xs.append(x + 10)
    it = iter(xs)
    next(it)
    xs.clear()
    return out, list(it), xs


@program({"a": 1, "b": 2})
def dicts_may_not_change_size(d):
    try:
        for key in d:
            d[key + "x"] = 1
    except RuntimeError as error:
        return str(error), list(d)


@program({"a": 1, "b": 2}, collections.deque([1, 2, 3]))
def iterators_read_late(d, q):
    seen = []
    for key, value in d.items():
        d["b"] = value * 10
        seen.append((key, value))
    message = None
    try:
        for item in q:
            q[0] = item
            if item == 2:
                q.append(q.popleft())
    except RuntimeError as error:
        message = str(error)
    return seen, message, q


def three_then_fail():
    yield from (1, 2, 3)
    raise ValueError("no more")


@program([0], {}, collections.deque())
def what_came_before_an_error_stays(xs, d, q):
    for change in (xs.extend, q.extend, lambda items: d.update((i, i) for i in items)):
        try:
            change(three_then_fail())
        except ValueError:
            xs.append("caught")
    return xs, d, q, sum([0.1] * 10), sum([0.1, 0.2], 0.3)


@program([1, 2, 3], "abc")
def zips_and_enumerations(xs, text):
    out = [(i, a, b) for i, (a, b) in enumerate(zip(xs, text), 10)]
    it = iter(xs)
    pairs = list(zip(it, it))
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        message = str(error)
    return (
        out,
        pairs,
        list(it),
        message,
        dict(zip(text, xs)),
        list(zip()),
        list(map(lambda a, b: a * b, xs, text)),
        list(map(str, xs)),
        list(zip(*[(1, 2), (3, 4)])),
    )


@program([0, 1, "", "a"])
def filters_and_laziness(xs):
    log = []

    def note(x):
        log.append(x)
        return x

    lazy = map(note, xs)
    first = next(lazy), len(log)
    found = any(map(note, [0, 5, 6]))
    return first, found, log, list(filter(None, xs)), list(filter(lambda x: x != 1, xs)), list(lazy), len(log)


@program(3)
def generators(n):
    def count_down(k):
        while k:
            sent = yield k
            k -= 1 if sent is None else sent
        return "done"

    def outer():
        result = yield from count_down(n)
        yield result

    return (
        list(outer()),
        sum(x * x for x in range(n)),
        max((y for y in outer() if y != "done"), default=0),
        [*count_down(2)],
        next(count_down(5)),
    )


@program([1, 2, 3, 4], X)
def itertools_basics(xs, x):
    chain = itertools.chain
    return (
        list(chain(xs, "a", [x])),
        list(chain.from_iterable([[1], (2,)])),
        list(itertools.islice(itertools.count(3, 2), 4)),
        list(itertools.repeat(x, 2)),
        list(itertools.accumulate(xs)),
        list(itertools.accumulate(xs, lambda a, b: a * b, initial=2)),
        list(itertools.islice(xs, 1, None, 2)),
        list(itertools.takewhile(lambda v: v < 3, xs)),
        list(itertools.dropwhile(lambda v: v < 3, xs)),
        list(itertools.filterfalse(lambda v: v % 2, xs)),
        list(itertools.compress(xs, [1, 0, 1])),
        list(itertools.starmap(pow, [(2, 3), (3, 2)])),
        list(itertools.zip_longest([1], "ab", fillvalue=0)),
        list(itertools.pairwise(xs)),
        list(itertools.islice(itertools.cycle("ab"), 5)),
        [(k, list(g)) for k, g in itertools.groupby([1, 1, 2, 1])],
    )


@program("abc")
def combinatorics(text):
    return (
        list(itertools.product(text, [0, 1])),
        list(itertools.product([0, 1], repeat=3)),
        list(itertools.permutations(text)),
        list(itertools.permutations(text, 2)),
        list(itertools.combinations(text, 2)),
        list(itertools.combinations_with_replacement(text, 2)),
        list(itertools.combinations([1], 2)),
        list(itertools.product()),
    )


@program([3, 1, 2])
def itertools_take_no_more_than_needed(xs):
    it = iter(range(10))
    taken = list(itertools.islice(it, 3)), next(it), list(itertools.takewhile(lambda v: v < 6, it)), next(it)
    a, b = itertools.tee(xs)
    groups = itertools.groupby(sorted(xs), key=lambda v: v > 1)
    return taken, next(a), list(b), list(a), [(key, sum(group)) for key, group in groups], list(it)


@program([5, 3, 8, 1])
def heaps_and_bisection(xs):
    heapq.heapify(xs)
    heapq.heappush(xs, 0)
    out = heapq.heappop(xs), heapq.heappushpop(xs, 4), heapq.heapreplace(xs, 9)
    ordered = sorted(xs)
    bisect.insort(ordered, 6)
    return (
        out,
        xs,
        ordered,
        bisect.bisect_left(ordered, 8),
        bisect.bisect(ordered, 8),
        [heapq.heappop(xs) for _ in range(len(xs))],
        bisect.bisect_left([3, 2], -2, key=lambda v: -v),
    )


@program("hello")
def comprehensions(text):
    n = 2
    return (
        [c * n for c in text if c != "l"],
        {c: i for i, c in enumerate(text)},
        {c for c in text} == set(text),
        [[i * j for j in range(i)] for i in range(3)],
        [(a, b) for a in "xy" for b in range(2) if b],
    )


@pytest.mark.parametrize(("fn", "args"), PROGRAMS)
def test_program(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    subject = check(fn, *args, calls=2)
    assert [event.kind for event in subject.events if event.kind != "graph"] == ["entry"], subject.events


MAKERS: list[Callable[[Any], Iterator[Any]]] = [
    lambda xs: iter(xs),
    lambda xs: iter(tuple(xs)),
    lambda xs: iter(range(5)),
    lambda xs: iter("abc"),
    lambda xs: reversed(xs),
    lambda xs: reversed(range(4)),
    lambda xs: enumerate(xs, 3),
    lambda xs: zip(xs, "abc"),
    lambda xs: zip(xs, [1, 2, 3], strict=True),
    lambda xs: map(str, xs),
    lambda xs: filter(None, xs),
    lambda xs: iter(dict.fromkeys(xs).items()),
    lambda xs: iter({"a": 1, "b": 2}),
    lambda xs: iter(frozenset(xs)),
    lambda xs: iter(collections.deque(xs)),
    lambda xs: itertools.count(3),
    lambda xs: itertools.repeat(xs, 4),
    lambda xs: iter([5, 4, 3].pop, 3),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("taken", [0, 1, 9])
def test_an_iterator_outlives_the_trace_at_its_position(make: Callable[[Any], Iterator[Any]], taken: int) -> None:
    def start(xs):
        it = make(xs)
        for _ in range(taken):
            next(it, None)
        return it, it

    xs = [7, 8, 9]
    subject = compiled(start)
    for _ in range(2):
        it, same = subject(xs)
        assert it is same
        assert list(itertools.islice(it, 6)) == list(itertools.islice(start(xs)[0], 6))
    assert [event.kind for event in subject.events] == ["entry"]


def test_a_loop_goes_on_behind_a_break() -> None:
    def loop(d):
        total = 0
        for key, value in d.items():
            print(key)
            total += value
        return total

    subject = check(loop, {"a": 1, "b": 2, "c": 3})
    assert subject.of_kind("break")


def test_an_iterator_over_a_list_the_trace_changed_is_not_rebuilt_wrongly() -> None:
    def start(xs):
        it = iter(xs)
        next(it)
        xs.insert(0, 5)
        next(it)
        return it

    subject = compiled(start)
    for _ in range(2):
        xs = [1, 2, 3]
        assert list(subject(xs)) == [2, 3] and xs == [5, 1, 2, 3]


class Counted:
    """An iterator that records calls of its `__iter__` in an attribute."""

    def __init__(self, log: list[str]) -> None:
        self.left, self.log = 2, log

    def __iter__(self) -> Iterator[int]:
        self.log.append("iter")
        return self

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left


class Quiet(Counted):
    def __iter__(self) -> Iterator[int]:
        """Return itself."""
        return self


class Bare:
    """An iterator without `__iter__`."""

    def __init__(self) -> None:
        self.left = 2

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left


class GivesBare:
    def __iter__(self) -> Any:
        return Bare()


ADAPTED: dict[str, Callable[[Any], Any]] = {
    "enumerate": enumerate,
    "zip": lambda it: zip(it, [5, 6], strict=True),
    "map": lambda it: map(abs, it),
    "filter": lambda it: filter(None, it),
}


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("kind", [Counted, Quiet, GivesBare])
@pytest.mark.parametrize("name", ADAPTED)
def test_the_program_s_own_iterators_are_asked_once(name: str, kind: Any, where: str) -> None:
    def make(log: list[str]) -> Any:
        return kind(log) if issubclass(kind, Counted) else kind()

    def run(x: torch.Tensor, log: list[str], given: Any) -> Any:
        return x + 1, ADAPTED[name](make(log) if given is None else given)

    def found(function: Any) -> Any:
        log: list[str] = []
        result, iterator = function(X, log, None if where == "inside" else make(log))
        return result.tolist(), list(iterator), log

    subject = compiled(run)
    assert found(subject) == found(run)
    assert (run.__code__ in {event.code for event in subject.of_kind("entry")}) == (kind is Quiet)
