"""`contextlib.ExitStack` and its kin, and the exception being handled (`sys.exc_info`), in one graph."""

import contextlib
import sys

import pytest
import torch
from driver import check, compiled, same

import framesmith_frames as frames

X = torch.arange(4.0)
W = torch.ones(4, requires_grad=True)


class Logged:
    def __init__(self, log, name, suppresses=False):
        self.log, self.name, self.suppresses = log, name, suppresses

    def __enter__(self):
        self.log.append(f"enter {self.name}")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append((self.name, None if kind is None else kind.__name__, str(error)))
        return self.suppresses


@contextlib.contextmanager
def generated(log, name):
    log.append(name)
    try:
        yield name
    finally:
        log.append(f"end {name}")


def refuse(*details):
    raise KeyError("in the exit")


def without_gradients(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        inside = W * x
    return inside, W * 2


def some_of_torch(x):
    with contextlib.ExitStack() as stack:
        if x.shape[0] > 2:
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        stack.enter_context(torch.set_grad_enabled(False))
        return (x[None] @ x[:, None]), torch.is_grad_enabled()


def several(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Logged(log, "a"))
        names = [stack.enter_context(generated(log, name)) for name in "bc"]
        stack.callback(log.append, 1)
        stack.callback(lambda *args, **kwargs: log.append((args, kwargs)), 2, k=3)
        stack.push(lambda *details: log.append(details))
        stack.push(Logged(log, "d"))
        x = x + len(log)
    return x, names, log


def suppressed(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Logged(log, "outer", suppresses=True))
        stack.enter_context(Logged(log, "inner"))
        raise ValueError("inside")
    return x + len(log), log


def replaced(x):
    log = []
    try:
        with contextlib.ExitStack() as stack:
            stack.push(refuse)
            stack.enter_context(Logged(log, "inner"))
            raise ValueError("inside")
    except KeyError as error:
        return x + 1, log, type(error.__context__).__name__


def moved(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Logged(log, "a"))
        kept = stack.pop_all()
    before = len(log)
    kept.close()
    return x + before, log


def others(x):
    with contextlib.suppress(KeyError), contextlib.nullcontext(2) as two:
        x = x * two
        {}["missing"]
    return x


def what_is_handled(x):
    before, inside = sys.exc_info(), None
    try:
        raise ValueError("inside")
    except ValueError as error:
        kind, found, _ = sys.exc_info()
        inside = (kind, found is error, sys.exception() is error)
    return x * 2, before, inside, sys.exc_info()


ALL = [without_gradients, some_of_torch, several, suppressed, replaced, moved, others, what_is_handled]


@pytest.mark.parametrize("function", ALL)
def test_in_one_graph(function):
    fn = check(function, X)
    assert not fn.of_kind("break") and not fn.of_kind("skip")
    assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()


def of_the_caller(x):
    return x + 1, sys.exc_info()[1], sys.exception()


def test_an_exception_that_a_caller_handles():
    frames.reset()
    fn = compiled(of_the_caller)
    assert same(fn(X), (X + 1, None, None))
    for _ in range(2):
        try:
            raise ValueError("the caller's")
        except ValueError as error:
            found = fn(X)
            assert found[1] is error and found[2] is error
    assert same(fn(X), (X + 1, None, None))
    assert [event.broken.kind.id for event in fn.of_kind("break")][0] == "callers-exception"
