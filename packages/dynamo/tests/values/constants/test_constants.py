"""Constants: a returned constant is the caller's own object; strings are Python's."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driver import check, compiled

X = torch.arange(6.0).reshape(2, 3)


def fresh() -> list[Any]:
    """Return equal constants, each time other objects."""
    return ["".join(["hel", "lo"]), float("1.5e3"), int("100000"), b"".join([b"ab", b"cd"]), complex("1+2j")]


def leaves(obj: Any) -> Iterator[Any]:
    if type(obj) in (list, tuple):
        for item in obj:
            yield from leaves(item)
    elif type(obj) is dict:
        yield from leaves(list(obj.values()))
    elif not isinstance(obj, torch.Tensor):
        yield obj


class Box:
    """Holds a constant."""


def returned(x, v):
    return x + 1, v


def in_containers(x, v):
    return x + 1, [v], {"a": v}, (v, (v,))


def given_back_by_methods(x, v):
    if isinstance(v, str):
        return x, v.strip(), v[:], v + "", "".join([v]), f"{v}", format(v), str(v), v * 1, v.replace("q", "r")
    if isinstance(v, bytes):
        return x, bytes(v), v[:], v.strip()
    return x, type(v)(v), +v, v if isinstance(v, complex) else max(v, abs(v))


def through_calls(x, v):
    def keep(a, *rest, **named):
        return (a, *rest, *named.values())

    return x + 1, keep(v, v, last=v), sum([], v) if isinstance(v, int) else v


def behind_a_break(x, v):
    print("now")
    return x * 2, v


PROGRAMS: list[Callable[..., Any]] = [
    returned, in_containers, given_back_by_methods, through_calls, behind_a_break,
]  # fmt: skip


@pytest.mark.parametrize("kind", range(5), ids=lambda kind: type(fresh()[kind]).__name__)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_what_is_passed_comes_back(fn: Any, kind: int, capsys: pytest.CaptureFixture[str]) -> None:
    subject = compiled(fn)
    for _ in range(3):
        v = fresh()[kind]
        expected = [leaf is v for leaf in leaves(fn(X, v))]
        found = [leaf is v for leaf in leaves(subject(X, v))]
        assert any(expected)
        assert all(here or not there for here, there in zip(found, expected, strict=True))


def test_what_is_stored_is_the_object_that_was_passed() -> None:
    def f(x, box, log, v):
        box.v = v
        log.append(v)
        box.w = box.given
        return x + 1

    subject = compiled(f)
    for kind in range(5):
        for _ in range(2):
            box, log, v = Box(), [], fresh()[kind]
            box.given = fresh()[kind]
            subject(X, box, log, v)
            assert box.v is v and log[0] is v and box.w is box.given


class Level(enum.IntEnum):
    LOW = 1


class Part(enum.Flag):
    A = 1
    B = 2


class Mask(enum.IntFlag):
    A = 1
    B = 2


class Word(enum.StrEnum):
    YES = "yes"


class Mixed(str, enum.Enum):  # noqa: UP042
    X = "x"


class Named(enum.Enum):
    ONE = 1

    def __str__(self) -> str:
        return "named " + self.name


class ShortRepr:
    """Its `str` is `object`'s, which calls the repr."""

    def __repr__(self) -> str:
        return "short"


class NoText:
    """Has no string."""

    def __str__(self) -> Any:
        return 3  # noqa: PLE0307


SHOWN: list[Any] = [
    Level.LOW, Part.A, Part.A | Part.B, Mask.A | Mask.B, Word.YES, Mixed.X, Named.ONE, ShortRepr(), NoText(), 1.5, True,
    "text", b"bytes", (Level.LOW, "a"), [Word.YES], {1: Part.B}, frozenset([2]), range(3), None, ValueError("v"),
    collections.OrderedDict(a=1), collections.defaultdict(list, {1: [2]}), collections.Counter("aab"),
    collections.deque([1], 3), torch.float32, torch.Size([1]),
]  # fmt: skip


@pytest.mark.parametrize("value", SHOWN, ids=lambda value: type(value).__name__)
def test_texts_are_pythons(value: Any) -> None:
    def f(x, v):
        return x, f"{v}", str(v), repr(v), format(v), "%s %r" % (v, v), ascii(v)  # noqa: UP031

    check(f, X, value)


def test_formats_that_python_refuses() -> None:
    def f(x, v, spec):
        try:
            return x, format(v, spec)
        except (TypeError, ValueError) as error:
            return x, str(error)

    for v, spec in ((1.5, "d"), (Level.LOW, ">4"), (Word.YES, "d"), (1, 2), (None, ">4"), ([1], "x")):
        check(f, X, v, spec)
