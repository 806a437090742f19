"""Indexing by symbolic and unbacked integers: as in eager mode, with one entry for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith


def _put(key: Callable[[torch.Tensor, int], Any], value: Callable[[torch.Tensor, int], Any]) -> Any:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x * 1
        y[key(y, n)] = value(y, n)
        return y

    return program


def _added(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x * 1
    y[n] += y[0]
    y[n, 2:] *= 3
    return y


#: Of an 8 x 4 x 8 tensor and an integer below 8.
PROGRAMS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "alone": lambda x, n: x[n],
    "from the end": lambda x, n: x[-n],
    "in a tuple": lambda x, n: x[(n,)],
    "before a slice": lambda x, n: x[n, 1:],
    "two": lambda x, n: x[n, 1, n - 1],
    "behind an ellipsis": lambda x, n: x[..., n],
    "before an ellipsis": lambda x, n: x[n, ...],
    "around an ellipsis": lambda x, n: x[n, ..., n],
    "beside new dimensions": lambda x, n: x[None, n, None, :2],
    "before indices": lambda x, n: x[n, torch.tensor([0, 3])],
    "between indices": lambda x, n: x.transpose(1, 2)[torch.tensor([0, 1]), n, torch.tensor([1, 2])],
    "behind a mask": lambda x, n: x[x[:, :, 0] > 0, n],
    "beside a truth": lambda x, n: x[True, n],
    "of an item": lambda x, n: x[n][:, n - 1],
    "a tuple of the caller's": lambda x, n: (lambda key: x[key])((n, 1)),
    "put": _put(lambda y, n: n, lambda y, n: 7.0),
    "a row put": _put(lambda y, n: n, lambda y, n: y[None, 0] * 2),
    "a column put": _put(lambda y, n: (slice(None), 2, n), lambda y, n: n),
    "put at indices": _put(lambda y, n: (torch.tensor([0, 5]), 1, n), lambda y, n: y[0, :2, 0]),
    "put where a mask is true": _put(lambda y, n: (y[:, :, 0] > 0, n), lambda y, n: n * 0.5),
    "added": _added,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_entry_for_all_integers(name: str, gradients: bool) -> None:
    run = framesmith.compile(PROGRAMS[name], dynamic=True, strict=True, fullgraph=True)
    framesmith.reset()
    for n in (2, 3, 5, 7):
        found = []
        for call in (PROGRAMS[name], run):
            x = torch.linspace(-1, 1, 256).sin().view(8, 4, 8).requires_grad_(gradients)
            got = call(x, n)
            if gradients:
                got.square().sum().backward()
            within = got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            strides = [stride for stride, length in zip(got.stride(), got.shape, strict=True) if length > 1]
            found.append((got.detach(), strides, x.grad, within))
        torch.testing.assert_close(found[1], found[0])
    assert framesmith.stats()["frames_compiled"] == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unbacked_integer(name: str) -> None:
    program = PROGRAMS[name]
    framesmith.reset()
    run = framesmith.compile(lambda x, n: program(x, n.item()), strict=True)
    x = torch.linspace(-1, 1, 256).sin().view(8, 4, 8)
    for n in (2, 7, 1):
        torch.testing.assert_close(run(x, torch.tensor(n)), program(x, n))


@pytest.mark.parametrize("unbacked", [False, True])
@pytest.mark.parametrize("name", ["alone", "between indices", "put", "a column put"])
def test_an_integer_beyond_the_end_is_eagers_error(name: str, unbacked: bool) -> None:
    program = PROGRAMS[name]
    framesmith.reset()
    run = framesmith.compile(lambda x, n: program(x, n.item() if unbacked else n), dynamic=True)
    x = torch.ones(8, 4, 8)
    for n in (3, 8, 5, -9, 9):
        if n in (3, 5):
            torch.testing.assert_close(run(x, torch.tensor(n) if unbacked else n), program(x, n))
            continue
        with pytest.raises(IndexError) as wanted:
            program(x, n)
        with pytest.raises(IndexError) as found:
            run(x, torch.tensor(n) if unbacked else n)
        assert str(found.value) == str(wanted.value)


def test_an_item_of_an_input_that_the_graph_reads_and_returns() -> None:
    """With gradients the view is made before the graph that reads it: the integer has to be there by then."""

    def program(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        item = x[n.item()]
        return item, item * w

    run = framesmith.compile(program, strict=True)
    for first, second in ((True, False), (False, True), (True, True)):
        for n in (torch.tensor(2), torch.tensor(0)):
            found = []
            for call in (program, run):
                x = torch.arange(12.0).view(3, 4).requires_grad_(first)
                w = torch.ones(4, requires_grad=second)
                item, scaled = call(x, w, n)
                scaled.square().sum().backward()
                found.append((item.detach(), scaled.detach(), x.grad, w.grad, item.is_leaf))
            torch.testing.assert_close(found[1], found[0])


def test_a_key_that_is_an_argument() -> None:
    framesmith.reset()
    run = framesmith.compile(lambda x, key: x[key] * 2, dynamic=True, strict=True)
    x = torch.arange(64.0).view(8, 8)
    for n in (3, 5, 7, 4):
        assert torch.equal(run(x, (n, slice(1, None))), x[n, 1:] * 2)
        assert torch.equal(run(x, (n, n - 1)), x[n, n - 1] * 2)
    assert framesmith.stats()["frames_compiled"] == 2  # numbers within containers are symbols, too
