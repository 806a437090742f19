"""User exceptions arrive as they are, with the user's frames, and what happened before them happened once."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch

import framesmith


class Refused(Exception):
    """Raised by the programs below."""


def inner(x: torch.Tensor, log: list) -> torch.Tensor:
    log.append("inner")
    if x.shape[0] == 3:
        raise Refused("three", x.shape)
    return x * 2


def outer(x: torch.Tensor, log: list) -> torch.Tensor:
    log.append("outer")
    y = inner(x + 1, log)
    log.append("after")
    return y


def after_break(x: torch.Tensor, log: list) -> torch.Tensor:
    log.append("before")
    y = x + 1
    print("break")
    log.append("after")
    return y @ x.reshape(2, -1)


def user_frames(error: BaseException) -> list[str]:
    """Names of this file's functions in the traceback, outermost first, the test's own frame left out."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if frame.filename == __file__ and not frame.name.startswith("test_")]


def test_an_exception_arrives_unchanged_with_its_frames() -> None:
    compiled = framesmith.compile(outer)
    log: list = []
    compiled(torch.ones(2), log)
    with pytest.raises(Refused) as caught:
        compiled(torch.ones(3), log)
    assert caught.value.args == ("three", torch.Size([3]))
    assert log == ["outer", "inner", "after", "outer", "inner"]
    assert user_frames(caught.value) == ["outer", "inner"]
    assert caught.value.__context__ is None
    assert torch.equal(compiled(torch.ones(2), log), torch.full((2,), 4.0))


def test_an_exception_after_a_break(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = framesmith.compile(after_break)
    log: list = []
    with pytest.raises(RuntimeError) as caught:
        compiled(torch.ones(3), log)
    with pytest.raises(RuntimeError) as eager:
        after_break(torch.ones(3), [])
    assert str(caught.value) == str(eager.value)
    assert log == ["before", "after"]
    assert capsys.readouterr().out == "break\nbreak\n"
    assert "after_break" in user_frames(caught.value)[0]


def test_the_line_of_the_failing_statement_is_in_the_traceback() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.sin()
        return z @ y

    compiled = framesmith.compile(f)
    with pytest.raises(RuntimeError) as caught:
        compiled(torch.ones(2, 3), torch.ones(2, 3))
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__) if frame.name == "f"]
    assert "return z @ y" in lines


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit])
def test_special_exceptions_pass_through(kind: type[BaseException]) -> None:
    def f(x: torch.Tensor, stop: bool) -> torch.Tensor:
        y = x * 2
        if stop:
            raise kind
        return y

    compiled = framesmith.compile(f)
    compiled(torch.ones(2), False)
    with pytest.raises(kind):
        compiled(torch.ones(2), True)
    assert torch.equal(compiled(torch.ones(2), False), torch.full((2,), 2.0))


def test_finally_blocks_and_context_managers_run_once() -> None:
    events: list[Any] = []

    class Manager:
        def __enter__(self) -> None:
            events.append("enter")

        def __exit__(self, *args: Any) -> None:
            events.append("exit")

    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            with Manager():
                events.append(x.shape[0])
                raise Refused
        finally:
            events.append("finally")

    compiled = framesmith.compile(f)
    for _ in range(3):
        events.clear()
        with pytest.raises(Refused):
            compiled(torch.ones(2))
        assert events == ["enter", 2, "exit", "finally"]
