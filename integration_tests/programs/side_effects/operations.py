"""Programs made of one operation with effects, done at each of the positions where a trace may meet it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family

Operation = Callable[[Any, torch.Tensor], Any]


@dataclass
class Holder:
    """A maker of the object that operations change, and its operations."""

    make: Callable[[], Any]
    operations: dict[str, Operation]


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """The result, or the error's type and text."""
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__, str(error)


def around_one_graph(op: Operation) -> Callable[..., object]:
    """Before and after the tensors' operations, by two names, in a block that fails."""

    def f(x, c, holder):
        first = op(c, x)
        y = x * 2
        try:
            second = op(holder["c"], y)
            raise KeyError("caught")
        except KeyError:
            y = y + 1
        return y, first, second, c is holder["c"]

    return f


def around_breaks(op: Operation) -> Callable[..., object]:
    """Before and behind a break, and before a graph that fails on some of the calls."""

    def f(x, c, holder):
        y = x * 2
        first = op(c, y)
        print("a break")
        second = op(holder["c"], y + 1)
        z = y[holder["index"]]
        third = op(c, z)
        return z, first, second, third

    return f


def on_a_new_one(make: Callable[[], object], op: Operation) -> Callable[..., object]:
    """On one that is made in the trace, twice."""

    def f(x):
        c = make()
        first = op(c, x)
        return c, x + 1, first, op(c, x * 2)

    return f


def case_of(holder: Holder, operation: str, shape: Callable[[Operation], Callable[..., object]]) -> Case:
    """The program that does one operation; each of its calls goes on with the object of the last one."""
    c = holder.make()
    xs = [torch.arange(1.0, 4.0), torch.arange(2.0, 5.0), torch.arange(1.0, 5.0)]
    calls = [(x, c, {"c": c, "index": torch.tensor([n])}) for n, x in zip((0, 7, 1), xs, strict=True)]
    return Case(shape(holder.operations[operation]), calls, watch=[c])


def new_one(holder: Holder, operation: str) -> Case:
    """The program that does one operation on an object which the trace makes."""
    return Case(on_a_new_one(holder.make, holder.operations[operation]), [(torch.ones(2),), (torch.ones(3),)])


def family_of(holders: dict[str, Holder]) -> Family:
    """A program for each operation in each position, of classes that are made with it."""
    family = Family()
    for name, holder in holders.items():
        for operation in holder.operations:
            way = f"{name}__{operation}"
            for shape in (around_one_graph, around_breaks):
                family.programs[f"{way}__{shape.__name__}"] = functools.partial(case_of, holder, operation, shape)
            family.programs[f"{way}__new_one"] = functools.partial(new_one, holder, operation)
    return family
