"""Class data that a program replaces: recorded while tracing, read back in the trace, stored by compiled code."""

import abc

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

X = torch.arange(3.0)


class Counter:
    made = 0

    def __init__(self):
        type(self).made += 1
        self.number = type(self).made

    @classmethod
    def bump(cls, by=1):
        cls.made += by
        return cls.made


class Inherits(Counter):
    pass


class Register(abc.ABC):
    last = None
    names = ()


class Method:
    def value(self):
        return 1

    @property
    def computed(self):
        return 2


def clear():
    Counter.made, Register.last, Register.names = 0, None, ()
    for name in set(vars(Inherits)) & {"made"}:
        delattr(Inherits, name)
    Method.value, Method.computed = lambda self: 1, property(lambda self: 2)


def count(x):
    Counter.made += 1
    return x + Counter.made


def make(x):
    first, second = Counter(), Counter()
    return x * first.number + second.number, first.made


def bump(x):
    return x * Counter.bump() + Counter.bump(by=5) + Inherits.made


def keep(x):
    Register.last = [x * 2, 1]
    Register.last.append(3)
    Register.names = (*Register.names, "a")[-2:]
    return x + len(Register.last), Register.names


def shadow(x):
    one = Counter()
    one.made = 9
    Counter.made = 4
    return x + one.made + Counter().made + vars(Counter)["made"] + getattr(Counter, "made")


def by_size(x):
    setattr(Counter, "made", x.shape[0])
    return x * Counter.made


def inherited(x):
    Inherits.made = 3
    return x + Inherits.made + Counter.made


def a_method(x):
    Method.value = lambda self: 5
    return x + Method().value()


def over_a_property(x):
    Method.computed = 7
    return x + Method().computed


def then_raise(x):
    Counter.made = 11
    raise ValueError("after the store")


def run(function, compile):
    """Return the results of four calls, and the class attributes afterwards."""
    clear()
    results = []
    for call in range(4):
        try:
            results.append(compile(X[: 3 - call // 2]))
        except ValueError as error:
            results.append(error)
        results.append(
            (Counter.made, Inherits.made, Register.last, Register.names, Method().value(), Method().computed)
        )
    return results


WITHOUT_BREAKS = [count, make, bump, keep, shadow, by_size]
WITH_BREAKS = [inherited, a_method, over_a_property]


@pytest.mark.parametrize("function", [*WITHOUT_BREAKS, *WITH_BREAKS, then_raise])
def test_as_in_eager_mode(function):
    frames.reset()
    fn = compiled(function)
    assert same(run(function, fn), run(function, function))
    assert bool(fn.of_kind("break")) is (function in WITH_BREAKS)


def test_numbers_become_symbols():
    frames.reset()
    clear()
    fn = compiled(count)
    assert [int(fn(X)[0]) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert len(fn.of_kind("entry")) <= 3


def test_subclasses_are_guarded():
    class Root:
        factor = 2

    class First(Root):
        factor = 3

    def scaled(x):
        for cls in Root.__subclasses__():
            x = x * cls.factor
        return x, [cls.__name__ for cls in Root.__subclasses__()]

    frames.reset()
    fn = compiled(scaled)
    assert same(fn(X), scaled(X)) and same(fn(X + 1), scaled(X + 1)) and len(fn.of_kind("entry")) == 1

    class Second(Root):
        factor = 5

    assert same(fn(X), scaled(X)) and len(fn.of_kind("entry")) == 2 and not fn.of_kind("break")
