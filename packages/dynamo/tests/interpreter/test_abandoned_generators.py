"""Dropped suspended generators: their `finally` and `with` blocks run where Python drops the last reference."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest
import torch
from driver import check, compiled

X = torch.arange(6.0).reshape(2, 3)


class Lock:
    """Records when it is entered and left."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, *error):
        self.log.append("out")


class Holder:
    """Holds a generator."""


class Stream:
    """Iterated by a generator."""

    def __init__(self, log):
        self.log = log

    def __iter__(self):
        try:
            yield 1
            yield 2
        finally:
            self.log.append("closed")


def items(log, n=3):
    with Lock(log):
        yield from range(n)


def without_gradients():
    with torch.no_grad():
        yield 1
        yield 2


def argument_alone(x, log):
    return x + next(items(log)) + len(log)


def loop_left(x, log):
    for v in items(log):
        break
    return x + v + len(log)


def mode_restored(x, log):
    for v in without_gradients():
        log.append(torch.is_grad_enabled())
        break
    log.append(torch.is_grad_enabled())
    return x * v


def variable_rebound(x, log):
    g = items(log)
    next(g)
    log.append("held")
    g = None
    log.append("gone")
    return x, g


def variable_left(x, log):
    g = items(log)
    next(g)
    return x, log


def variable_of_a_callee(x, log):
    def first():
        g = items(log)
        return next(g)

    log.append(first())
    return x, log


def in_a_list(x, log):
    g = items(log)
    next(g)
    box = [g]
    del g
    log.append("held")
    box.clear()
    log.append("gone")
    return x


def in_an_object(x, log):
    holder = Holder()
    holder.it = items(log)
    next(holder.it)
    log.append("held")
    holder = None
    log.append("gone")
    return x, holder


def in_a_cell(x, log):
    g = items(log)

    def take():
        return next(g)

    take()
    log.append("held")
    g = None
    log.append("gone")
    return x


def in_a_zip(x, log):
    for pair in zip(items(log), [1, 2]):
        log.append(pair)
        if pair[0] == 1:
            break
    log.append("after")
    return x


def through_a_delegate(x, log):
    def outer():
        try:
            yield from items(log)
        finally:
            log.append("outer")

    next(outer())
    log.append("after")
    return x


def kept_by_a_traceback(x, log):
    def fails():
        g = items(log)
        next(g)
        raise ValueError

    try:
        fails()
    except ValueError:
        log.append("handled")
    log.append("after")
    return x


def unwound(x, log):
    def fails():
        for _ in items(log):
            raise ValueError

    try:
        fails()
    except ValueError:
        log.append("handled")
    return x


def unwound_in_place(x, log):
    try:
        for _ in items(log):
            raise ValueError
    except ValueError:
        log.append("handled")
    return x


def stopped_early(x, log):
    found = any(map(lambda v: log.append(v) or v == 1, items(log)))
    log.append("after")
    return x, found


def held_by_the_call_alone(x, log):
    class_of = {1: "one"}

    def name(v):
        log.append(class_of.get(v))
        return v == 1

    any(map(name, Stream(log)))
    log.append("after")
    return x


def nested(x, log):
    for _ in Stream(log):
        for _ in items(log):
            break
        log.append("inner left")
        break
    log.append("after")
    return x


def dropped_by_the_callee(x, log):
    def consume(it):
        next(it)
        del it
        log.append("in the callee")

    consume(items(log))
    return x


def two_at_the_end_of_a_frame(x, log):
    first = items(log)
    second = iter(Stream(log))
    next(second)
    next(first)
    return x, log


def raises_again(x, log):
    def swallows():
        try:
            yield 1
        except GeneratorExit:
            log.append("exit")
            raise

    for _ in swallows():
        break
    return x


def managed(x, log):
    @contextlib.contextmanager
    def region():
        with Lock(log):
            yield len(log)

    with region() as n:
        log.append(n)
    log.append("after")
    return x


def exception_handled_around(x, log):
    def noting():
        try:
            yield 1
        finally:
            try:
                raise KeyError
            except KeyError as error:
                log.append(type(error.__context__).__name__)

    try:
        raise ValueError
    except ValueError:
        next(noting())
    return x


PROGRAMS: list[Any] = [
    argument_alone, loop_left, mode_restored, variable_rebound, variable_left, variable_of_a_callee, in_a_list,
    in_an_object, in_a_cell, in_a_zip, through_a_delegate, kept_by_a_traceback, unwound, unwound_in_place,
    stopped_early, held_by_the_call_alone, nested, dropped_by_the_callee, two_at_the_end_of_a_frame, raises_again,
    managed, exception_handled_around,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_closed_where_python_closes_it_in_one_graph(fn: Any) -> None:
    check(fn, X, [], fullgraph=True)


def two_at_once(x, log):
    for _ in zip(items(log), Stream(log)):
        break
    return x


def raises_when_closed(x, log):
    def loud():
        try:
            yield 1
        finally:
            log.append("loud")
            raise ValueError

    with contextlib.suppress(ValueError):
        next(loud())
    return x


def break_while_suspended(x, log):
    g = items(log)
    next(g)
    log.append(print("now"))
    return x, log


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fn", [two_at_once, raises_when_closed, break_while_suspended], ids=lambda fn: fn.__name__)
def test_what_is_not_certain_is_left_to_python(fn: Any) -> None:
    assert check(fn, X, []).of_kind("skip")


def test_a_circle_is_left_to_the_collector() -> None:
    def f(x, log):
        def around(holder):
            with Lock(log):
                yield holder

        holder = Holder()
        holder.it = around(holder)
        next(holder.it)
        return x + 1

    log: list[str] = []
    subject = compiled(f)
    subject(X, log)
    assert subject.of_kind("skip")
    gc.collect()
    assert log == ["in", "out"]


def test_what_is_suspended_in_nothing_does_not_matter() -> None:
    def f(x, log):
        g = (v for v in (1, 2, 3))
        n = next(g)
        log.append(print(n))
        return x * n

    assert not check(f, X, []).of_kind("skip")


def test_thrown_exits_close_delegates() -> None:
    def f(x, log):
        def inner():
            try:
                yield 1
            except GeneratorExit:
                log.append("inner")

        def outer():
            try:
                yield from inner()
            except GeneratorExit:
                log.append("outer")
            yield from [5, 6]

        g = outer()
        next(g)
        log.append(g.throw(GeneratorExit()))
        try:
            g.throw(KeyError("at the list"))
        except KeyError as error:
            log.append(str(error))
        return x

    check(f, X, [], fullgraph=True)
