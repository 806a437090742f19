"""Sets of non-constant members: code that reads one runs eagerly, code that passes it along is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

X = torch.arange(3.0)


class Plain:
    def __init__(self, x: int) -> None:
        self.x = x


class Hashed(Plain):
    def __hash__(self) -> int:
        return hash(self.x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and other.x == self.x


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "frozenset": lambda p: frozenset([p]),
    "set": lambda p: {p},
    "keys": lambda p: {p: 1}.keys(),
    "dict": lambda p: {p: 2},
    "nested": lambda p: frozenset([frozenset([p])]),
    "of a tuple": lambda p: frozenset([(1, p)]),
    "as a key": lambda p: {frozenset([p]): 4},
    "too large": lambda p: frozenset(range(5000)),
    "not a number": lambda p: frozenset([float("nan")]),
}
BODIES = [
    "list(s)[0] is p", "[getattr(v, 'x', 0) for v in s]", "len(s)", "p in s", "bool(s)", "s == s", "[*s][:1] == [p]",
    "next(iter(s)) is p", "isinstance(s, frozenset)", "len([s, s])", "type(s).__name__", "s is s",
    "any(v is p for v in s)",
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cls", [Plain, Hashed])
@pytest.mark.parametrize("holder", HOLDERS)
def test_members(holder: str, cls: type) -> None:
    for body in BODIES:
        names: dict[str, Any] = {}
        exec(f"def f(x, s, p):\n    x = x * 2\n    kept = s\n    r = {body}\n    return x, r, kept is s", names)
        frames.reset()
        subject = compiled(names["f"])
        for number in (3, 3, 8):
            p = cls(number)
            held = HOLDERS[holder](p)
            assert same(subject(X, held, p), names["f"](X, held, p)), body
