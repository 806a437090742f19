"""`verify=` on graphs made by hand."""

import warnings
from typing import Any

import pytest
import torch
from torch import fx

from framesmith.graphs.verification import verified
from framesmith.reports.failures import Failures, FramesmithError, FramesmithWarning


def graph(fn: Any) -> fx.GraphModule:
    return fx.symbolic_trace(fn)


def add_one(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x + 1,)


def test_a_right_graph_is_used_and_the_inputs_are_mutated_once() -> None:
    calls = []

    def compiled(x: torch.Tensor) -> tuple[torch.Tensor]:
        calls.append(1)
        return (x.add_(1),)

    run = verified(graph(lambda x: (x.add_(1),)), compiled, Failures(strict=True), 1)
    x = torch.zeros(2)
    run(x)
    assert x.tolist() == [1.0, 1.0]
    run(x)
    assert x.tolist() == [2.0, 2.0] and len(calls) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: (x + 2,),
        lambda x: (x.double() + 1,),
        lambda x: (x + 1, x),
        lambda x: (x.add_(1) * 1,),
        lambda x: (x + 1 + 0 * torch.rand(2),),
    ],
    ids=["values", "dtype", "count", "mutation", "random numbers"],
)
def test_a_wrong_graph_is_replaced_by_eager_with_one_warning(wrong: Any) -> None:
    run = verified(graph(add_one), wrong, Failures(strict=False), 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert run(torch.zeros(2))[0].tolist() == [1.0, 1.0]
    assert [w.category for w in caught] == [FramesmithWarning]
    with pytest.raises(FramesmithError, match="verify="):
        verified(graph(add_one), wrong, Failures(strict=True), 1)(torch.zeros(2))


def test_random_numbers_go_on_as_in_eager() -> None:
    gm = graph(lambda x: (x + torch.rand_like(x),))
    torch.manual_seed(0)
    expected = [gm(torch.zeros(2))[0] for _ in range(2)]
    torch.manual_seed(0)
    run = verified(gm, gm.forward, Failures(strict=True), 1)
    assert all(torch.equal(run(torch.zeros(2))[0], wanted) for wanted in expected)


def test_inputs_that_show_memory_twice() -> None:
    """Expanded ones, and two that share their memory."""

    def changing(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.add_(1) + y,)

    run = verified(graph(changing), changing, Failures(strict=True), 1)
    base = torch.zeros(4)
    assert run(base[:2], base[1:3])[0].tolist() == [2.0, 1.0]
    assert base.tolist() == [1.0, 1.0, 0.0, 0.0]
    expanded = torch.ones(1).expand(3)
    run = verified(graph(add_one), add_one, Failures(strict=True), 1)
    assert run(expanded)[0].tolist() == [2.0, 2.0, 2.0]


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 3


def test_wrong_gradients_are_found() -> None:
    gm = graph(lambda x: (x * 2,))
    x = torch.ones(2, requires_grad=True)
    verified(gm, lambda x: (_Wrong.apply(x),), Failures(strict=True), 1)(x.detach())
    for given in (x, x * 1):
        with pytest.raises(FramesmithError, match="gradient 0"):
            verified(gm, lambda x: (_Wrong.apply(x),), Failures(strict=True), 1)(given)


def test_so_many_calls_are_checked() -> None:
    calls = []

    def late(x: torch.Tensor) -> tuple[torch.Tensor]:
        calls.append(1)
        return (x + (1 if len(calls) < 5 else 2),)

    run = verified(graph(add_one), late, Failures(strict=False), 3)
    assert run(torch.zeros(1))[0].item() == 1
    with pytest.warns(FramesmithWarning, match="result 0"):
        for _ in range(2):
            assert run(torch.zeros(1))[0].item() == 1


def test_an_input_with_history_that_is_changed() -> None:
    gm = graph(lambda x: (x.mul_(2).sin(),))
    leaf = torch.ones(2, requires_grad=True)
    run = verified(gm, gm.forward, Failures(strict=True), 2)
    for _ in range(3):
        (result,) = run(leaf * 1)
        assert result.requires_grad
    with torch.inference_mode():
        given = torch.ones(2)
        verified(gm, gm.forward, Failures(strict=True), 1)(given)
    assert given.tolist() == [2.0, 2.0]


def test_the_default_device_is_not_that_of_the_numbers_it_draws() -> None:
    run = verified(graph(lambda x: (x.mul_(2).sin(),)), lambda x: (x.mul_(2).sin(),), Failures(strict=True), 1)
    leaf = torch.ones(2, requires_grad=True)
    with torch.device("meta"):
        (found,) = run(leaf * 1)
    torch.testing.assert_close(found, (leaf * 2).sin())
