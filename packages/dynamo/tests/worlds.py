"""Worlds: programs with changes to the objects that they use, for tests that every change is detected."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled

X = torch.arange(3.0)

#: The program, and changes to the objects that it uses, in any order.
World = tuple[Callable[..., Any], list[Callable[[], object]]]


class Worlds(dict[str, Callable[[], World]]):
    """A table of functions that make worlds."""

    def add(self, make: Callable[[], World]) -> Callable[[], World]:
        """A decorator that adds a world."""
        self[make.__name__] = make
        return make

    def orders(self) -> list[Any]:
        """Return every world with its changes in every order."""
        return [
            pytest.param(make, order, id=f"{name}-{''.join(map(str, order))}")
            for name, make in self.items()
            for order in itertools.permutations(range(len(make()[1])))
        ]


def run(make: Callable[[], World], wrap: Callable[..., Any], order: tuple[int, ...]) -> list[Any]:
    """Return the results of a call in a fresh world, and of two calls after each change."""
    program, changes = make()
    call = wrap(program)
    found = [call(X)]
    for index in order:
        changes[index]()
        found += [call(X), call(X)]
    return found


def check_changes(make: Callable[[], World], order: tuple[int, ...]) -> None:
    """Compare the results after each change with eager mode's."""
    assert str(run(make, compiled, order)) == str(run(make, lambda fn: fn, order))


def check_unchanged(make: Callable[[], World]) -> None:
    """Check that nothing is compiled again while nothing changes."""
    program, _ = make()
    subject = compiled(program)
    for _ in range(3):
        subject(X)
    assert not subject.of_kind("recompile")


def module(text: str) -> types.ModuleType:
    """Return a new module, imported under its name."""
    made = types.ModuleType("changed_config")
    sys.modules[made.__name__] = made
    exec(text, vars(made))
    return made


def setter(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Return a change of an attribute."""
    return lambda: setattr(owner, name, value)
