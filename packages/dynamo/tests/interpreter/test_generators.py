"""Generators driven inside the traced function: laziness, send, throw, close, delegation."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from driver import check

X = torch.arange(6.0).reshape(2, 3)


def simple(x):
    def count(n):
        for i in range(n):
            yield x * i

    return sum(count(3)), list(count(2)), tuple(count(1))


def lazy(x):
    log = []

    def produce():
        for i in range(5):
            log.append(("made", i))
            yield i
        log.append("never")

    for value in produce():
        log.append(("used", value))
        if value == 1:
            break
    return x, log


def send_and_return(x):
    def accumulate():
        total = 0
        while True:
            got = yield total
            if got is None:
                return "done"
            total += got

    g = accumulate()
    seen = [next(g), g.send(2), g.send(5)]
    try:
        next(g)
    except StopIteration as stop:
        seen.append(stop.value)
    return x * seen[2], seen


def delegated(x):
    def inner():
        got = yield 1
        yield got
        return "inner result"

    def outer():
        result = yield from inner()
        yield result
        yield from [7, 8]

    g = outer()
    return x, [next(g), g.send("sent"), *g]


def thrown(x):
    log = []

    def g():
        try:
            yield 1
        except ValueError as error:
            log.append(str(error))
            yield 2
        finally:
            log.append("finally")

    it = g()
    seen = [next(it), it.throw(ValueError("thrown"))]
    seen.append(next(it, "end"))
    return x, seen, log


def closed(x):
    log = []

    def g():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    it = g()
    next(it)
    it.close()
    it.close()
    return x, list(it), log


def closed_and_returned(x):
    def g(until):
        try:
            yield 1
        except until:
            return x + 1

    def unstarted():
        return x
        yield

    results = []
    for it in (g(GeneratorExit), g(KeyError)):
        next(it)
        results += [it.close(), it.close()]
    return x, results, unstarted().close()


def expression(x):
    values = (x + i for i in range(3) if i != 1)
    return sum(v.sum() for v in values), any(i > 1 for i in range(3)), max((i * 2 for i in [3, 1]), default=0)


def zipped(x):
    def letters():
        yield from "abc"

    pairs = dict(zip(letters(), itertools.count(1)))
    chained = list(itertools.chain(letters(), [1]))
    return x * pairs["c"], pairs, chained, [*enumerate(letters(), 2)], list(itertools.islice(itertools.count(), 2, 5))


def managed(x):
    log = []

    @contextmanager
    def scope(name):
        log.append("enter " + name)
        try:
            yield name * 2
        except KeyError:
            log.append("swallowed")
        finally:
            log.append("exit " + name)

    with scope("a") as doubled:
        x = x + len(doubled)
    with scope("b"):
        raise KeyError("gone")
    return x, log


def stop_iteration_inside(x):
    def bad():
        yield 1
        raise StopIteration("x")

    try:
        list(bad())
    except RuntimeError as error:
        return x, str(error)


def infinite(x):
    def fib():
        a, b = 0, 1
        while True:
            yield a
            a, b = b, a + b

    return x * next(v for v in fib() if v > 20)


def in_container(x):
    def g():
        yield 1
        yield 2
        yield 3

    it = g()
    return x, 2 in it, list(it), 9 in g()


def unpacked(x):
    def g():
        yield x
        yield 2
        yield 3

    a, *b = g()
    _, second, third = g()
    return a, b, [*g()], second + third, max(len([v]) for v in g())


PROGRAMS: list[Any] = [
    simple, lazy, send_and_return, delegated, thrown, closed, closed_and_returned, expression, zipped, managed,
    stop_iteration_inside,
    infinite,
    in_container, unpacked,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_graph_equal_to_eager(fn: Any) -> None:
    check(fn, X, fullgraph=True)


def returned(x):
    def g():
        yield x + 1

    return g()


def test_a_generator_that_leaves_the_function_runs_eagerly() -> None:
    def f(x):
        return [v * 2 for v in returned(x)], returned(x)

    found = check(lambda x: list(f(x)[1]), X)
    assert found.events
