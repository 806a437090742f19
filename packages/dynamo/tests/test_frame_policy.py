"""Which frames are compiled and which functions are interpreted in place."""

from __future__ import annotations

import functools
import inspect
import logging
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled

from framesmith_dynamo import FrameConverter, disable, is_disabled
from framesmith_dynamo.admission.frame_policy import why_not_compiled, why_not_inlined


def plain(x):
    return x


def generator():
    yield 1


async def coroutine():
    return 1


def disabled(x):
    return x


def test_users_functions_and_modules_are_compiled() -> None:
    assert why_not_compiled(plain.__code__) is None
    assert why_not_compiled(torch.nn.Linear.forward.__code__) is None


def test_what_is_left_alone() -> None:
    for code in (
        generator.__code__,
        coroutine.__code__,
        compile("x = 1", "<module>", "exec"),
        torch.nn.functional.relu.__code__,
        torch.optim.SGD.step.__wrapped__.__code__,
        functools.wraps.__code__,
        random.Random.shuffle.__code__,
        FrameConverter.__call__.__code__,
    ):
        assert why_not_compiled(code) is not None, code


class Handler:
    """Called by torch for every function that meets it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args)


def test_handlers_of_torch_functions_run_as_plain_python() -> None:
    assert why_not_compiled(Handler.__torch_function__.__code__) is not None


def test_comprehensions_belong_to_the_function_around_them() -> None:
    nested = [const for const in plain_comprehension.__code__.co_consts if isinstance(const, types.CodeType)]
    assert all(why_not_compiled(code) is not None for code in nested)


def plain_comprehension(xs):
    return [x + 1 for x in xs]


def test_what_is_not_interpreted_in_place() -> None:
    assert why_not_inlined(plain.__code__) is None
    assert why_not_inlined(torch.nn.Module.train.__code__) is None
    assert why_not_inlined(functools.wraps.__code__) is None
    for code in (
        logging.info.__code__,
        random.Random.shuffle.__code__,
        torch.save.__code__,
        FrameConverter.__call__.__code__,
    ):
        assert why_not_inlined(code) is not None, code


def test_disabled_code() -> None:
    assert not is_disabled(disabled.__code__)
    disable(disabled.__code__)
    assert is_disabled(disabled.__code__)
    assert why_not_compiled(disabled.__code__) == "disabled"
    assert why_not_inlined(disabled.__code__) == "disabled"


def looks_at_its_frame(x: torch.Tensor) -> Any:
    doubled = x * 2
    frame = sys._getframe()
    return doubled.tolist(), sorted(frame.f_locals), frame.f_lineno, frame.f_code.co_name


def looks_by_inspect(x: torch.Tensor) -> Any:
    doubled = x * 2
    frame = inspect.currentframe()
    assert frame is not None
    return doubled.tolist(), sorted(frame.f_locals), frame.f_lineno


def calls_one_that_looks(x: torch.Tensor) -> Any:
    return looks_at_its_frame(x + 1), looks_by_inspect(x)


@pytest.mark.parametrize("program", [looks_at_its_frame, looks_by_inspect, calls_one_that_looks])
def test_a_function_that_looks_at_its_own_frame_sees_it(program: Callable[[torch.Tensor], Any]) -> None:
    assert compiled(program)(torch.ones(2)) == program(torch.ones(2))
