"""Modules, builtins and cells that change between calls."""

from __future__ import annotations

import builtins
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled
from worlds import X, module

# Namespaces


CONFIG = """
SCALE = 1.0
def set_scale(value):
    global SCALE
    SCALE = value
def scale():
    return SCALE
"""


def spellings(config: Any) -> dict[str, Callable[[Any], Any]]:
    """Ways to read a module's entry."""
    return {
        "attribute": lambda x: x * config.SCALE,
        "getattr": lambda x: x * getattr(config, "SCALE"),
        "vars": lambda x: x * vars(config)["SCALE"],
        "dictionary": lambda x: x * config.__dict__.get("SCALE"),
        "sys.modules": lambda x: x * sys.modules["changed_config"].SCALE,
        "function": lambda x: x * config.scale(),
    }


@pytest.mark.parametrize("name", spellings(None))
def test_a_module_is_read_as_a_call_left_it(name: str) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        config = module(CONFIG)
        read = spellings(config)[name]

        def program(x: Any, value: float) -> Any:
            before = read(x)
            config.set_scale(value)
            return before, read(x), config.scale()

        call = wrap(program)
        return [*[call(X, value) for value in (2.0, 3.0, 3.0)], config.SCALE]

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


def stores(config: Any) -> dict[str, Callable[[float], Any]]:
    """Ways to write a module's entry."""
    return {
        "attribute": lambda value: setattr(config, "SCALE", value),
        "vars": lambda value: vars(config).update(SCALE=value),
        "item": lambda value: config.__dict__.__setitem__("SCALE", value),
        "sys.modules": lambda value: setattr(sys.modules["changed_config"], "SCALE", value),
        "function": lambda value: config.set_scale(value),
        "deleted": lambda value: (delattr(config, "SCALE"), config.set_scale(value)),
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("read", spellings(None))
@pytest.mark.parametrize("store", stores(None))
def test_a_module_is_written_in_every_way(read: str, store: str) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        config = module(CONFIG)
        reader, writer = spellings(config)[read], stores(config)[store]

        def program(x: Any, value: float) -> Any:
            writer(value)
            return reader(x)

        call = wrap(program)
        return [*[call(X, value) for value in (2.0, 3.0)], config.SCALE, list(vars(config))]

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


COUNT = 0


def bump(by: int = 1) -> int:
    global COUNT
    COUNT += by
    return COUNT


def stored_and_bumped(x: Any, n: int) -> Any:
    globals()["COUNT"] = n
    first = bump()
    return x + COUNT + first + globals()["COUNT"] + globals().get("ABSENT", 5)


def stored_before_a_break(x: Any, n: int) -> Any:
    globals()["COUNT"] = n
    print(end="")
    return x + bump()


def passed(x: Any, n: int) -> Any:
    return filled(x, globals(), n)


def filled(x: Any, names: dict[str, Any], n: int) -> Any:
    names["COUNT"] = n
    return x + COUNT + names.pop("COUNT") + ("COUNT" in names) + (names.setdefault("COUNT", 3))


def iterated(x: Any, n: int) -> Any:
    globals()["COUNT"] = n
    return x + sum(value for name, value in globals().items() if name == "COUNT")


@pytest.mark.parametrize("program", [stored_and_bumped, stored_before_a_break, passed, iterated])
def test_writes_through_globals(program: Callable[..., Any]) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        globals()["COUNT"] = 0
        call = wrap(program)
        return [value for n in (1, 2, 2) for value in (str(call(X, n)), COUNT)]

    assert outcomes(compiled) == outcomes(lambda fn: fn)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_builtins_are_replaced(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        call = wrap(lambda x: x + abs(-3) + round(2.4) + bump(0) * 0)
        found = [call(X)]
        with monkeypatch.context() as patch:
            value = 100
            names = ("abs", "round")
            for index in order:
                patch.setattr(builtins, names[index], lambda *_: value)
                found.append(call(X))
                value = 50
                found.append(call(X))
        found.append(call(X))
        return found

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


def test_a_builtin_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        try:
            return x + changed_absent  # type: ignore[name-defined]
        except NameError:
            return x

    call = compiled(program)
    assert torch.equal(call(X), X)
    monkeypatch.setattr(builtins, "changed_absent", 4.0, raising=False)
    assert torch.equal(call(X), X + 4)


# Cells


def counter() -> tuple[Callable[[], None], Callable[[], int]]:
    n = 0

    def inc() -> None:
        nonlocal n
        n += 1

    return inc, lambda: n


def counted(x: Any, inc: Any, get: Any) -> Any:
    before = get()
    inc()
    return x + get() * 10 + before


def read_only(x: Any, first: Any, second: Any) -> Any:
    return x + first() * 10 + second()


@pytest.mark.parametrize("order", list(itertools.permutations("sab")))
@pytest.mark.parametrize("program", [counted, read_only])
def test_shared_and_separate_cells(program: Callable[..., Any], order: tuple[str, ...]) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        (i1, g1), (i2, g2), (i3, g3) = counter(), counter(), counter()
        i3()
        calls: dict[str, Any] = {"s": (i1, g1), "a": (i2, g3), "b": (i3, g2)}
        if program is read_only:
            calls = {"s": (g1, g1), "a": (g1, g3), "b": (g3, g3)}
        call = wrap(program)
        return [call(X, *calls[kind]) for kind in (*order, *order)]

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


def test_a_free_variable_and_the_cell_of_another_function() -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        n = 0

        def program(x: Any, other: Any) -> Any:
            nonlocal n
            n += 1
            other()
            return x + n

        def inc() -> None:
            nonlocal n
            n += 10

        call = wrap(program)
        return [call(X, fn) for fn in (inc, counter()[0], inc)]

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))
