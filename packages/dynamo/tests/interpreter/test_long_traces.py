"""Loops whose trace is very long, or endless: the frame runs eagerly, with a break that names the reason."""

from __future__ import annotations

import itertools

import pytest
import torch
from driver import compiled

import framesmith_dynamo.values.base as base

X = torch.arange(4.0)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(base, "MAX_STEPS", 2000)


def for_loop(x):
    total = 0
    for i in range(5000):
        total += i
    return x + total


def while_loop(x):
    total = 0
    while total < 5000:
        total += 1
    return x + total


def summed(x):
    return x + sum(itertools.islice(itertools.count(), 5000))


def listed(x):
    return x + len(list(itertools.islice(itertools.cycle([1, 2]), 5000)))


def searched(x):
    return x + (5000 in itertools.count())


def filtered(x):
    return x + next(filter(lambda i: i > 5000, itertools.count()))


def until_a_sentinel(x):
    counter = [0]

    def step():
        counter[0] += 1
        return counter[0]

    return x + sum(iter(step, 5000))


def in_a_generator(x):
    def numbers():
        at = 0
        while at < 5000:
            yield at
            at += 1

    return x + sum(numbers())


def by_recursion(x):
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return x + fib(14)


def in_a_callee(x):
    x = x.sin()
    return while_loop(x)


def grown_in_the_loop(x):
    items = [0]
    for item in items:
        if item < 3000:
            items.append(item + 1)  # noqa: PERF401
    return x + len(items)


def swallowed(x):
    try:
        while_loop(x)
    except Exception:
        return x
    return for_loop(x)


LONG = [
    for_loop, while_loop, summed, listed, searched, filtered, until_a_sentinel, in_a_generator, by_recursion,
    in_a_callee, grown_in_the_loop, swallowed,
]  # fmt: skip


@pytest.mark.parametrize("fn", LONG, ids=lambda fn: fn.__name__)
def test_a_long_loop_runs_eagerly(fn):
    subject = compiled(fn)
    for _ in range(3):
        assert torch.equal(subject(X), fn(X))
    broken = subject.of_kind("break")
    assert {event.broken.kind for event in broken} == {base.TOO_LONG}
    assert [event.code for event in subject.of_kind("skip") if event.code is fn.__code__] == [fn.__code__]
    assert broken[0].location is not None


def test_a_wait_for_another_thread_ends():
    class Flag:
        seen = 0

        @property
        def up(self):
            self.seen += 1
            return self.seen > 3000

    def waits(x):
        flag = Flag()
        while not flag.up:
            pass
        return x + 1

    assert torch.equal(compiled(waits)(X), X + 1)


def test_short_loops_are_followed():
    def short(x):
        for i in range(100):
            x = x + i
        return x

    subject = compiled(short)
    assert torch.equal(subject(X), short(X))
    assert not subject.of_kind("break") and len(subject.calls) == 100
