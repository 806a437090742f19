"""Memory that a graph mutates or returns and eager mode saves, mutated through `.data` before it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of

Body = Callable[[torch.Tensor], Any]


def by_data(x: Any) -> Any:
    x.data.mul_(2)
    return (x.sin(),)


def detached(x: Any) -> Any:
    x.detach().mul_(2)
    return (x.logsumexp(-1),)


def by_index(x: Any) -> Any:
    x.data.index_fill_(1, torch.tensor([0, 3]), 0.25)
    return (x.clamp(-1, 1).softmax(-2),)


def read_before(x: Any) -> Any:
    result = x.t().exp() * x.t().sin()
    x.data.relu_()
    return (result,)


def read_between(x: Any) -> Any:
    x.data.mul_(2)
    result = x.sin()
    x.data.mul_(3)
    return result * x, x.detach().exp()


def equal_to_a_saved_result(x: Any) -> Any:
    exp = (x * 1).exp()
    x.data.copy_(exp.detach())
    return (exp.sin() * x.cos(),)


def a_part_read(x: Any) -> Any:
    x.data.mul_(2)
    return (x[1:].sin() * x.t()[:, 1:].t().exp(),)


def statistics(x: Any) -> Any:
    x.data.abs_()
    return F.layer_norm(x, (4,)), x.var(-1), x.amax(0)


def a_matmul(x: Any) -> Any:
    x.data.mul_(2)
    return (x @ x.t(),)


def two_nodes(x: Any) -> Any:
    x.data.mul_(2)
    result = x.sin()
    return result, result.exp() * x


def recorded(x: Any) -> Any:
    x.mul_(2)
    return x.sin(), x.cos()


def its_own_result(x: Any) -> Any:
    x.exp_()
    return (x,)


def a_part_recorded(x: Any) -> Any:
    x[0].mul_(2)
    return (x.sin(),)


HIDDEN: tuple[Body, ...] = (
    by_data, detached, by_index, read_before, read_between, equal_to_a_saved_result, a_part_read,
    statistics, a_matmul, two_nodes,
)  # fmt: skip
RECORDED: tuple[Body, ...] = (recorded, its_own_result, a_part_recorded)


def made(history: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a leaf and the graph's input made of it: a tensor with a history, or the leaf itself."""
    leaf = torch.linspace(-2, 2, 12).view(3, 4).requires_grad_()
    return leaf, leaf * 1 if history else leaf


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize(
    ("fn", "history"), [*((fn, False) for fn in HIDDEN), *((fn, True) for fn in (*HIDDEN, *RECORDED))]
)
def test_the_backward_pass_reads_present_contents(fn: Body, history: bool, in_graph: bool) -> None:
    found = []
    for compiles in (False, True):
        leaf, x = made(history)
        graph = graph_of(fn)
        outputs = compiled(graph, [x], keep_input_mutations=in_graph)(x) if compiles else fn(x)
        x.data.mul_(3).add_(0.5)
        sum(one.square().sum() for one in outputs if one.requires_grad).backward()
        found.append([leaf.grad, x.detach(), *outputs])
    torch.testing.assert_close(*found, equal_nan=True)  # a largest number that is gone: 0 / 0


@pytest.mark.parametrize("of_result", [torch.sigmoid, torch.tanh, torch.exp, torch.sqrt, torch.reciprocal])
@pytest.mark.parametrize("of_input", [torch.sin, torch.prod, lambda x: x.t().cos(), lambda x: x.softmax(-1) * x[0]])
@pytest.mark.parametrize("history", [False, True])
def test_an_input_that_is_saved_for_one_of_the_results(of_result: Any, of_input: Any, history: bool) -> None:
    def fn(x: Any) -> Any:
        return of_result(x), of_input(x)

    found = []
    for compiles in (False, True):
        leaf, x = made(history)
        outputs = compiled(graph_of(fn), [x])(x) if compiles else fn(x)
        x.data.mul_(3).add_(0.5)
        sum(one.square().sum() for one in outputs).backward()
        found.append([leaf.grad, *outputs])
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_results_without_gradients_too(changed: bool, turned: bool) -> None:
    def fn(x: Any) -> Any:
        factor = x.detach() * 1
        if changed:
            factor.mul_(2)
        return (factor.t() if turned else factor) * (x.t() if turned else x).sin(), factor

    found = []
    for compiles in (False, True):
        leaf, x = made(False)
        result, factor = compiled(graph_of(fn), [x])(x) if compiles else fn(x)
        factor.data.mul_(3)
        result.square().sum().backward()
        found.append([leaf.grad, result, factor])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("fn", [by_data, by_index, a_matmul])
def test_other_changes_are_refused(fn: Body) -> None:
    _, x = made(False)
    [result] = compiled(graph_of(fn), [x])(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("fn", [by_data, a_matmul, two_nodes])
def test_it_runs_once_or_as_often_as_retained(fn: Body) -> None:
    leaf, x = made(False)
    result = compiled(graph_of(fn), [x])(x)[-1]
    [first] = torch.autograd.grad(result.sum(), leaf, retain_graph=True)
    [second] = torch.autograd.grad(result.sum(), leaf)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        result.sum().backward()


@pytest.mark.parametrize("fn", [by_data, a_matmul, two_nodes, statistics])
@pytest.mark.filterwarnings("ignore:.*create_graph:UserWarning")
def test_second_derivatives(fn: Body) -> None:
    found = []
    for compiles in (False, True):
        leaf, x = made(True)
        result = (compiled(graph_of(fn), [x])(x) if compiles else fn(x))[0]
        [grad] = torch.autograd.grad(result.square().sum(), leaf, create_graph=True)
        found.append([grad.detach(), *torch.autograd.grad(grad.square().sum(), leaf)])
    torch.testing.assert_close(*found)


def a_result(x: Any) -> Any:
    return x.exp2(), x * 1


def read_by_another(x: Any) -> Any:
    held = x.exp()
    return held, held.sin()


def a_part_of_a_result(x: Any) -> Any:
    held = (x * 1).tanh()
    return held.t(), held[1:].sin()


def without_gradients(x: Any) -> Any:
    factor = x.detach() * 2
    return factor, factor * x.sin()


@pytest.mark.parametrize("fn", [a_result, read_by_another, a_part_of_a_result, without_gradients])
@pytest.mark.parametrize("history", [False, True])
def test_second_derivatives_at_the_present_contents(fn: Body, history: bool) -> None:
    found = []
    for compiles in (False, True):
        leaf, x = made(history)
        outputs = compiled(graph_of(fn), [x])(x) if compiles else fn(x)
        outputs[0].data.mul_(3).add_(0.5)
        loss = sum(one.square().sum() for one in outputs if one.requires_grad)
        [first] = torch.autograd.grad(loss, leaf, create_graph=True)
        found.append([first, *torch.autograd.grad(first.square().sum(), leaf), *outputs])
    torch.testing.assert_close(*found)
