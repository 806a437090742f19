"""Special methods of builtin objects, called by name: results, NotImplemented and errors are Python's."""

from __future__ import annotations

import collections
import enum
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled

import framesmith_frames as frames

X = torch.arange(3.0)


class Plain:
    """An object that supports no operation."""

    def __repr__(self) -> str:
        return "Plain()"


class Count:
    """An object that converts to a number."""

    def __index__(self) -> int:
        return 2


class Choice(enum.Enum):
    """A member of an enumeration."""

    ONE = 1


Pair = collections.namedtuple("Pair", ["a", "b"])


class Bag(set):  # type: ignore[type-arg]
    """A set of a class of its own."""


class Row(list):  # type: ignore[type-arg]
    """A list of a class of its own."""


OWNERS = [
    "7", "2.5", "1j", "True", "'ab'", "b'ab'", "[1, 2]", "(1, 2)", "{1: 2}", "{1, 2}", "frozenset({1, 2})",
    "range(3)", "slice(1, 2)",
    "collections.deque([1, 2])", "None", "collections.OrderedDict({1: 2})", "{1: 2}.keys()", "{1: 2}.items()",
    "(i for i in (1, 2))",
    "Bag({1, 2})", "Row([1, 2])", "Pair(1, 2)", "Choice.ONE",
]  # fmt: skip
ARGUMENTS = [
    "", "7", "2.5", "True", "None", "'ab'", "b'a'", "[1, 2]", "(1, 2)", "{1, 2}", "{1: 2}", "slice(0, 1)",
    "range(3)", "frozenset({1})",
    "1j", "Plain()", "{1: 2}.keys()", "-1", "float('nan')", "collections.deque([1, 2])", "NotImplemented", "1, 2",
    "a=1", "Count()",
    "Bag({1})", "Row([1])",
]  # fmt: skip
NAMES = {
    "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__",
    "__and__", "__rand__",
    "__iand__", "__or__", "__ror__", "__ior__", "__xor__", "__rxor__", "__truediv__", "__floordiv__", "__mod__",
    "__rmod__", "__divmod__",
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__getitem__", "__setitem__",
    "__delitem__", "__len__",
    "__iter__", "__next__", "__bool__", "__index__", "__int__", "__float__", "__round__",
    "__neg__",
    "__reversed__", "__abs__",
}  # fmt: skip
CONTEXT: dict[str, Any] = {
    "collections": collections, "Plain": Plain, "Count": Count, "Bag": Bag, "Row": Row, "Pair": Pair, "Choice": Choice,
}  # fmt: skip
CASES = [
    pytest.param(owner, name, id=f"{owner}.{name}")
    for owner in OWNERS
    for name in sorted(NAMES)
    if hasattr(eval(owner, dict(CONTEXT)), name)
]


def program(owner: str, name: str, found: bool) -> Callable[..., Any]:
    """Return a program that makes all the calls in turn."""
    lines = ["def f(x, found):", "    r = []"]
    for argument in ARGUMENTS:
        lines += [
            "    try:",
            f"        v = {'found()' if found else owner}",
            f"        r.append((v.{name}({argument}), v))",
        ]
        lines += ["    except Exception as e: r.append((type(e).__name__, str(e)))"]
    names = dict(CONTEXT)
    exec("\n".join([*lines, "    return x + 1, r"]), names)
    return names["f"]  # type: ignore[no-any-return]


def shown(rows: list[Any]) -> list[str]:
    return [re.sub("0x[0-9a-f]+", "0x", repr([(type(part), part) for part in row])) for row in rows]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("owner", "name"), CASES)
def test_called_by_hand(owner: str, name: str) -> None:
    fn = program(owner, name, found=False)
    frames.reset()
    subject = compiled(fn)
    expected, found = shown(fn(X, None)[1]), shown(subject(X, None)[1])
    assert [(a, e, f) for a, e, f in zip(ARGUMENTS, expected, found, strict=True) if e != f] == []


class Reflected:
    def __radd__(self, other: Any) -> Any:
        return "reflected", type(other).__name__


@pytest.mark.parametrize("owner", ["[1]", "Row([1])", "collections.deque([1])"])
def test_a_reflected_operator_goes_before_extending(owner: str) -> None:
    names = CONTEXT | {"Reflected": Reflected}
    body = "try: v += Reflected()\n    except TypeError as e: v = str(e)"
    exec(f"def f(x):\n    c = v = {owner}\n    {body}\n    return x + 1, v, c", names)
    frames.reset()
    assert shown(compiled(names["f"])(X)[1:]) == shown(names["f"](X)[1:])
