"""Slices of inputs written to, by symbolic and unbacked integers: one graph without breaks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith

Program = Callable[..., Any]


def _by_rows(cache: torch.Tensor, new: torch.Tensor, at: int) -> torch.Tensor:
    cache[:, at : at + new.shape[1]] = new
    return cache[:, : at + new.shape[1]].sum(1)


def _copied(cache: torch.Tensor, new: torch.Tensor, at: int) -> torch.Tensor:
    shown = cache.narrow(1, at, new.shape[1])
    shown.copy_(new)
    return cache * 2


def _transposed(cache: torch.Tensor, new: torch.Tensor, at: int) -> torch.Tensor:
    shown = cache.transpose(0, 1)[at : at + new.shape[1]]
    shown += new.transpose(0, 1)
    return cache.sum(0)


def _others(cache: torch.Tensor, new: torch.Tensor, at: int) -> torch.Tensor:
    cache[:, :2].zero_()
    shown = cache[:, at::2]
    shown.mul_(2)
    return cache[:, at] + new[:, 0]


CACHES: dict[str, Program] = {"by rows": _by_rows, "copied": _copied, "transposed": _transposed, "others": _others}
#: The layout in memory of a cache of so many entries.
LAYOUTS: dict[str, Callable[[int], torch.Tensor]] = {
    "matrix": lambda length: torch.ones(3, length),
    "three dimensions": lambda length: torch.ones(3, length, 11),
    "four": lambda length: torch.ones(3, length, 11, 13),
    "heads first": lambda length: torch.ones(3, 11, length, 13).transpose(1, 2),
    "a part of another": lambda length: torch.ones(3, 2 * length + 8, 11)[:, 4 : length + 4],
}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_that_is_filled(name: str, layout: str, dynamic: bool | None) -> None:
    framesmith.reset()
    program = CACHES[name]
    run = framesmith.compile(program, dynamic=dynamic, fullgraph=True, strict=True)
    ours, eagers = LAYOUTS[layout](64), LAYOUTS[layout](64)
    at = 0
    for count in (7, 1, 1, 1, 5, 2, 9, 1, 4):
        new = torch.randn(3, count, *ours.shape[2:])
        torch.testing.assert_close(run(ours, new, at), program(eagers, new, at))
        torch.testing.assert_close(ours, eagers)
        at += count
    assert framesmith.stats()["graphs"] <= 3


def _both_sides(x: torch.Tensor, n: int) -> torch.Tensor:
    x[:n].add_(1)
    x[n:].sub_(1)
    return x.sum(0)


def _a_column(x: torch.Tensor, n: int) -> torch.Tensor:
    x[n:, 0].sub_(1)
    x[n:, 1, 0].view(-1).mul_(3)
    return x * 2


def _flat(x: torch.Tensor, n: int) -> torch.Tensor:
    x[:n].view(-1).add_(x.shape[0])
    x[n:, 0, 1].reshape(-1).sub_(1)
    return x * 2


def _within(x: torch.Tensor, n: int) -> torch.Tensor:
    shown = x[1:, :n]
    shown.zero_()
    x[:, n:] = 5
    return x.sum(1)


def _every_other(x: torch.Tensor, n: int) -> torch.Tensor:
    x[:n:2] += 3
    x[:n:2] *= x[:n:2]
    return x * 1


UNBACKED: dict[str, Program] = {
    "both sides": _both_sides,
    "a column": _a_column,
    "flat": _flat,
    "within": _within,
    "every other": _every_other,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", UNBACKED)
def test_an_unbacked_slice(name: str, dynamic: bool | None) -> None:
    framesmith.reset()
    program = UNBACKED[name]
    run = framesmith.compile(lambda x, n: program(x, n.item()), dynamic=dynamic, fullgraph=True, strict=True)
    for shape in ((8, 5, 3), (8, 5, 3), (9, 7, 4)):
        for n in (2, 1, 0, 4, 20, -1):
            ours, eagers = (torch.linspace(-1, 1, 256)[: torch.Size(shape).numel()].view(shape).clone() for _ in "12")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                torch.testing.assert_close(run(ours, torch.tensor(n)), program(eagers, n))
            torch.testing.assert_close(ours, eagers)
    assert framesmith.stats()["graphs"] <= 2


def _expanded(x: torch.Tensor, n: int) -> torch.Tensor:
    x[:, :1].expand(-1, n, -1)[:, 1].add_(1)
    return x.sum()


def _unfolded(x: torch.Tensor, n: int) -> torch.Tensor:
    x.unfold(1, 3, 1)[:, n].add_(1)
    return x.sum()


def _beside_expanded(x: torch.Tensor, n: int) -> torch.Tensor:
    shown = x[:, :1].expand(-1, n, -1)
    x[:, :n].add_(1)
    return shown.sum()


@pytest.mark.parametrize("program", [_expanded, _unfolded, _beside_expanded])
def test_what_shows_an_element_twice_is_left_to_eager_mode(program: Program) -> None:
    framesmith.reset()
    run = framesmith.compile(program, dynamic=True)
    for shape, n in (((5, 8, 3), 2), ((4, 9, 6), 3)):
        ours, eagers = torch.ones(shape), torch.ones(shape)
        torch.testing.assert_close(run(ours, n), program(eagers, n))
        torch.testing.assert_close(ours, eagers)
    assert framesmith.stats()["breaks"]


def _moved(x: torch.Tensor, n: int) -> torch.Tensor:
    x[:, n : n + 3] = x[:, 0:3]
    return x * 1


def _moved_on(x: torch.Tensor, n: int) -> torch.Tensor:
    x[:, n:].copy_(x[:, : x.shape[1] - n])
    return x * 1


def _added_on(x: torch.Tensor, n: int) -> torch.Tensor:
    x[:, n:].add_(x[:, : x.shape[1] - n])
    return x * 1


def _rows(x: torch.Tensor, n: int) -> torch.Tensor:
    x[:n].add_(x[3 : 3 + n])
    return x * 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["as it is", "dynamic", "by data"])
@pytest.mark.parametrize("program", [_moved, _moved_on, _added_on, _rows])
def test_a_part_moved_within_the_same_memory(program: Program, kind: str) -> None:
    """Whether it overlaps is another thing at each call."""
    by_data = kind == "by data"
    for order in ((6, 5, 3, 2, 4), (2, 3, 6, 5, 4)):
        framesmith.reset()
        run = framesmith.compile(
            (lambda x, n: program(x, n.item())) if by_data else program, dynamic=True if kind == "dynamic" else None
        )
        for n in order:
            ours, eagers = torch.arange(70.0).view(7, 10), torch.arange(70.0).view(7, 10)
            if program is _rows and n > 3:  # torch refuses it of what is contiguous
                continue
            torch.testing.assert_close(run(ours, torch.tensor(n) if by_data else n), program(eagers, n))
            torch.testing.assert_close(ours, eagers)


def test_rows_that_come_to_overlap_are_refused_as_eager_mode_does() -> None:
    framesmith.reset()
    run = framesmith.compile(_rows, dynamic=True)
    torch.testing.assert_close(run(torch.ones(9, 2), 3), _rows(torch.ones(9, 2), 3))
    with pytest.raises(RuntimeError, match="unsupported operation"):
        run(torch.ones(9, 2), 5)


@pytest.mark.parametrize("program", [_moved, _moved_on, _added_on])
def test_parts_that_do_not_overlap_are_of_one_graph(program: Program) -> None:
    framesmith.reset()
    run = framesmith.compile(program, dynamic=True, fullgraph=True, strict=True)
    for columns, n in ((10, 6), (10, 7), (12, 8), (14, 9)):
        ours, eagers = torch.arange(4.0 * columns).view(4, -1), torch.arange(4.0 * columns).view(4, -1)
        torch.testing.assert_close(run(ours, n), program(eagers, n))
    assert framesmith.stats()["graphs"] == 1
