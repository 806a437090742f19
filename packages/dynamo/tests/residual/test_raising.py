"""An error raised in place of a continuation, or by its graph, leaves the blocks that are open there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from driver import active, run_eagerly

import framesmith_frames as frames
from framesmith_dynamo import FrameConverter, raising


class Manager:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> None:
        self.log.append("enter")

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.log.append(kind)


def in_with(x: Any, log: list[Any]) -> Any:
    with Manager(log):
        print(end="")
        x = x.sin()
    return x


def in_try(x: Any, log: list[Any]) -> Any:
    try:
        log.append("try")
        print(end="")
        x = x + 1
        log.append("end")
    except LookupError as error:
        log.append(type(error))
        raise
    finally:
        log.append("finally")
    return x


def in_both(x: Any, log: list[Any]) -> Any:
    with Manager(log), Manager(log):
        try:
            print(end="")
            x = x * 2
        finally:
            log.append("finally")
            with Manager(log):
                log.append("inside")
    return x


FUNCTIONS = [in_with, in_try, in_both]
RAISED = [KeyboardInterrupt, LookupError]


@contextmanager
def handled() -> Iterator[None]:
    """With an error handler that raises its error where the frame begins."""

    def handle(error: BaseException, info: frames.FrameInfo) -> frames.Entry:
        instead = raising(info.code, error)
        if instead is None:
            raise error
        return instead

    previous = frames.set_error_handler(handle)
    try:
        yield
    finally:
        frames.set_error_handler(previous)


def run_active(converter: FrameConverter, function: Callable[..., Any], log: list[Any]) -> Any:
    with active(converter):
        return function(torch.ones(2), log)


def effects(error: type[BaseException], run: Callable[[list[Any]], Any]) -> list[Any]:
    """Return the log of a call that ends with the error."""
    log: list[Any] = []
    with pytest.raises(error, match="planted"):
        run(log)
    return log


def eager_effects(function: Callable[..., Any], error: type[BaseException]) -> list[Any]:
    class Raises:
        def fail(self, *args: Any) -> Any:
            raise error("planted")

        sin = __add__ = __mul__ = fail

    return effects(error, lambda log: function(Raises(), log))


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_compiler_raises_in_the_open_blocks(function: Callable[..., Any], error: type[BaseException]) -> None:
    converter = FrameConverter(run_eagerly)

    def callback(info: frames.FrameInfo) -> Any:
        if "resumed" in info.code.co_qualname:
            raise error("planted")
        return converter(info)

    def run(log: list[Any]) -> Any:
        with handled(), frames.activated(callback):
            return function(torch.ones(2), log)

    assert effects(error, run) == eager_effects(function, error)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_graph_is_interrupted_in_the_open_blocks(function: Callable[..., Any]) -> None:
    def compile_graph(module: Any, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            raise KeyboardInterrupt("planted")

        return run

    converter = FrameConverter(compile_graph)
    found = effects(KeyboardInterrupt, lambda log: run_active(converter, function, log))
    assert found == eager_effects(function, KeyboardInterrupt)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_failure_of_the_compiler_reported_by_raising_is_raised_in_the_open_blocks(
    function: Callable[..., Any],
) -> None:
    def compile_graph(module: Any, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            raise ValueError("a defect")

        return run

    def report(event: Any) -> None:
        if event.kind == "error":
            raise LookupError("planted")

    converter = FrameConverter(compile_graph, on_event=report)
    found = effects(LookupError, lambda log: run_active(converter, function, log))
    assert found == eager_effects(function, LookupError)


def test_where_no_block_is_open_there_is_nothing_to_do() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            return x + 1

    assert raising(f.__code__, ValueError()) is None
