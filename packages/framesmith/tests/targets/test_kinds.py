"""Targets that can be compiled."""

import functools
from typing import Any

import pytest
import torch

from framesmith.targets.kinds import check_target, name_of, python_function


class Callable:
    def __call__(self, x: int) -> int:
        return x

    def method(self, x: int) -> int:
        return x

    @staticmethod
    def static(x: int) -> int:
        return x


@pytest.mark.parametrize(
    "target",
    [
        lambda x: x,
        Callable(),
        Callable().method,
        Callable.static,
        functools.partial(Callable.static, 1),
        torch.nn.Linear(1, 1),
        torch.nn.functional.softmax,
        print,
        [].append,
        str.upper,
        functools.partial(print),
    ],
)
def test_callables(target: Any) -> None:
    assert check_target(target) is target


@pytest.mark.parametrize("target", [1, None, int, Callable])
def test_others(target: Any) -> None:
    with pytest.raises(TypeError, match=r"framesmith\.compile"):
        check_target(target)


def test_names_and_functions() -> None:
    assert name_of(functools.partial(check_target, 1)) == "partial of check_target"
    assert python_function(Callable().method) is Callable.method
    assert python_function(print) is None
