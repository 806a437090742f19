"""Strings that a function only passes along are not guarded; those that it reads are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

SEEN: list[Any] = []
GLOBAL = "global"
TABLE = {"one": 1.0, "two": 2.0, "three": 3.0}


class Named:
    def __init__(self, name: Any) -> None:
        self.name = name
        self.other = ""


def note(*items: Any) -> None:
    """Break the graph, and store the arguments."""
    SEEN.append(items)
    print(end="")


def stored(x: Any, held: Named) -> Any:
    held.other = held.name
    return x + 1


def swapped(x: Any, held: Named) -> Any:
    name = held.name
    held.name, held.other = "new", name
    note(name, held.name)
    return x + 1, name


def read_late(x: Any, held: Named) -> Any:
    name = held.name
    x = x + 1
    note(name)
    return x * 2 if name == "two" else x


def default(x: Any, held: Named, key: str = "k") -> Any:
    def inner(name: str = held.name) -> Any:
        note(name, key)
        return x + 1

    return inner()


def by_keyword(x: Any, held: Named) -> Any:
    record = dict(name=held.name, size=x.shape[0])
    note(record)
    return x + 1, record


def in_containers(x: Any, held: Named) -> Any:
    box = [held.name, (held.name, x)]
    box.append(held.name)
    note(box)
    return x + len(box), box


PASSED: dict[str, Callable[..., Any]] = {
    "an argument": lambda x, held: (note(held.name), x + 1)[1],
    "a variable": lambda x, held: (name := held.name, y := x + 1, note(name), y * 2)[3],
    "returned": lambda x, held: (x + 1, held.name),
    "its type": lambda x, held: x + 1 if isinstance(held.name, str) and held.name is not None else x,
    "stored": stored,
    "swapped": swapped,
    "a default": default,
    "by keyword": by_keyword,
    "in containers": in_containers,
    "itself": lambda x, held: (note(held.name, held.name), x + 1)[1],
}
READ: dict[str, Callable[..., Any]] = {
    "compared": lambda x, held: x + 1 if held.name == "two" else x,
    "a key": lambda x, held: x * TABLE.get(held.name, 4.0),
    "its length": lambda x, held: x + len(held.name),
    "its truth": lambda x, held: x + 1 if held.name else x - 1,
    "contains": lambda x, held: x + 1 if "w" in held.name else x,
    "contained": lambda x, held: x + 1 if held.name in ("one", "two") else x,
    "a method": lambda x, held: x + 1 if held.name.startswith("t") else x,
    "joined": lambda x, held: (x + 1, held.name + "!", f"<{held.name}>"),
    "an item": lambda x, held: x + ord(held.name[0]),
    "iterated": lambda x, held: x + sum(1 for letter in held.name if letter == "e"),
    "an attribute": lambda x, held: getattr(x, {"one": "sin", "two": "cos"}.get(held.name, "exp"))(),
    "hashed": lambda x, held: x + len({held.name, "one"}),
    "sorted": lambda x, held: (x + 1, sorted([held.name, "seven"])),
    "read late": read_late,
}


def outcome(function: Callable[..., Any], name: Any) -> Any:
    SEEN.clear()
    held = Named(name)
    return function(torch.ones(2), held), held.name, held.other, [*SEEN]


@pytest.mark.parametrize("name", PASSED)
def test_a_text_that_is_passed_along_may_be_any(name: str) -> None:
    frames.reset()
    function = PASSED[name]
    fn = compiled(function)
    for text in ("one", "two", "three", "four", "", "two"):
        assert same(outcome(fn, text), outcome(function, text))
    assert not fn.of_kind("recompile")
    assert same(outcome(fn, b"two"), outcome(function, b"two"))


@pytest.mark.parametrize("name", READ)
def test_a_text_that_is_read_is_guarded(name: str) -> None:
    frames.reset()
    function = READ[name]
    fn = compiled(function)
    for text in ("one", "two", "three", "two", "one"):
        assert same(outcome(fn, text), outcome(function, text))
    assert fn.of_kind("recompile")


def test_another_type_is_compiled_again() -> None:
    frames.reset()
    fn = compiled(lambda x, held: (x + 1, isinstance(held.name, str)))
    for text in ("one", b"one", 3, None, "two"):
        assert outcome(fn, text)[0][1] is isinstance(text, str)
    assert len(fn.of_kind("entry")) == 4


def test_globals_and_closures() -> None:
    global GLOBAL
    frames.reset()
    free = "free"

    def function(x: Any) -> Any:
        note(GLOBAL, free)
        return x + 1, GLOBAL, free

    fn = compiled(function)
    for text in ("one", "two"):
        GLOBAL, free = text, text * 2
        assert same(fn(torch.ones(2)), function(torch.ones(2))) and SEEN[-1] == (text, text * 2)
    assert not fn.of_kind("recompile")


def test_the_very_object_is_passed() -> None:
    frames.reset()
    text = "".join(["a", " text of its own"])
    fn = compiled(lambda x, held: (x + 1, held.name))
    fn(torch.ones(2), Named("another text"))
    assert fn(torch.ones(2), Named(text))[1] is text
