"""Exceptions: raised and caught inside the graph, leaving the function, with mutations before them."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from driver import active, check, compiled, outcome, same

import framesmith_frames as frames
from framesmith_dynamo.convert_frame.errors import NotRaised
from framesmith_dynamo.values.callables import handles

X = torch.arange(6.0).reshape(2, 3)


class Refused(ValueError):
    def __init__(self, amount, *more):
        super().__init__(f"refused {amount}", *more)
        self.amount = amount


class Suppress:
    def __init__(self, *kinds):
        self.kinds = kinds
        self.seen = None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, tb):
        self.seen = (kind, value, tb is not None)
        return kind is not None and issubclass(kind, self.kinds)


def caught_by_class(x):
    try:
        raise Refused(3)
    except (KeyError, Refused) as error:
        return x * error.amount, str(error), error.args


def caught_by_base(x, d):
    try:
        return x * d["missing"]
    except LookupError as error:
        return x, type(error).__name__, error.args


def order_of_blocks(x, n):
    log = []
    try:
        log.append("try")
        if n == 1:
            raise ValueError(n)
        if n == 2:
            return x, log
        log.append("body")
    except ValueError:
        log.append("except")
    else:
        log.append("else")
    finally:
        log.append("finally")
    log.append("end")
    return x + 1, log


def finally_in_loop(x):
    log = []
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            log.append(i)
        finally:
            log.append(-i)
    return x, log


def reraised(x):
    def inner():
        try:
            {}["k"]
        except KeyError:
            raise

    try:
        inner()
    except KeyError as error:
        return x + 1, error.args


def chained(x):
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise Refused(2) from error
    except Refused as error:
        return x * error.amount, type(error.__cause__).__name__, error.__cause__.args


def nested_handlers(x):
    try:
        try:
            raise ValueError("inner")
        finally:
            x = x + 1
    except ValueError:
        try:
            raise KeyError("second")
        except KeyError:
            x = x * 2
    return x


def through_frames(x):
    def deep(n):
        if n == 0:
            raise StopIteration("deep")
        return deep(n - 1)

    try:
        deep(3)
    except StopIteration as error:
        return x, error.value


def errors_of_builtins(x):
    found, n = [], 5
    for action in (
        lambda: int("q"),
        lambda: [1, 2][n],
        lambda: None.nope,
        lambda: 1 // 0,
        lambda: len(3),
        lambda: {}.pop("k"),
    ):
        try:
            action()
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return x, found


def error_of_arguments(x):
    def f(a, *, b):
        return a

    try:
        return f(1, 2)
    except TypeError as error:
        return x, str(error)


def unbound(x, flag):
    if flag:
        value = 1
    try:
        return x + value
    except UnboundLocalError as error:
        return x, str(error)


def suppressed(x):
    with Suppress(ValueError) as guard:
        x = x + 1
        raise ValueError("gone")
    return x, guard.seen[0], guard.seen[2]


def not_suppressed(x):
    try:
        with Suppress(KeyError):
            raise Refused(5)
    except Refused as error:
        return x * error.amount


def two_managers(x):
    with Suppress(KeyError) as outer, Suppress(ValueError) as inner:
        raise ValueError("x")
    return x, outer.seen[0], inner.seen[0]


def named_error_is_gone(x):
    try:
        raise KeyError
    except KeyError as error:
        del error
    try:
        error  # noqa: F821
    except UnboundLocalError:
        return x + 1


def exception_kept(x):
    try:
        raise Refused(1)
    except Refused as error:
        kept = error
    return x, kept


PROGRAMS: list[tuple[Any, tuple[Any, ...]]] = [
    (caught_by_class, (X,)),
    (caught_by_base, (X, {"a": 1})),
    (order_of_blocks, (X, 0)),
    (order_of_blocks, (X, 1)),
    (order_of_blocks, (X, 2)),
    (finally_in_loop, (X,)),
    (reraised, (X,)),
    (chained, (X,)),
    (nested_handlers, (X,)),
    (through_frames, (X,)),
    (errors_of_builtins, (X,)),
    (error_of_arguments, (X,)),
    (unbound, (X, False)),
    (suppressed, (X,)),
    (not_suppressed, (X,)),
    (two_managers, (X,)),
    (named_error_is_gone, (X,)),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_caught_exceptions_are_traced(program: tuple[Any, tuple[Any, ...]]) -> None:
    fn, args = program
    check(fn, *args, fullgraph=True)


def traceback_kept(x):
    try:
        raise Refused(1)
    except Refused as error:
        return x, error.__traceback__ is not None


@pytest.mark.parametrize("program", [exception_kept, traceback_kept])
def test_what_is_raised_and_kept_has_its_traceback(program: Any) -> None:
    subject = check(program, X)
    kept = compiled(exception_kept)(X)[1]
    assert kept.__traceback__ is not None
    assert not subject.graphs


def contexts(x):
    seen = []
    try:
        try:
            raise Refused(1)
        except Refused:
            {}["missing"]
    except KeyError as error:
        seen += [type(error.__context__).__name__, error.__cause__, error.__suppress_context__]
    try:
        try:
            raise Refused(2)
        finally:
            raise ValueError("replaced")
    except ValueError as error:
        seen.append(error.__context__.args)
    try:
        try:
            raise Refused(3)
        except Refused as inner:
            raise TypeError from inner
    except TypeError as error:
        seen += [error.__context__ is error.__cause__, error.__suppress_context__]
    try:
        raise Refused(4)
    except Refused as error:
        seen.append(error.__context__)
    return x * len(seen), seen


def test_contexts() -> None:
    check(contexts, X, fullgraph=True)


def escapes(x, log, n):
    log.append(n)
    if n < 0:
        raise Refused(n, "negative")
    return x * n


def test_an_escaping_exception_arrives_once_with_its_mutations() -> None:
    frames.reset()
    subject = compiled(escapes)
    for n in (1, -1, 2, -2, -1):
        log: list[int] = []
        expected_log: list[int] = []
        assert same(outcome(subject, (X, log, n)), outcome(escapes, (X, expected_log, n)))
    assert subject.of_kind("run-once")


def raises_in_operation(x, y):
    z = x + 1
    return z @ y


def test_an_error_of_torch_arrives_with_the_users_frames() -> None:
    frames.reset()
    subject = compiled(raises_in_operation)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        subject(X, X)
    with active(subject.converter):
        try:
            raises_in_operation(X, X)
        except RuntimeError as error:
            entries = traceback.extract_tb(error.__traceback__)
    assert entries[-1].name == "raises_in_operation"
    assert entries[-1].line == "return z @ y"


def test_an_exception_after_a_graph_keeps_its_line() -> None:
    def f(x, d):
        y = x + 1
        print(y.shape)
        return d["missing"], y

    frames.reset()
    subject = compiled(f)
    with pytest.raises(KeyError) as caught:
        subject(X, {})
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == 'return d["missing"], y'


def is_misunderstood(x):
    return x


@handles(is_misunderstood)
def _misunderstood(tr, args, kwargs):
    tr.raise_(TypeError, "what the program does not raise")


def calls_what_is_misunderstood(x):
    return is_misunderstood(x) + 1


def test_an_exception_that_the_program_does_not_raise_is_reported() -> None:
    """The call has run eagerly for a wrong reason."""
    frames.reset()
    subject = compiled(calls_what_is_misunderstood)
    assert torch.equal(subject(X), X + 1)
    [event] = subject.of_kind("error")
    assert isinstance(event.error, NotRaised)
    assert "TypeError is raised at" in event.detail and "calls_what_is_misunderstood" in event.detail
