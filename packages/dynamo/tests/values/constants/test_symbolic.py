# ruff: noqa: E501
"""Symbolic numbers from all sources and in all uses: eager mode's results at five values each."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

#: Values of the number: no program may confuse them.
VALUES = (5, 7, 0, 1, 9)
X = torch.arange(40.0).reshape(10, 4)
CONSTANT = 3


class Holder:
    """An object with a number, and methods that use it."""

    scale = 2

    def __init__(self, n: int) -> None:
        self.n = n

    @property
    def doubled(self) -> int:
        return self.n * self.scale


class Sized(torch.nn.Module):
    """A module with a number."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n


STATE = SimpleNamespace(n=0)

#: The source of the number: a function of `make`'s result for a value, and `make`.
SOURCES: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "argument": (lambda o: o, lambda n: n),
    "size": (lambda o: o.shape[0], lambda n: X[:1].expand(n, 4).clone()),
    "length": (lambda o: len(o), lambda n: torch.ones(n, 2)),
    "numel": (lambda o: o.numel() // 2, lambda n: torch.ones(n, 2)),
    "stride": (lambda o: o.stride(0) - 1, lambda n: torch.ones(3, n + 1)),
    "attribute": (lambda o: o.n, Holder),
    "property": (lambda o: o.doubled // 2, Holder),
    "module": (lambda o: o.n, Sized),
    "list": (lambda o: o[1], lambda n: [0, n]),
    "dict": (lambda o: o["n"], lambda n: {"n": n}),
    "tuple": (lambda o: o[0], lambda n: (n, "x")),
    "float": (lambda o: int(o), float),
    "data": (lambda o: int(o.item()), lambda n: torch.tensor(n)),
}


def branches(x: Any, n: int) -> Any:
    if n > 6:
        return x + n
    if n == 1 or not n:
        return x - 1
    return x * n


def loop(x: Any, n: int) -> Any:
    total = x
    for i in range(n):
        total = total + x * i
    return total


def while_loop(x: Any, n: int) -> Any:
    i = 0
    while i < n:
        x, i = x + i, i + 2
    return x, i


def accumulates(x: Any, n: int) -> Any:
    counts = {"a": n}
    counts["a"] += 1
    items = [n]
    items.append(n + counts["a"])
    items.extend((n, -n))
    return x * items[-1], counts, items


def closure(x: Any, n: int) -> Any:
    def inner(y: Any) -> Any:
        return y * n + captured

    captured = n - 1
    return inner(x), inner


def unpacks(x: Any, n: int) -> Any:
    first, *rest = (n, n + 1, n + 2)
    return x + first, rest, dict(enumerate(rest))


def raises(x: Any, n: int) -> Any:
    try:
        return x / (10 // n)
    except ZeroDivisionError as error:
        return x - 1, str(error)


def asserts(x: Any, n: int) -> Any:
    assert n >= 0, f"negative: {n}"
    return x + n


def matches(x: Any, n: int) -> Any:
    match n:
        case 0:
            return x
        case 5 | 7:
            return x + n
        case int(k) if k > 8:
            return x - k
    return x * 2


def breaks(x: Any, n: int) -> Any:
    y = x + n
    torch._dynamo.graph_break()
    return y * n, n


class Counted:
    """An object with a given length, possibly negative."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


class CountedClass(type):
    """Classes whose length is a class attribute."""

    n = 0

    def __len__(cls) -> int:
        return cls.n


class OfLength(metaclass=CountedClass):
    """A class that has a length."""


def length_of_a_class(x: Any, n: int) -> Any:
    CountedClass.n = n - 6
    return x + 1, len(OfLength)


#: Uses of the number.
USES: dict[str, Callable[[Any, Any], Any]] = {
    "tensor arithmetic": lambda x, n: (x + n, n - x, x * n, x / (n + 1), x // (n + 2), x ** (n % 3), x % (n + 1)),
    "arithmetic": lambda x, n: (x * (n + 2) * 3 - n // 2 + n % 3, n * n, n - 1, -n, +n, ~n),
    "float arithmetic": lambda x, n: (x * (n / 3 + 0.1), n * 0.5, 0.5 - n, n / 2, (n + 0.25) // 1, n % 2.5),
    "powers": lambda x, n: (x + n**2, 2**n, n**0, n**0.5, (n + 1) ** -1),
    "bits": lambda x, n: (x * (n & 3), n | 8, n ^ 5, n << 2, n >> 1, 1 << n),
    "comparisons": lambda x, n: (x * (n > 3), n < 7, n == 5, n != 9, n >= CONSTANT, n <= 0, 3 < n < 8, n in (1, 5)),
    "boolean operators": lambda x, n: (x + (n or 4), n and 2, not n, bool(n), x * (n > 1 and n < 8)),
    "branches": branches,
    "loop": loop,
    "while": while_loop,
    "abs min max": lambda x, n: (x * abs(n - 6), min(n, 4), max(n, 6, n + 1), min([n, 3]), sum([n, 1, n], 2)),
    "divmod round": lambda x, n: (x * divmod(n, 3)[0], divmod(n, 3), round(n / 3, 2), round(n), round(n / 4)),
    "int float": lambda x, n: (x * float(n), int(n), int(n / 2), float(n) / 3, complex(n), n.__index__()),
    "math": lambda x, n: (x / math.sqrt(n + 1), math.floor(n / 2), math.ceil(n / 3), math.log2(n + 1), math.gcd(n, 6)),
    "more math": lambda x, n: (x * math.exp(-n), math.isqrt(n), math.cos(n), math.pow(n, 2), math.prod([n, 2]), math.pi * n),
    "operator": lambda x, n: (operator.mul(x, n), operator.floordiv(n, 2), operator.index(n), operator.lt(n, 4)),
    "text": lambda x, n: (x + n, f"{n}", f"{n:03d}", "%d" % n, str(n), repr(n), "{}".format(n), bin(n), hex(n), chr(n + 65)),  # noqa: UP031, UP032
    "hash": lambda x, n: (x + 1, {n: "a", 5: "b"}, {n, 5}, hash(n), n in {5: 0}),
    "isinstance": lambda x, n: (x * n if isinstance(n, int) else x, type(n), isinstance(n, (float, bool)), callable(n)),
    "methods": lambda x, n: (x * n.bit_length(), n.real, n.numerator, n.conjugate(), (n + 1).to_bytes(2, "big")),
    "range": lambda x, n: (x + len(range(n)), list(range(n, 10)), range(0, n, 2), sum(range(n))),
    "sequences": lambda x, n: (x + len([0] * n), (1, 2) * n, "ab" * n, [1, 2, 3][n % 3], list(range(9))[:n], list(range(9))[n:]),
    "length": lambda x, n: (x + 1, len(Counted(n)), bool(Counted(n)), len(Counted(n - 6))),
    "truth by length": lambda x, n: (x + 1, not Counted(n - 6)),
    "length of a class": length_of_a_class,
    "reversed": lambda x, n: (x + 1, list(reversed(Counted(n - 6)))),
    "domains": lambda x, n: (x + 1, math.sqrt(n - 1), (n - 6) ** 0.5, math.log(n)),
    "accumulates": accumulates,
    "closure": closure,
    "unpacks": unpacks,
    "raises": raises,
    "asserts": asserts,
    "matches": matches,
    "breaks": breaks,
    "slices": lambda x, n: (x[:n], x[n:], x[: n // 2], x[1:, : min(n, 3)], x[::-1] if n < 0 else x[-(n + 1) :]),
    "index": lambda x, n: (x[n], x[n, 1], x[n - 1], x.select(0, n), x.narrow(0, 0, n), x[[n, 0]]),
    "factories": lambda x, n: (torch.zeros(n), torch.ones(n, 2), torch.arange(n), torch.full((2, n), n), torch.eye(n), x.new_zeros(n)),
    "shapes": lambda x, n: (torch.ones(n, 4).reshape(n * 4).shape, torch.ones(n, 4).view(-1).sum() + n, x.expand(n, 10, 4).shape),
    "sizes": lambda x, n: (torch.Size([n, 2]), torch.Size([n, 2]).numel(), torch.zeros(n, 3).size(), torch.zeros(n).numel()),
    "padding": lambda x, n: (torch.nn.functional.pad(x, (0, n)), torch.nn.functional.pad(x, (n, 1), value=n).sum(), x.repeat(n, 1).shape),
    "cat": lambda x, n: (torch.cat([x, torch.ones(n, 4)]), torch.stack([x[0]] * 2).sum() + n, torch.cat([x[:n], x[n:]])),
    "split": lambda x, n: ([part.sum() for part in torch.split(x, [n, 10 - n])], x.unflatten(0, (-1, 2)).shape, x.flatten().shape),
    "where": lambda x, n: (torch.where(x > n, x, n), x.clamp(max=n), x.clamp(min=n / 2), x.masked_fill(x < n, n)),
    "reductions": lambda x, n: (x[:n].sum(0), x[: n + 1].mean(), x[: n + 1].max(), x.sum(0) / n if n else x, x[:n].softmax(-1)),
    "rolls": lambda x, n: (x.roll(n, 0), torch.roll(x, (n, 1), (0, 1)), x.triu(n - 5), x.diagonal(n - 6)),
    "scalars": lambda x, n: (torch.add(x, x, alpha=n), torch.tensor(n), torch.tensor([n, 1]), torch.as_tensor(n) + x, x.fill_(n).sum()),
    "linear": lambda x, n: (x[:n] @ torch.ones(4, n), torch.ones(n, 4) @ x.T, torch.nn.functional.linear(x[:n], torch.ones(3, 4))),
    "in place": lambda x, n: (x.clone().add_(n).mul_(n + 0.5), x[:n].clone().zero_().shape),
    "keyword": lambda x, n: (x.sum(dim=n % 2), x.softmax(dim=-1 - n % 2), torch.topk(x.flatten(), k=n).values, x.cumsum(n % 2)),
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("source", SOURCES)
def test_equals_eager(source: str, use: str) -> None:
    find, make = SOURCES[source]
    do = USES[use]

    def program(x: Any, o: Any) -> Any:
        return do(x, find(o))

    frames.reset()
    subject = compiled(program, recompile_limit=20)
    for value in VALUES * 2:
        found, expected = outcome(subject, value, make), outcome(program, value, make)
        assert same(found, expected), f"n = {value}: compiled {found}, eager {expected}"


def outcome(function: Callable[..., Any], value: int, make: Callable[[int], Any]) -> Any:
    """Return the result of a call, or its exception."""
    try:
        return function(X.clone(), make(value))
    except Exception as error:
        return type(error), [line for line in str(error).splitlines()[:1] if "0x" not in line]


MADE: dict[str, Callable[[int, float], torch.Tensor]] = {
    "integer": lambda n, v: torch.tensor(n),
    "float": lambda n, v: torch.tensor(v),
    "nested": lambda n, v: torch.tensor([[n, 1.5], [v, 2]]),
    "dtype": lambda n, v: torch.tensor((n, 2), dtype=torch.float32, device="cpu"),
    "half": lambda n, v: torch.tensor([v], dtype=torch.float16),
    "beyond": lambda n, v: torch.tensor(v * 1e300),
    "as_tensor": lambda n, v: torch.as_tensor(n, dtype=torch.float64),
}


@pytest.mark.parametrize("name", MADE)
def test_a_tensor_made_of_numbers_is_compiled_once(name: str) -> None:
    make = MADE[name]
    frames.reset()
    subject = compiled(make, dynamic=True)
    for n, v in ((2, 2.5), (7, -1.5), (40, 1e30)):
        found, expected = subject(n, v), make(n, v)
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    assert len(frames.entries(make.__code__)) == 1


def test_a_tensor_of_numbers_that_do_not_fit_raises() -> None:
    def make(n: int) -> torch.Tensor:
        return torch.tensor([n, 1], dtype=torch.int8)

    frames.reset()
    subject = compiled(make, dynamic=True)
    assert torch.equal(subject(5), make(5))
    with pytest.raises(RuntimeError, match="overflow"):
        subject(300)


def test_numbers_beyond_those_of_graphs_are_pythons() -> None:
    """A graph computes in 64 bits: large integers are specialised, whatever entries exist."""

    def use(x: torch.Tensor, n: int) -> tuple[object, ...]:
        return x * (n // 3), n * n, n == n + 0.0, (n - 1) * (n + 1)

    run = compiled(use, dynamic=True)
    for n in (3, 6, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)):
        x = torch.ones(2, dtype=torch.float64)
        expected, found = use(x, n), run(x, n)
        assert torch.equal(expected[0], found[0]) and expected[1:] == found[1:], n


def test_there_are_two_zeros() -> None:
    def use(x: torch.Tensor, n: float) -> tuple[object, ...]:
        return x / abs(n), abs(n)

    run = compiled(use, dynamic=True)
    for n in (0.3, 0.7, -2.5, -0.0, 0.0, float("inf")):
        x = torch.tensor([-1.0, 1.0])
        expected, found = use(x, n), run(x, n)
        assert torch.equal(expected[0], found[0]) and repr(expected[1]) == repr(found[1]), n


COMPUTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "an input's size and one computed of it": lambda x: f"{x.shape[0] + round(x.shape[0])}",
    "the same, of both signs": lambda x: (f"{2 * x.shape[0] - round(x.shape[0])}", x.shape[0], x + round(x.shape[0])),
    "equal": lambda x: x * 2 if round(x.shape[0]) == x.shape[0] else x,
    "equal, with another size": lambda x: x * 2 if round(x.shape[0]) + x.shape[1] == x.shape[0] + 3 else x,
    "two computed ones": lambda x: (f"{round(x.shape[0]) - round(x.shape[1])}", round(x.shape[0]) == round(x.shape[1])),
    "one computed of another": lambda x: (round(round(x.shape[0])) == round(x.shape[0]), f"{round(round(x.shape[0]))}"),
    "a size of a computed one": lambda x: torch.zeros(round(int(x.shape[0] / 2))) + (round(x.shape[0]) == x.shape[0]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_known_of_numbers_and_of_what_is_computed_of_them(name: str, dynamic: bool | None) -> None:
    """torch solves such relations for one of the two; the guard must be about the inputs of a call."""
    program = COMPUTED[name]
    frames.reset()
    run = compiled(program, dynamic=dynamic, recompile_limit=20)
    for rows in (4, 6, 5, 1, 0, 9, 4, 3):
        assert same(run(torch.ones(rows, 3)), program(torch.ones(rows, 3))), rows


TYPED: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "a truth compared with truths": lambda x, n: ((n > 5) == True, (n > 5) != False, True == (n > 5)),  # noqa: E712
    "a truth compared with numbers": lambda x, n: ((n > 5) == 1, (n > 5) < 1, (n > 5) >= n, 0.5 < (n > 5)),
    "two truths": lambda x, n: ((n > 5) == (n > 7), (n > 5) <= (n < 9), (n > 5) is (n > 5)),
    "operators of a truth": lambda x, n: (abs(n > 5), -(n > 5), +(n > 5), ~(n > 5), (n > 5) + n, x * (n > 5)),
    "data divided by what is negative": lambda x, n: (
        isinstance(x.sum().item() // -3, int),
        isinstance(x.sum().item() % -n, int),
        x * (x.sum().item() // -n),
    ),
    "a truth of data": lambda x, n: (isinstance(-(x.sum().item() > 12), int), x * -(x.sum().item() > 12)),
    "a power that may be a float": lambda x, n: (
        isinstance(2 ** (n - 4), int),
        torch.tensor(2 ** (n - 4)),
        x * 2 ** (n - 4),
    ),
    "a power that may be complex": lambda x, n: (
        isinstance((n - 3.5) ** 0.5, float),
        type((n - 3.5) ** 0.5),
        x * (n - 3.5) ** 0.5,
    ),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TYPED)
def test_numbers_have_the_types_that_python_gives(name: str, dynamic: bool | None) -> None:
    program = TYPED[name]
    frames.reset()
    run = compiled(program, dynamic=dynamic, recompile_limit=20)
    for n in (5, 7, 6, 2, 9, 3):
        x = torch.arange(n, n + 4)
        assert same(run(x, n), program(x, n)), n
