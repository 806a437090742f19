"""Calls compiled while the program handles an exception, which keeps its traceback and is not kept alive."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import Compiled

from framesmith_dynamo import BreakNotAllowed


def breaks(x: Any, error: Any) -> Any:
    x = x * 2
    print(end="")
    return x + 1


def breaks_in_a_block(x: Any, error: Any) -> Any:
    try:
        print(end="")
    except KeyError as other:
        print(other)
        print(end="")
    return x + 1


def breaks_in_a_call(x: Any, error: Any) -> Any:
    return breaks(x * 2, error)


def handles_another(x: Any, error: Any) -> Any:
    try:
        raise KeyError(3)
    except KeyError as other:
        print(end="")
        return x + len(other.args)


def asks_the_exception(x: Any, error: Any) -> Any:
    return x + len(error.args)


def asks_the_traceback(x: Any, error: Any) -> Any:
    return x + 1, error.__traceback__, [part.name for part in traceback.extract_tb(error.__traceback__)]


def breaks_by_data(x: Any, error: Any) -> Any:
    return x + 1 if x.sum() > 0 else x


def raises_another(x: Any, error: Any) -> Any:
    x = x + 1
    raise LookupError("another")


def fails(x: Any, error: Any) -> Any:
    return x @ torch.ones(7)


FUNCTIONS = [
    breaks,
    breaks_in_a_block,
    breaks_in_a_call,
    handles_another,
    asks_the_exception,
    asks_the_traceback,
    breaks_by_data,
    raises_another,
    fails,
]


class Planted(Exception):
    """The exception that the program handles around its calls."""


def plants() -> None:
    raise Planted("planted")


def around(function: Callable[..., Any], refusals: tuple[type[Exception], ...] = ()) -> Any:
    """Return the result or error of a call made in a handler, with its causes; and the exception handled there."""
    found: list[Any] = []
    try:
        try:
            plants()
        except Planted as error:
            try:
                found.append(function(torch.ones(2), error))
            except (LookupError, RuntimeError, *refusals) as other:
                found += [type(other), str(other), other.__context__ is error]
            raise
    except Planted as error:
        return found, error


def names(error: BaseException) -> list[str]:
    return [part.name for part in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_its_traceback_stays(function: Callable[..., Any]) -> None:
    compiled = Compiled(function)
    wanted, planted = around(function)
    for _ in range(2):
        found, error = around(compiled)
        assert names(error) == names(planted) == ["around", "plants"]
        if function is asks_the_traceback:
            [(_, seen, parts)] = found
            assert seen is not None and parts == ["around", "plants"]
        elif isinstance(wanted[0], torch.Tensor):
            assert torch.equal(found[0], wanted[0])
        else:
            assert found == wanted


@pytest.mark.parametrize("function", [breaks, breaks_in_a_call, breaks_by_data])
def test_so_it_does_where_the_call_is_refused(function: Callable[..., Any]) -> None:
    _, error = around(Compiled(function, fullgraph=True), (BreakNotAllowed,))
    assert names(error) == ["around", "plants"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [breaks, breaks_in_a_call, handles_another, asks_the_exception, breaks_by_data])
def test_it_is_not_kept(function: Callable[..., Any]) -> None:
    compiled = Compiled(function)
    gone = weakref.ref(around(compiled)[1])
    gc.collect()
    assert gone() is None
