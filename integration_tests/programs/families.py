"""Programs made by rule: a holder, the ways in which what it holds changes between calls, and every order of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from integration_tests.harness.differential import Case


def one_tensor() -> tuple[Any, ...]:
    """The arguments of most programs."""
    return (torch.arange(1.0, 4.0),)


@dataclass
class World:
    """A function, and what brings the world it reads into each state, from whatever state it is in."""

    fn: Callable[..., Any]
    states: Sequence[Callable[[], object]]
    arguments: Callable[[], tuple[Any, ...]] = one_tensor
    watch: Sequence[Any] = ()
    undo: Callable[[], object] = lambda: None


@dataclass
class Family:
    """The programs of one module: `programs` maps a name to what makes its case.

    `warm_only`: those of them that add nothing when each call is compiled again: they make the calls of another one
    in another order, or each call in a mode of its own.
    """

    programs: dict[str, Callable[[], Case]] = field(default_factory=dict)
    warm_only: set[str] = field(default_factory=set)

    def add(self, name: str, make: Callable[..., Case], first: int, *arguments: Any) -> None:
        """Register the program that begins with state `first`."""
        self.programs[name] = functools.partial(make, first, *arguments)
        if first:
            self.warm_only.add(name)

    def holder(self, *states: str) -> Callable[[Callable[[], World]], Callable[[], World]]:
        """Register a world under the names of its states: one program for each state in which it is compiled first."""

        def register(make: Callable[[], World]) -> Callable[[], World]:
            for first, name in enumerate(states):
                self.add(f"{make.__name__}__{name}_first", changed_in_every_order, first, make, len(states))
            return make

        return register

    def arguments(self, **makers: Callable[[], tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a function called with each kind of arguments, in every order; a program for each that is first."""

        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            for first, name in enumerate(makers):
                self.add(f"{fn.__name__}__{name}_first", called_in_every_order, first, fn, list(makers.values()))
            return fn

        return register

    def program(self, make: Callable[[], Case]) -> Callable[[], Case]:
        """Register one program as it is."""
        self.programs[make.__name__] = make
        return make


def every_order(count: int, first: int) -> list[int]:
    """States 0 to count - 1, `first` at the start, such that each follows each other one, and itself, at least once."""
    rest = [(first + step) % count for step in range(count)]
    walk = [first, first]
    for at, state in enumerate(rest):
        for other in rest[at + 1 :]:
            walk += [state] * (walk[-1] != state) + [other] * (2 if at == 0 else 1)
    return walk + [first] * (walk[-1] != first)


def changed_in_every_order(first: int, make: Callable[[], World], count: int) -> Case:
    """Calls with the world in each of its states, in every order."""
    world = make()
    assert len(world.states) == count, "as many names as states"
    steps = [world.states[state] for state in every_order(count, first)]
    calls = [world.arguments() for _ in steps]
    return Case(world.fn, calls, watch=world.watch, before=steps, undo=world.undo)


def called_in_every_order(first: int, fn: Callable[..., Any], makers: Sequence[Callable[[], tuple[Any, ...]]]) -> Case:
    """Calls with each kind of arguments, in every order."""
    return Case(fn, [makers[kind]() for kind in every_order(len(makers), first)])


def nothing() -> contextlib.AbstractContextManager[None]:
    """A call in no context."""
    return contextlib.nullcontext()


def setting(holder: Any, **values: Any) -> Callable[[], None]:
    """Return a function that sets attributes of `holder`."""

    def put() -> None:
        for name, value in values.items():
            setattr(holder, name, value)

    return put


def deleting(holder: Any, *names: str) -> Callable[[], None]:
    """Return a function that deletes those of these attributes that `holder` has itself."""

    def drop() -> None:
        for name in names:
            if name in vars(holder):
                delattr(holder, name)

    return drop


def storing(table: Any, **items: Any) -> Callable[[], None]:
    """Return a function that stores items in `table`."""

    def put() -> None:
        for key, value in items.items():
            table[key] = value

    return put


def dropping(table: Any, *keys: Any) -> Callable[[], None]:
    """Return a function that removes keys from `table`, where it has them."""

    def drop() -> None:
        for key in keys:
            table.pop(key, None)

    return drop
