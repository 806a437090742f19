"""Symbolic integers in subscripts of tensors, and their bits and methods: eager's results, one entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled, entries_for

import framesmith_frames as frames


def rows(n: int) -> torch.Tensor:
    """Return a tensor of n rows and three columns."""
    return torch.arange(3.0 * n).reshape(n, 3)


def stores(x: torch.Tensor, n: int) -> Any:
    y = x.clone()
    y[n - 1] = 7.0
    y[-n, 0] = 8
    y[n // 2, :2] += 1
    y[n // 2, [0, 2]] = torch.tensor([5.0, 6.0])
    y[None, n - 1, ..., 1] = y[:1, 0]
    y.__setitem__((n - 1, n // n), -1.0)
    return y


def views(x: torch.Tensor, n: int) -> Any:
    base = x.clone()
    view = base[n // 2]
    part = base[None, n // 2, 1:]
    view.add_(1)
    part.mul_(2)
    return base, view._is_view(), view, part, part.stride()


#: Programs of a tensor of n rows, and n. None specialises it.
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "last": lambda x, n: x[n - 1] * 2,
    "from the end": lambda x, n: (x[-n], x[-1, -(n % 3) - 1]),
    "size": lambda x, n: x[x.size(0) - 1],
    "several": lambda x, n: (x[n // 2, n % 3], x[n - 1][n % 3]),
    "beside numbers": lambda x, n: (x[n // 2, 1], x[:, None, n % 3], x[0, n % 3]),
    "beside slices": lambda x, n: (x[n // 2, 1:], x[: n - 1, n % 3], x[n // 2, ::2]),
    "beside None": lambda x, n: [
        (y, y.stride()) for y in (x[None, n // 2], x[n // 2, None], x[None, None, n - 1, :, None])
    ],
    "beside an ellipsis": lambda x, n: (x[..., n % 3], x[n - 1, ...], x[None, ..., n % 3], x[n // 2, ..., n % 3]),
    "beside lists": lambda x, n: (x[n // 2, [0, 1]], x[[0, 0], n % 3], x[None, n // 2, [2, 0]], x[[0], None, n % 3]),
    "beside tensors": lambda x, n: (x[torch.tensor(0), n % 3], x[torch.tensor([[0], [0]]), n % 3]),
    "beside slices and tensors": lambda x, n: x[None].expand(4, -1, -1)[1:, n // 2, torch.tensor([0, 2])],
    "beside masks": lambda x, n: x[x[:, 0] >= 0, n % 3],
    "beside a mask of two dimensions": lambda x, n: x[:, :, None].expand(-1, -1, 5)[x >= 2, n % 3],
    "beside truth": lambda x, n: (x[True, n // 2], x[n // 2, n > -1]),
    "a tuple of one": lambda x, n: (x[(n - 1,)], x.__getitem__(n // 2)),
    "stores": stores,
    "views": views,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_key_is_not_asked_for_its_number(name: str) -> None:
    calls = [(rows(n), n) for n in (5, 6, 7, 8, 9, 6)]
    whole = name not in ("beside masks", "beside a mask of two dimensions")
    counts = entries_for(PROGRAMS[name], calls, fullgraph=whole)
    assert len(set(counts[1:])) == 1
    assert len(set(entries_for(PROGRAMS[name], calls, fullgraph=whole, dynamic=True))) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_keys_of_all_sizes(name: str, dynamic: bool | None) -> None:
    entries_for(PROGRAMS[name], [(rows(n), n) for n in (5, 1, 6, 3, 2, 1, 12)], dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_through_keys(dynamic: bool | None) -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        y = x * 2
        y[n - 1] = y[0] * n
        return y[n // 2].sin() + y[n - 1, n % 3]

    frames.reset()
    subject = compiled(program, dynamic=dynamic, fullgraph=True)
    for n in (5, 6, 2, 1, 9):
        mine, own = rows(n).requires_grad_(), rows(n).requires_grad_()
        subject(mine, n).sum().backward()
        program(own, n).sum().backward()
        assert torch.equal(mine.grad, own.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_a_key_gives_shows_the_memory_of_its_tensor(dynamic: bool | None) -> None:
    frames.reset()
    subject = compiled(lambda x, n: (x[n // 2], x[None, n - 1, 1:]), dynamic=dynamic, fullgraph=True)
    for n in (5, 6, 9):
        x = rows(n)
        for mine, own in zip(subject(x, n), (x[n // 2], x[None, n - 1, 1:]), strict=True):
            assert mine._base is own._base
            assert mine.data_ptr() == own.data_ptr()
            assert mine.stride() == own.stride()


def test_a_counter_is_a_place() -> None:
    table, calls = rows(40), (3, 4, 5, 17, 39, 6)
    assert entries_for(lambda x, n: x[n] * 2, [(table, n) for n in calls], fullgraph=True) == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("place", [40, 41, -41, 0, 1, -1, -40])
def test_indices_in_and_out_of_range(place: int, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        try:
            x[n] = x[n] + 1
        except IndexError as error:
            return str(error)
        return x

    frames.reset()
    subject = compiled(program, dynamic=dynamic)
    for n in (3, 4, 5, place, 6):
        expected, found = program(rows(40), n), subject(rows(40), n)
        assert expected == found if isinstance(expected, str) else torch.equal(expected, found)


#: Uses of an integer; none of these specialises it.
OF_BITS: dict[str, Callable[[int], Any]] = {
    "lowest bits": lambda n: (n & 1, 7 & n, n & 0, (2**20 - 1) & n),
    "shifted right": lambda n: (n >> 1, n >> 0, n >> 30, -n >> 2),
    "shifted left": lambda n: (n << 1, n << 0, n << 10),
    "inverted": lambda n: (~n, ~n & 3),
    "in place": lambda n: [m := n, m := m >> 1, m := m << 2],
    "methods": lambda n: (n.__add__(2), n.__rsub__(2), n.__mul__(True), n.__lt__(4), n.__rlshift__ is None),
    "refusing methods": lambda n: (n.__add__(1.5), n.__eq__("a"), n.__ge__(2.5), n.__mul__("a")),  # type: ignore[operator]
    "a method kept": lambda n: [add(3) for add in [n.__add__]],
    "parts": lambda n: (n.real, n.imag, n.numerator, n.denominator),
}


@pytest.mark.parametrize("name", OF_BITS)
def test_bits_and_methods_of_integers(name: str) -> None:
    use = OF_BITS[name]
    program: Callable[..., Any] = lambda x, n: (x * n, use(n))  # noqa: E731
    x = torch.ones(3)
    assert entries_for(program, [(x, n) for n in (5, 6, -7, 100, -8, 3)], fullgraph=True) == [1, 2, 2, 2, 2, 2]
    entries_for(program, [(x, n) for n in (5, 0, -1, 1, 2**31, -(2**40), 7)], fullgraph=True, dynamic=True)


def test_bits_that_are_no_arithmetic_and_shifts_that_are_refused() -> None:
    def program(x: torch.Tensor, n: int, m: int) -> Any:
        try:
            return x * (n & 6), n | 3, n ^ 5, n & -4, n >> m, n << m
        except ValueError as error:
            return str(error)

    entries_for(program, [(torch.ones(3), n, m) for n, m in ((5, 2), (6, 3), (-7, 0), (9, -1), (3, 1), (4, -2))])


def test_methods_of_floats() -> None:
    program: Callable[..., Any] = lambda x, s: (x * s.__add__(1), s.__mul__(2.5), s.__lt__(3), s.__add__("a"))  # noqa: E731
    x = torch.ones(3)
    assert entries_for(program, [(x, s) for s in (0.5, 2.5, -3.5, 7.25)], fullgraph=True) == [1, 2, 2, 2]
