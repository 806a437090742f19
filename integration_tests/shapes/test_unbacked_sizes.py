"""Unbacked numbers and sizes through the default backend: one whole graph, right at five inputs each.

Among the five are ones whose result is empty. Each case runs without gradients, and with them where it has any.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith
from framesmith_dynamo import EagerNotAllowed

Case = tuple[Callable[..., Any], list[tuple[torch.Tensor, ...]]]


def around(*below: int) -> list[tuple[torch.Tensor, ...]]:
    """Six numbers, the last of which are above zero: none, if six or more are to be below."""
    return [(torch.arange(6.0) - k + 0.5,) for k in below]


def with_counts(rows: int, *counts: list[int]) -> list[tuple[torch.Tensor, ...]]:
    """Rows, and a tensor of numbers."""
    return [(torch.randn(rows, 3), torch.tensor(each)) for each in counts]


def with_number(*numbers: int) -> list[tuple[torch.Tensor, ...]]:
    """Six rows, and a tensor that holds one number."""
    return [(torch.randn(6, 3), torch.tensor(n)) for n in numbers]


def six_factors(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Of each a derivative asks by itself."""
    total = x = x.double()
    for at in range(6):
        total = torch.add(total, (x * at).sin(), alpha=(n * (at + 2)).item())
    return total


SOME = (3, 0, 6, 5, 1)
CASES: dict[str, Case] = {
    "item": (lambda x, n: (x * n.item() + 1, n.item() + 1), with_number(2, 0, 1, -3, 7)),
    "item divided by what is negative": (
        lambda x, n: (x * (n.item() // -3), n.expand(2) * (n.item() % -3), n * (-(n.item() > 2))),
        with_number(2, 0, 1, -3, 7),
    ),
    "item as a factor": (
        lambda x, n: (
            x.sin().add(x.cos(), alpha=n.item()) + torch.baddbmm(x[None], x[None], x[None, :3], beta=n.item())[0]
        ),
        with_number(2, 0, 3, -3, 7),
    ),
    "six factors": (six_factors, with_number(2, 0, 3, -3, 7)),
    "item of a float": (lambda x: x * x.detach().sum().item(), around(*SOME)),
    "int": (lambda x, n: (x[: int(n)] * 2, x.new_ones(int(n)).sum()), with_number(3, 0, 6, 2, 1)),
    "float": (lambda x: x * float(x.detach().mean()), around(*SOME)),
    "tolist": (lambda x, n: x * n.tolist()[1] + n.tolist()[0], with_counts(4, [1, 2], [0, 0], [3, 1], [5, 9], [1, 1])),
    "nonzero": (lambda x: ((x > 0).nonzero() * 2, x[(x > 0).nonzero()[:, 0]]), around(*SOME)),
    "nonzero as a tuple": (lambda x: x[torch.nonzero(x > 0, as_tuple=True)].exp(), around(*SOME)),
    "masked_select": (lambda x: torch.masked_select(x, x > 0) * 2, around(*SOME)),
    "mask": (lambda x: (x[x > 0].exp(), x[x > 0].sum()), around(*SOME)),
    "mask of rows": (
        lambda x, n: x[n > 0].sin(),
        with_counts(3, [1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]),
    ),
    "unique": (lambda x: torch.unique(x.detach().round()) * 2, around(*SOME)),
    "unique of a mask": (
        lambda x: torch.unique(x.detach()[x > 0], return_inverse=True, return_counts=True),
        around(*SOME),
    ),
    "repeat_interleave": (
        lambda x, n: torch.repeat_interleave(x, n, dim=0) * 2,
        with_counts(3, [1, 2, 3], [0, 0, 0], [4, 0, 1], [1, 1, 1], [0, 1, 0]),
    ),
    "split": (
        lambda x, n: [part.sum() for part in torch.split(x, n.tolist())],
        with_counts(6, [1, 2, 3], [0, 0, 6], [6, 0, 0], [2, 2, 2], [0, 6, 0]),
    ),
    "split of three": (
        lambda x, n: [part * 2 for part in x.split([n[0].item(), n[1].item(), n[2].item()])],
        with_counts(6, [1, 2, 3], [0, 0, 6], [6, 0, 0], [2, 2, 2], [0, 6, 0]),
    ),
}


def flat(found: Any) -> list[Any]:
    """Return the results of a case, containers flattened."""
    return [each for part in found for each in flat(part)] if isinstance(found, tuple | list) else [found]


def outcome(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], gradients: bool) -> list[Any]:
    """The results of a call, and the gradient of what is floating."""
    first = inputs[0].clone().requires_grad_(gradients)
    found = flat(fn(first, *inputs[1:]))
    wanted = [each for each in found if isinstance(each, torch.Tensor) and each.requires_grad]
    if wanted:
        torch.manual_seed(1)
        found += torch.autograd.grad(wanted, first, [torch.randn(each.shape) for each in wanted])
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_all_data(name: str, gradients: bool) -> None:
    framesmith.reset()
    fn, calls = CASES[name]
    compiled = framesmith.compile(fn, fullgraph=True, strict=True)
    for inputs in calls:
        expected, actual = outcome(fn, inputs, gradients), outcome(compiled, inputs, gradients)
        assert len(expected) == len(actual)
        for one, other in zip(expected, actual, strict=True):
            assert type(one) is type(other)
            torch.testing.assert_close(other, one)
    found = framesmith.stats()
    assert (found["frames_compiled"], found["graphs"], found["breaks"]) == (1, 1, 0), found


def checked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    chosen = x[x > 0]
    torch._check(chosen.shape[0] == 3)
    return chosen + y


def made(x: torch.Tensor, make: Callable[[torch.Tensor], Any], y: torch.Tensor) -> torch.Tensor:
    """A computation on the numbers above zero raises an error of its own, and its result is not used."""
    make(x[x > 0])
    return y * 2


ROW, ROWS = torch.ones(3), torch.ones(2, 3)
#: Operations that are valid for three numbers above zero, and perhaps for one.
FITTING: dict[str, Callable[..., Any]] = {
    "added": lambda x: x[x > 0] + ROWS,
    "added in place": lambda x: ROWS.clone().add_(x[x > 0]),
    "checked": lambda x: checked(x, ROWS),
    "expanded": lambda x: x[x > 0].expand(2, 3).exp(),
    "as a row": lambda x: x[x > 0].view(3) * 2,
    "selected": lambda x: x[x > 0].masked_select(ROW > 0) * 2,
    "stacked": lambda x: torch.stack([x[x > 0], ROW]),
    "narrowed": lambda x: x.narrow(0, (x > 0).sum(), 3) * 2,
    "added, unread": lambda x: made(x, lambda chosen: chosen + ROWS, x),
    "broadcast, unread": lambda x: made(x, lambda chosen: torch.broadcast_tensors(chosen, ROWS), x),
    "expanded, unread": lambda x: made(x, lambda chosen: chosen.expand(2, 3), x),
    "as a row, unread": lambda x: made(x, lambda chosen: chosen.view(3), x),
    "stacked, unread": lambda x: made(x, lambda chosen: torch.stack([chosen, ROW]), x),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", FITTING)
def test_sizes_that_have_to_be_others(name: str, gradients: bool, backend: str) -> None:
    """They are checked when the graph runs, before anything is computed with them; what fails is eager mode's."""
    framesmith.reset()
    fn = FITTING[name]
    compiled = framesmith.compile(fn, strict=True, backend=backend)
    seen = []
    for (inputs,) in around(3, 4, 5, 6, 2, 3):
        for run in (fn, compiled):
            try:
                seen.append([each.tolist() for each in outcome(run, (inputs,), gradients)])
            except RuntimeError as error:
                seen.append([str(error)])
    for expected, actual in zip(seen[::2], seen[1::2], strict=True):
        if isinstance(expected[0], str):
            assert actual == expected
        else:
            torch.testing.assert_close([torch.tensor(one) for one in actual], [torch.tensor(one) for one in expected])
    assert any(isinstance(one[0], str) for one in seen)
    assert framesmith.stats()["graphs"] > 0


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64], ids=str)
def test_numbers_that_a_type_cannot_hold_are_refused(dtype: torch.dtype, dynamic: bool | None) -> None:
    """Those that change between calls, and unbacked ones."""

    def given(x: torch.Tensor, n: float) -> torch.Tensor:
        return torch.full((2,), n, dtype=dtype) + x.sum().to(dtype)

    def reported(x: torch.Tensor, n: float) -> torch.Tensor:
        return torch.full((2,), (x.to(torch.int64).sum() * int(n)).item(), dtype=dtype)

    numbers = (2.5, 3.5, 300.0, -0.5, -300.0, 1e30, float("inf"), float("nan"), 3, 4, 200, -5, -200, 300, -300)
    for fn in (given, reported):
        compiled = framesmith.compile(fn, strict=True, dynamic=dynamic, recompile_limit=30)
        for n in numbers if fn is given else numbers[8:]:
            seen = []
            for run in (fn, compiled):
                try:
                    seen.append(run(torch.ones(2), n).tolist())
                except RuntimeError as error:
                    seen.append([str(error)])
            assert seen[0] == seen[1]


def test_a_float_beside_an_unbacked_factor_may_change() -> None:
    """A derivative's condition on the factor implies nothing about the float."""
    framesmith.reset()

    def program(x: torch.Tensor, factor: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.add(x, x.sin(), alpha=factor.item()) * scale

    run = framesmith.compile(program, strict=True)
    for at in range(6):
        x, inputs = torch.linspace(-1, 1, 5, requires_grad=True), (torch.tensor(2.5 + at), 0.5 + at / 8)
        results = [torch.autograd.grad(each(x, *inputs).sum(), x)[0] for each in (program, run)]
        torch.testing.assert_close(*results)
    assert framesmith.stats()["graphs"] == 2


def by_factor(x: torch.Tensor, y: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return torch.add(x, x.sin(), alpha=factor.item()) + y


def after_a_change(x: torch.Tensor, y: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    y.add_(1)
    return by_factor(x, y, factor)


def beside_random_numbers(x: torch.Tensor, y: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    y.mul_(torch.rand_like(y))
    return by_factor(torch.nn.functional.dropout(x, 0.5), y, factor)


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"verify": 9}], ids=["as it is", "strict", "verified"])
@pytest.mark.parametrize("program", [by_factor, after_a_change, beside_random_numbers])
def test_a_factor_that_is_what_it_was_taken_not_to_be(program: Callable[..., Any], options: dict[str, Any]) -> None:
    """Torch has a derivative of its own for a factor of 1: such a call is no failure, and runs eagerly."""
    framesmith.reset()
    run = framesmith.compile(program, **options)
    reported: list[str] = []
    for factor in (2.5, 1.0, 3.0, 1.0):
        found = []
        for each in (program, run):
            torch.manual_seed(0)
            x, y = torch.linspace(-1, 1, 5, requires_grad=True), torch.ones(5)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = each(x, y, torch.tensor(factor))
            result.sum().backward()
            found.append((result.detach(), y, x.grad, torch.rand(1)))
            reported += [str(one.message) for one in caught]
        torch.testing.assert_close(*found)
    assert (
        len(reported) == 1
        and "not as compiled code assumes runs eagerly: zuf0, an unbacked number, is not 1.0" in reported[0]
    )
    stats = framesmith.stats()
    assert (stats["frames_run_once"], stats["frames_failed"], stats["graphs"]) == (2, 0, 1)


def _written_before(x, t):
    n = t.item()
    x.mul_(2)
    return x[:n] + torch.ones(4)


def _written_behind(x, t):
    y = x[: t.item()]
    x.mul_(2)
    return y + torch.ones(4)


def _itself_written(x, t):
    y = x[: t.item()]
    y.mul_(2)
    return y + torch.ones(4)


@pytest.mark.parametrize("program", [_written_before, _written_behind, _itself_written])
def test_a_slice_of_unbacked_length_of_what_is_written(program):
    """Made again of what is there after the write, it is as long as the program has found out."""
    compiled = framesmith.compile(program, fullgraph=True, strict=True)
    for length in (4, 4, 1, 3):
        x = torch.randn(8)
        mine, count = x.clone(), torch.tensor(length)
        if length == 4:
            torch.testing.assert_close(compiled(mine, count), program(x, count))
            assert torch.equal(mine, x)
            continue
        with pytest.raises(EagerNotAllowed if length == 1 else RuntimeError):
            compiled(mine, count)
