"""`is` of numbers, strings and tuples: equal objects, one object from two sources, constants."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

X = torch.arange(3.0)
SENTINEL = 10**9

#: Ways to create one of several equal objects.
OBJECTS: dict[str, Callable[[], Any]] = {
    "int": lambda: int("1000000000"),
    "small int": lambda: int("7"),
    "float": lambda: float("2.5"),
    "nan": lambda: float("nan"),
    "complex": lambda: complex("1+2j"),
    "str": lambda: "".join(["ab c", "d e"]),
    "bytes": lambda: bytes([65, 66, 200]),
    "tuple": lambda: tuple([1, 2.5]),
    "frozenset": lambda: frozenset([1, 2]),
}
COMPARISONS: list[Callable[..., Any]] = [
    lambda x, a, b: (x + 1, a is b, a is not b, operator.is_(a, b)),
    lambda x, a, b: (x + 1, a in [b], a in (b,), [b].count(a), (a,) == (b,)),
    lambda x, a, b: (x + 1, [v is a for v in [b, a, b]]),
    lambda x, a, b: x * 2 if a is b else x * 3,
]


def agree(fn: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
    frames.reset()
    subject = compiled(fn, recompile_limit=20)
    for args in calls:
        assert same(subject(*args), fn(*args)), args
    assert subject.graphs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("order", ["TTFF", "FFTT", "TFTF"])
@pytest.mark.parametrize("body", COMPARISONS)
@pytest.mark.parametrize("kind", OBJECTS)
def test_two_arguments(kind: str, body: Callable[..., Any], order: str) -> None:
    calls = []
    for letter in order:
        one = OBJECTS[kind]()
        calls.append((X, one, one if letter == "T" else OBJECTS[kind]()))
    agree(body, calls)


def with_default(x: Any, k: Any = SENTINEL) -> Any:
    return x if k is SENTINEL else x * k


def with_constant(x: Any, k: Any = 1000000) -> Any:
    return x + 1, k is 1000000, k == 1000000  # noqa: F632


def with_float(x: Any, k: Any = 2.5) -> Any:
    return x + 1, k is 2.5  # noqa: F632


def with_text(x: Any, k: Any = "mean value") -> Any:
    return x + 1, k is "mean value"  # noqa: F632


DEFAULTS: list[tuple[Callable[..., Any], list[Any]]] = [
    (with_default, [(), (5,), (7,), (), (int("1000000000"),), ()]),
    (with_constant, [(), (int("1000000"),), (), (3,), (4,), (), (int("1000000"),)]),
    (with_float, [(float("2.5"),), (), (3.0,), (4.0,), (), (float("2.5"),)]),
    (with_text, [(), ("".join(["mean", " value"]),), ("sum",), ()]),
]


@pytest.mark.parametrize(("fn", "rest"), DEFAULTS)
def test_a_default_or_a_constant_of_the_code(fn: Callable[..., Any], rest: list[Any]) -> None:
    agree(fn, [(X, *args) for args in rest])


def test_symbolic_numbers_that_are_one_object() -> None:
    subject = compiled(lambda x, a, b: (x + 1, a is b, a * 1 is a, a is a))
    for number in (1.5, 2.5, 3.5, 4.5):
        assert subject(X, number, number)[1:] == (True, False, True)
    assert len(subject.of_kind("entry")) == 3  # one for each symbolic number, and none for each call


def test_items_of_a_list_that_are_one_object() -> None:
    subject = compiled(lambda x, row: (x + 1, [v for v in row if v is row[0]]))
    for number in (1.5, 2.5, 3.5):
        assert subject(X, [number, number, number + 1])[1] == [number, number]


def test_a_small_integer_is_one_object_wherever_it_comes_from() -> None:
    agree(
        lambda x, a: (x + 1, a + 1 is a + 1, a * 1 is a, a is a - 0),
        [(X, int(str(n))) for n in (3, 4, 255, 256, 257, 300)],
    )


OF_NUMBERS = [
    "int(a)", "float(a)", "+a", "-(-a)", "abs(a)", "round(a)", "a + 0", "a * 1", "a.real", "a.conjugate()",
    "copy.copy(a)", "copy.deepcopy([a])[0]", "min(a, a + 1)", "max([a - 1, a])", "sum([a])", "(a or 5)", "[a][0]",
    "dict(k=a)['k']", "math.floor(a)", "math.trunc(a)", "a + 1 - 1", "a ** 1", "a // 1", "sorted([a, a])[0]",
    "type(a)(a)", "a.__pos__()", "getattr(a, 'real')", "a.__trunc__()", "a.__float__()", "[*{a}][0]", "[*{a: 0}][0]",
    "int(str(int(a)))",
]  # fmt: skip
OF_INTS = [
    "operator.index(a)", "a | 0", "a ^ 0", "a << 0", "a & -1", "a.numerator", "a.__index__()", "a.__int__()",
    "a.__round__()",
]  # fmt: skip
STRING_FUNCTIONS = [
    "type(a)(a)", "a[:]", "a + a[:0]", "a * 1", "a.strip()", "a[0:]", "a[0:len(a)]", "a.lstrip()", "copy.copy(a)",
    "copy.deepcopy(a)", "a.ljust(1)", "a.zfill(1)", "a.expandtabs()", "a[::1]", "a.center(0)", "a.splitlines()[0]",
    "a.split()[0]",
]  # fmt: skip
OF_STRS = [
    "f'{a}'", "''.join([a])", "a.replace('q', 'z')", "a.format()", "format(a)", "'%s' % a", "a.removeprefix('q')",
    "a.partition('q')[0]",
]  # fmt: skip
OF_TUPLES = [
    "tuple(a)", "a[:]", "a + ()", "() + a", "a * 1", "1 * a", "a * True", "copy.copy(a)", "copy.deepcopy(a)",
    "a[::1]", "(*a,)", "a * 2", "tuple.__new__(tuple, a)", "a.__mul__(1)", "a.__add__(())", "a + (1,)", "a[:-1]",
]  # fmt: skip
OF_FROZENSETS = [
    "frozenset(a)", "a.copy()", "copy.copy(a)", "copy.deepcopy(a)", "a | a", "a & a", "a.union()", "a - frozenset()",
    "a.difference()",
]  # fmt: skip
GRIDS: list[tuple[str, list[str], Callable[[int], Any]]] = [
    ("int", OF_NUMBERS + OF_INTS, lambda n: int(str(100000 + n))),
    ("small", OF_NUMBERS + OF_INTS, lambda n: int(str(7 + n))),
    ("negative", OF_NUMBERS + OF_INTS, lambda n: int(str(-70000 - n))),
    ("float", OF_NUMBERS, lambda n: float(str(2.5 + n))),
    ("str", STRING_FUNCTIONS + OF_STRS, lambda n: "".join(["ab", "cd", str(n)])),
    ("bytes", STRING_FUNCTIONS, lambda n: bytes([65, 66, 70 + n])),
    ("tuple", OF_TUPLES, lambda n: tuple([1, 2.5, n])),
    ("tuple of tensors", OF_TUPLES, lambda n: tuple([1, X, n])),
    ("frozenset", OF_FROZENSETS, lambda n: frozenset([1, 2.5, n])),
]
CASES = [pytest.param(text, make, id=f"{kind}: {text}") for kind, texts, make in GRIDS for text in texts]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("text", "make"), CASES)
def test_what_gives_its_argument_back(text: str, make: Callable[[int], Any]) -> None:
    names: dict[str, Any] = {"copy": copy, "math": math, "operator": operator}
    exec(f"def f(x, a):\n    try: return x + 1, {text} is a\n    except AttributeError as e: return x, str(e)", names)
    agree(names["f"], [(X, make(n)) for n in (0, 1, 2, 1)])
