"""Graph breaks inside `with` and `try` blocks: the code before, at and after the break behaves as one function."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from driver import check

X = torch.arange(6.0).reshape(2, 3).requires_grad_()


class Scope:
    def __init__(self, log, swallow=()):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(None if kind is None else (kind.__name__, value.args))
        return kind is not None and issubclass(kind, self.swallow)


def loud(value, error=None):
    print("loud", value)
    if error is not None:
        raise error
    return value


def in_no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = y * 3
        print(torch.is_grad_enabled(), z.requires_grad)
        w = z + y
    return w.requires_grad, (w + y).requires_grad, torch.is_grad_enabled(), w


def nested_modes(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
            print(b.requires_grad)
            c = b * 2
        d = c * 2
        print(d.requires_grad)
    return [t.requires_grad for t in (a, b, c, d, x + 1)], d


def set_grad(x):
    with torch.set_grad_enabled(False):
        y = x * 2
        print(y.requires_grad)
    return y, (x + y).requires_grad


class Off:
    """A user's context manager that turns gradients off by a call."""

    def __enter__(self):
        self.before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(self, *raised):
        torch.set_grad_enabled(self.before)


def in_own_grad_mode(x):
    with Off():
        y = x * 2
        print(torch.is_grad_enabled())
        z = x * y
    return y.requires_grad, z.requires_grad, (x + y).requires_grad, torch.is_grad_enabled()


def in_own_grad_mode_in_torch_s(x):
    with torch.no_grad():
        with Off():
            print(torch.is_grad_enabled())
            y = x * 2
        z = x * y
    return y.requires_grad, z.requires_grad, (x + y).requires_grad, torch.is_grad_enabled()


def grad_mode_set_in_scope(x):
    with Scope([]):
        torch.set_grad_enabled(False)
        y = x * 2
        print(torch.is_grad_enabled())
        z = x * y
    after = (x + y).requires_grad, torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return y.requires_grad, z.requires_grad, after


def grad_mode_set_in_scope_and_raised(x):
    try:
        with Scope([]):
            torch.set_grad_enabled(False)
            print(torch.is_grad_enabled())
            raise ValueError
    except ValueError:
        y = x * 2
    after = y.requires_grad, torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return after


def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
        print(y.dtype)
        z = x @ x.T
    return y, z, (x @ x.T).dtype


def in_scope(x):
    log = []
    with Scope(log) as scope:
        y = x + 1
        print(len(scope.log))
        y = y * 2
        log.append("body")
    return y, log


def raising_in_scope(x):
    log = []
    with Scope(log, KeyError):
        y = x + 1
        loud(1, KeyError("k", 2))
        log.append("never")
    return y * 2, log


def raising_through_scope(x):
    log = []
    try:
        with Scope(log, KeyError):
            x = x + 1
            loud(1, ValueError("v"))
    except ValueError as error:
        return x * 2, log, error.args
    return x


def two_scopes(x):
    log = []
    with Scope(log) as outer, Scope(log, ValueError):
        x = x + len(outer.log)
        loud(1, ValueError(3))
    return x, log


def in_try(x):
    try:
        y = x + 1
        print("in try")
        z = y * 2
    except ValueError:
        z = None
    else:
        z = z + 1
    finally:
        x = x * 3
    return z, x


def caught(x):
    y = x + 1
    try:
        y = y * 2
        loud("a", ValueError("a", 1))
        y = None
    except (KeyError, ValueError) as error:
        y = y + 1
        args = error.args
    return y, args


def not_caught_here(x):
    log = []
    try:
        try:
            y = x * 2
            loud("b", KeyError("b"))
        except ValueError:
            log.append("wrong")
        finally:
            log.append("finally")
    except KeyError as error:
        return y + 1, log, error.args


def in_handler(x):
    try:
        raise ValueError(1)
    except ValueError as error:
        y = x + 1
        print("handling", error.args)
        try:
            raise
        except ValueError as again:
            y = y * 2
            return y, again is error


def in_finally(x):
    log = []
    try:
        y = x + 1
    finally:
        print("cleanup")
        log.append(1)
    return y, log


def loop_in_try(x):
    found = []
    for i in range(4):
        try:
            x = x * 2
            loud(i, ValueError(i) if i % 2 else None)
            found.append(i)
        except ValueError as error:
            found.append(error.args)
            continue
        finally:
            found.append("f")
    return x, found


def return_in_try(x):
    log = []

    def f():
        try:
            y = x + 1
            print("before return")
            return y
        finally:
            log.append("finally")

    return f(), log


def data_branch_in_with(x):
    with torch.no_grad():
        if x.sum() > 3:
            y = x * 2
        else:
            y = x * 3
        y = y + 1
    return y, y.requires_grad


def generator_scope(x):
    log = []

    @contextmanager
    def scope():
        log.append("in")
        try:
            yield 5
        finally:
            log.append("out")

    with scope() as n:
        x = x * n
        print(n)
        x = x + 1
    return x, log


def torch_error_in_try(x):
    try:
        y = x + 1
        y = y @ torch.ones(7)
    except RuntimeError as error:
        return y * 2, "size" in str(error)


class Computing:
    """Its method is made by a property, which may raise."""

    def __init__(self, log):
        self.log = log

    @property
    def method(self):
        print("looked up")
        if self.log:
            raise AttributeError("gone")
        return self.log.append


def method_without_name_in_no_grad(x, log):
    try:
        with torch.no_grad():
            y = x * 2
            print.missing(y)
    except AttributeError as error:
        log.append((str(error), torch.is_grad_enabled()))
    return x * 3, torch.is_grad_enabled()


def method_looked_up_in_scope(x, log):
    with Scope(log, AttributeError):
        y = x * 2
        Computing([1]).method(print(1))
    return y, log


def method_that_cannot_be_found(x, log):
    owner = Computing(log)
    log.append(0)
    with torch.no_grad():
        try:
            y = x * 2
            owner.method(y)
        except AttributeError as error:
            log.append((str(error), torch.is_grad_enabled()))
    return x * 3, log


LOOKED_UP: list[Any] = [method_without_name_in_no_grad, method_looked_up_in_scope, method_that_cannot_be_found]
PROGRAMS: list[Any] = [
    in_no_grad, nested_modes, set_grad, in_autocast, in_scope, raising_in_scope, raising_through_scope, two_scopes,
    in_try, caught, not_caught_here, loop_in_try, return_in_try, data_branch_in_with, torch_error_in_try,
    in_own_grad_mode, in_own_grad_mode_in_torch_s, grad_mode_set_in_scope,
]  # fmt: skip
LEFT_TO_PYTHON: list[Any] = [in_handler, in_finally, generator_scope, grad_mode_set_in_scope_and_raised]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_goes_on_in_the_block(fn: Any) -> None:
    found = check(fn, X)
    assert found.graphs
    assert not [event for event in found.of_kind("skip") if event.code is fn.__code__]


@pytest.mark.parametrize("fn", LEFT_TO_PYTHON, ids=lambda fn: fn.__name__)
def test_equals_eager(fn: Any) -> None:
    check(fn, X)


@pytest.mark.parametrize("fn", LOOKED_UP, ids=lambda fn: fn.__name__)
def test_a_method_that_is_not_there_is_missed_inside_the_block(fn: Any) -> None:
    check(fn, X, [])
    assert torch.is_grad_enabled()


def test_a_block_left_by_an_exception_leaves_torchs_state_as_it_was() -> None:
    def f(x):
        with torch.no_grad():
            y = x * 2
            loud("c", KeyError(1))
        return y

    check(f, X)
    assert torch.is_grad_enabled()


def method_looked_up_in_a_block(x: Any, items: Any) -> Any:
    with torch.no_grad():
        items.nothing_like_this()
    return x + 1


def method_looked_up_in_two_blocks(x: Any, items: Any) -> Any:
    try:
        with torch.no_grad():
            items.nothing_like_this(x * 2)
    except AttributeError:
        return x + torch.is_grad_enabled()
    return x


@pytest.mark.parametrize("program", [method_looked_up_in_a_block, method_looked_up_in_two_blocks])
def test_a_method_that_is_not_there_leaves_its_block(program: Any) -> None:
    check(program, torch.ones(2), {}.values)
    assert torch.is_grad_enabled()
