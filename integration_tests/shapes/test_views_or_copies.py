"""Operations that give a view for some sizes and a copy for others: as in eager mode, also for unbacked sizes.

What is written to a view is seen in what it is a view of, inside of the graph and behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith
from integration_tests.harness.sweeps import in_turn

#: Views of an unbacked number of rows, of six, or of columns.
MADE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "rows": lambda x, n: x[:n],
    "columns": lambda x, n: x[:, :n],
    "columns across": lambda x, n: x[:, :n].t(),
    "copied rows across": lambda x, n: x[:n].clone().t(),
    "a row expanded": lambda x, n: x[:1].expand(n, 4),
    "chosen rows": lambda x, n: x[torch.arange(6) < n].t(),
}
USED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda y: y.reshape(-1),
    "two rows": lambda y: y.reshape(2, -1),
    "its own sizes": lambda y: y.reshape(y.shape),
    "unsqueezed": lambda y: y.reshape(y.shape[0], 1, y.shape[1]),
    "contiguous": lambda y: y.contiguous(),
    "channels last": lambda y: y[None, None].contiguous(memory_format=torch.channels_last),
    "unflattened": lambda y: y.unflatten(0, (-1, 1)),
    "shuffled pixels": lambda y: F.pixel_shuffle(y[None, None], 1),
    "in a column": lambda y: torch.atleast_3d(y).reshape(-1, 1),
}


def seen(run: Callable[..., Any], count: int) -> list[torch.Tensor] | None:
    """The results, the input behind the call, and both once the first result is written to; None for an error."""
    x = torch.arange(24.0).view(6, 4)
    try:
        first, *others = run(x, torch.tensor(count))
    except (RuntimeError, ValueError):
        return None
    found = [x.clone(), first.clone(), *(one.clone() for one in others)]
    if not torch._debug_has_internal_overlap(first):
        first.add_(100)
    return [*found, first, x, *others]


def written(made: str, used: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, count: torch.Tensor) -> Any:
        y = MADE[made](x, count.item())  # type: ignore[arg-type]
        z = USED[used](y)
        z.add_(1)
        return y * 1, x.sum()

    return program


def returned(made: str, used: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, count: torch.Tensor) -> Any:
        return (USED[used](MADE[made](x, count.item())),)  # type: ignore[arg-type]

    return program


def returned_beside(made: str, used: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, count: torch.Tensor) -> Any:
        y = MADE[made](x * 2, count.item())  # type: ignore[arg-type]
        return USED[used](y), y

    return program


#: Uses of the view, and the sizes for which they are compiled: two of them in turn, all in long runs.
WAYS = ((written, None), (returned, True), (written, True), (returned_beside, None))


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("case", "way"), in_turn(itertools.product(USED, MADE), WAYS, each=2))
def test_a_view_or_a_copy_of_an_unbacked_size(case: tuple[str, str], way: tuple[Any, bool | None]) -> None:
    (used, made), (program, dynamic) = case, way
    framesmith.reset()
    fn = program(made, used)
    run = framesmith.compile(fn, dynamic=dynamic, strict=True)
    for count in (2, 3, 4, 1, 6, 0):
        found: list[Any] = [seen(one, count) for one in (fn, run)]
        assert (found[0] is None) == (found[1] is None), count
        torch.testing.assert_close(found[1], found[0], msg=lambda text, count=count: f"{count}: {text}")


@pytest.mark.parametrize("flat", [torch.flatten, torch.ravel, lambda y: y.to(memory_format=torch.contiguous_format)])
def test_other_ways_to_say_so(flat: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program(x: torch.Tensor, count: torch.Tensor) -> Any:
        return (flat(x[: count.item()].t()),)

    run = framesmith.compile(program, strict=True)
    for count in (2, 1, 6, 0):
        torch.testing.assert_close(seen(run, count), seen(program, count))


def test_rows_that_are_said_to_be_any_number() -> None:
    run = framesmith.compile(lambda x: x.t().reshape(2, -1), dynamic=True, strict=True)
    for rows in (5, 3, 1):
        x = torch.zeros(rows, 2)
        framesmith.mark_unbacked(x, 0)
        run(x).add_(1)
        assert x.sum() == 2 * rows


def test_what_is_checked_leaves_one_graph() -> None:
    run = framesmith.compile(lambda x, n: x[: n.item()].t().reshape(-1) * 2, fullgraph=True, strict=True)
    x = torch.randn(6, 4)
    for count in (3, 2, 5):
        assert torch.equal(run(x, torch.tensor(count)), x[:count].t().reshape(-1) * 2)


def test_what_cannot_be_a_copy_where_it_may_be_done_at_all() -> None:
    """Of an even number of columns alone two rows can be made, and those of each row lie in order: it is a view."""

    def program(x: torch.Tensor, count: torch.Tensor) -> Any:
        y = x[:, count.item() :].reshape(6, 2, -1)
        y.mul_(2)
        return y * 1, x.sum()

    explained = framesmith.explain(program, torch.ones(6, 4), torch.tensor(2))
    assert [event.broken.kind.id for event in explained.of_kind("break") if event.broken is not None] == [
        "view-or-copy"
    ]
    run = framesmith.compile(program, strict=True)
    for count in (2, 0, 3, 2):
        torch.testing.assert_close(seen(run, count), seen(program, count))


#: Windows that leave out some elements, meet, or do not overlap, the last one at the end or before.
WINDOWS = ((5, 1, 3), (7, 1, 2), (6, 2, 2), (7, 2, 2), (8, 2, 3), (7, 3, 3))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("inside", [False, True], ids=["input", "intermediate"])
def test_what_is_written_through_windows(inside: bool, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, size: int, step: int) -> torch.Tensor:
        y = x.clone() if inside else x
        y.unfold(0, size, step).mul_(3)
        return y

    for length, size, step in WINDOWS:
        framesmith.reset()
        run = framesmith.compile(program, dynamic=dynamic, strict=True)
        x, other = -torch.arange(float(length)), -torch.arange(float(length))
        found, expected = run(x, size, step), program(other, size, step)
        assert torch.equal(found, expected)
        assert torch.equal(torch.signbit(found), torch.signbit(expected))
        assert torch.equal(x, other)
