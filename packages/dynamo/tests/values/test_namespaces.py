"""Functions whose globals no imported module owns: exec'd code, copies of functions, hand-made modules."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled

X = torch.arange(6.0).reshape(2, 3)
SOURCE = """
scale = 2.0
count = 0

def read(x):
    return x * scale

def counting(x):
    global count
    count += 1
    return x + count

def both(x):
    return read(counting(x))

def forget(x):
    global scale
    del scale
    return x.sin()
"""
HOLDER = types.SimpleNamespace()


def namespace(**changed: object) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(SOURCE, "exec'd", "exec"), names)
    names.update(changed)
    return names


@pytest.mark.parametrize("name", ["read", "counting", "both"])
def test_what_is_read_and_stored(name: str) -> None:
    seen = []
    for run in (lambda f: f, compiled):
        names = namespace()
        HOLDER.f = names[name]
        program = run(lambda x: HOLDER.f(x).cos())
        results = [program(X)]
        names["scale"] = 3.0
        results += [program(X), program(X)]
        seen.append((torch.stack(results), names["count"]))
        if run is compiled:
            assert not [event.broken.explain() for event in program.of_kind("break") if event.broken]
    torch.testing.assert_close(*(results for results, _ in seen))
    assert seen[0][1] == seen[1][1]


def test_a_deleted_name_is_missed() -> None:
    names = namespace()
    HOLDER.f, HOLDER.g = names["forget"], names["read"]
    program = compiled(lambda x: HOLDER.f(x) + 1)
    torch.testing.assert_close(program(X), X.sin() + 1)
    assert "scale" not in names
    with pytest.raises(NameError, match="name 'scale' is not defined"):
        compiled(lambda x: HOLDER.g(x))(X)
    with pytest.raises(NameError, match="name 'scale' is not defined"):
        program(X)


def of_other_globals(function: types.FunctionType, names: dict[str, Any]) -> Callable[..., Any]:
    return types.FunctionType(function.__code__, names)


@pytest.mark.parametrize("first", [True, False])
def test_a_copy_with_other_globals_in_its_place(first: bool) -> None:
    """Functions are known by their code, so their globals are found through each of them, or compared."""
    names = namespace()
    HOLDER.f, HOLDER.g = names["read"], names["counting"]
    program = compiled(lambda x: HOLDER.f(x) + HOLDER.g(x))
    torch.testing.assert_close(program(X), X * 2 + X + 1)
    if first:
        HOLDER.f = of_other_globals(names["read"], namespace(scale=5.0))
        torch.testing.assert_close(program(X), X * 5 + X + 2)
    else:
        others = namespace(count=10)
        HOLDER.g = of_other_globals(names["counting"], others)
        torch.testing.assert_close(program(X), X * 2 + X + 11)
        assert (names["count"], others["count"]) == (1, 11)


class Computing(dict[str, Any]):
    """Globals that compute the names they lack, as `annotationlib` makes them."""

    def __missing__(self, name: str) -> str:
        return f"made {name}"


def uses_names(x: torch.Tensor) -> tuple[object, ...]:
    """Read a builtin and a name that only some globals have."""
    return x + 1, max, absent  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("first", [False, True])
def test_globals_that_compute_names(first: bool) -> None:
    plain = types.FunctionType(uses_names.__code__, {"absent": 7})
    computing = types.FunctionType(uses_names.__code__, Computing())
    seen = []
    for run in (lambda f: f, compiled):
        outer = run(lambda f, x: (f(x)[1:], (x * 2).sum().item()))
        direct = [run(f) for f in (computing, plain)]
        order = direct if first else direct[::-1]
        seen.append([f(X)[1:] for f in order * 2] + [outer(f, X) for f in (computing, plain) * 2])
    assert seen[0] == seen[1]
