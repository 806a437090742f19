"""The compiler keeps nothing of the compiled call alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from driver import compiled


class Options:
    factor = 2

    def __init__(self) -> None:
        self.seen = 0


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def plain(x: Any, options: Any) -> Any:
    options.seen += 1
    return x * options.factor


def breaking(x: Any, options: Any) -> Any:
    y = x * options.factor
    print(end="")
    options.seen += 1
    return y + 1


@pytest.mark.parametrize("program", [plain, breaking])
def test_arguments_die_with_the_call_that_was_compiled(program: Any) -> None:
    subject = compiled(program)
    for _ in range(2):
        x, options = torch.ones(2), Options()
        alive = [weakref.ref(x), weakref.ref(options)]
        subject(x, options)
        del x, options
        assert [ref() for ref in alive] == [None, None]


def test_what_cannot_be_traced_dies_with_its_last_reference() -> None:
    def f(x: Any, numbers: Any) -> Any:
        return x + 1, next(numbers)

    subject = compiled(f)
    for _ in range(2):
        numbers = (number for number in range(3))
        alive = weakref.ref(numbers)
        assert subject(torch.ones(2), numbers)[1] == 0
        del numbers
        assert alive() is None


def with_a_finaliser(x: Any, dead: list[str]) -> Any:
    options = Options()
    print(end="")
    weakref.finalize(options, dead.append, "options")  # the frame behind the break ends here, where the object is given
    return x * options.factor


def test_operands_of_the_call_that_breaks_die() -> None:
    subject = compiled(with_a_finaliser)
    for _ in range(2):
        dead: list[str] = []
        subject(torch.ones(2), dead)
        assert dead == ["options"]
