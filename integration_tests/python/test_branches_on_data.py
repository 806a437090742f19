"""Branches on tensors' data: arms that only write to tensors share a graph, as do arms that only raise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith

Tensor = torch.Tensor
#: Data on both sides of every condition here, and none that any is about.
DATA = (1.0, 5.0, 2.0, float("nan"), -0.0, 0.0)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def check(function: Callable[..., Any], graphs: int = 1, breaks: int = 0) -> None:
    """Compare with eager mode on all data, in turn: results, what is written, and errors."""
    framesmith.reset()
    compiled = framesmith.compile(function, strict=True)
    for value in DATA:
        args = torch.tensor(value), torch.ones(3, 2), torch.full((2, 3), 3.0).t()
        ours = copy.deepcopy(args)
        found, wanted = outcome(compiled, *ours), outcome(function, *args)
        if isinstance(wanted, tuple):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(ours, args, rtol=0, atol=0, equal_nan=True)
        assert [one.stride() for one in ours] == [one.stride() for one in args]
    stats = framesmith.stats()
    assert (stats["graphs"], stats["breaks"]) == (graphs, breaks)


def test_both_arms_write() -> None:
    def function(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        t += 1
        if t > 2:
            x.add_(y * t)
        else:
            x.mul_(0.5)
            y.t().reshape(-1)[:2].zero_()
            y[0].view(-1)[1:].fill_(7)
        return x.sum()

    check(function)


def test_one_arm_does_nothing() -> None:
    def function(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if not t.item() != 1:
            x += y
        if t:
            y.copy_(x)
        return x + y

    check(function)


def test_a_branch_in_an_arm_of_another() -> None:
    def function(t: Tensor, x: Tensor, y: Tensor) -> None:
        if t > 1:
            x.add_(1)
            if t > 3:
                y.sub_(x)
            else:
                x.sub_(y)
            x.mul_(2)
        elif t < 0.5:
            x.zero_()

    check(function)


def test_arms_with_loops_calls_and_variables_of_their_own() -> None:
    def scaled(tensors: tuple[Tensor, ...], by: float) -> None:
        for tensor in tensors:
            tensor.mul_(by)

    def function(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        for number in range(3):
            if t * number > 2:
                factor = number + 2.0
                scaled((x, y), factor)
            else:
                change = x * number
                y += change
        return x

    check(function)


def test_a_truth_that_is_kept() -> None:
    def function(t: Tensor, x: Tensor, y: Tensor) -> None:
        large, small = bool(t > 2), not t > 1
        t.zero_()
        for tensor in (x, y):
            if large:
                tensor.add_(1)
            if small:
                tensor.sub_(1)

    check(function)


def test_memory_that_is_shared() -> None:
    """With views made before the branch, written to in one arm through one, in the other through another."""

    def function(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        row, column = x[1], x[:, 0]
        if t > 1:
            row.add_(column[:2].clone())
        else:
            column.mul_(4)
            x.add_(row[0].clone())
        return row + column.sum()

    check(function)


def test_memory_that_is_shared_with_a_view_written_to_in_the_other_arm() -> None:
    def function(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        row = x[0]
        if t > 1:
            row.add_(1)
        else:
            x[:, 1].mul_(4)
        turned = y.t()
        if t > 2:
            turned.add_(1)
        else:
            y[1:].zero_()
        return turned + row.sum()

    check(function)


def test_what_autograd_has_saved_ends_the_graph() -> None:
    """A change would be an error in the backward pass, although the arm is not taken."""
    weight = torch.ones(2, requires_grad=True)

    def function(t: Tensor, x: Tensor) -> Tensor:
        loss = (weight * x).sum()
        if t > 1:
            x.add_(1)
        return loss

    framesmith.reset()
    compiled = framesmith.compile(function, strict=True)
    compiled(torch.tensor(0.0), torch.ones(2)).backward()
    with pytest.raises(RuntimeError, match="inplace operation"):
        compiled(torch.tensor(2.0), torch.ones(2)).backward()


def test_parameters_in_no_grad() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 2))
    start = weight.detach().clone()

    def function(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            weight.copy_(start)
        if t > 1:
            with torch.no_grad():
                weight.mul_(3)
        loss = (weight * x).sum()
        loss.backward()
        grad = weight.grad
        assert grad is not None
        weight.grad = None
        return loss.detach() + grad

    check(function)


def test_arms_that_raise() -> None:
    def function(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        if t.isnan() or t > 8:
            raise ValueError(f"{t.item()} is too much")
        x.add_(1)
        assert t != 5, "five"
        if not t:
            raise KeyError
        return x + y

    check(function)


def test_an_error_that_the_program_catches_ends_the_graph() -> None:
    def function(t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        try:
            if t > 2:
                raise ValueError
        except ValueError:
            return x + 1
        return x + y

    framesmith.reset()
    explained = framesmith.explain(function, torch.tensor(1.0), torch.ones(2), torch.ones(2))
    assert explained.break_count == 1


@pytest.mark.parametrize("change", ["result", "object", "random", "resized", "matmul", "history", "cell", "print"])
def test_other_differences_end_the_graph(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of an arm that is not taken may be seen."""
    seen: list[Any] = []
    w = torch.ones(3, 3, requires_grad=True)
    count = 0

    def function(t: Tensor, x: Tensor, y: Tensor) -> Any:
        nonlocal count
        x = x * 2
        if t > 1:
            if change == "result":
                x = x + 1
            elif change == "object":
                seen.append(t)
            elif change == "random":
                x.uniform_()
            elif change == "resized":
                x.t_()
            elif change == "matmul":
                x.copy_(w.detach() @ y)
            elif change == "history":
                x.mul_(w[:, :2])
            elif change == "cell":
                count += 1
            else:
                print("large")
        return x

    compiled = framesmith.compile(function, strict=True)
    framesmith.reset()
    for value in DATA:
        args = torch.tensor(value), torch.ones(3, 2), torch.ones(3, 2)
        results = []
        for run in (function, compiled):
            seen.clear()
            count = 0
            torch.manual_seed(0)
            found = run(*args)
            shown = capsys.readouterr().out
            results.append([found.detach(), found.requires_grad, len(seen), count, len(shown), torch.get_rng_state()])
        torch.testing.assert_close(results[1], results[0])
    assert framesmith.stats()["breaks"] > 0
