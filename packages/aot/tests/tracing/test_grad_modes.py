"""Inputs with a history, in calls without grad mode."""

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from harness import compiled, graph_of
from torch import fx


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("leaf", [True, False])
def test_an_input_that_requires_grad(mode: Callable[[], AbstractContextManager[Any]], leaf: bool) -> None:
    x = torch.randn(3, requires_grad=True)
    value = x if leaf else x * 2
    with mode():
        run = compiled(graph_of(lambda x: (x.sin() + x, x)), [value])
        assert not run.backward_passes
        out, same = run(value)
        assert torch.equal(out, value.sin() + value) and not out.requires_grad
    assert same is value and value.requires_grad


def turned_on(x: torch.Tensor) -> Any:
    torch._C._set_grad_enabled(True)
    view, square = x[0], x * x
    torch._C._set_grad_enabled(False)
    return view, square, x.sum()


def only_views(x: torch.Tensor) -> Any:
    torch._C._set_grad_enabled(True)
    first, second = x.unbind()
    torch._C._set_grad_enabled(False)
    return first, second, x[0]


@pytest.mark.parametrize("function", [turned_on, only_views])
def test_a_graph_that_turns_gradients_on(function: Callable[..., Any]) -> None:
    def called(run: Callable[..., Any]) -> Any:
        x = torch.arange(4.0).view(2, 2).requires_grad_()
        with torch.no_grad():
            results = run(x)
            assert not torch.is_grad_enabled()
        sum(result.sum() for result in results if result.requires_grad).backward()
        return [result.requires_grad for result in results], x.grad.tolist()

    graph = fx.Graph()
    operand = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (True,))
    first = graph.call_function(operator.getitem, (operand, 0))
    second = graph.call_function(operator.mul, (operand, operand))
    if function is only_views:
        parts = graph.call_function(torch.unbind, (operand,))
        first, second = (graph.call_function(operator.getitem, (parts, at)) for at in range(2))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    last = graph.call_function(operator.getitem, (operand, 0))
    if function is turned_on:
        last = graph.call_method("sum", (operand,))
    graph.output((first, second, last))
    module = fx.GraphModule(torch.nn.Module(), graph)
    with torch.no_grad():
        run = compiled(module, [torch.zeros(2, 2, requires_grad=True)])
    assert called(run) == called(function)


@pytest.mark.parametrize("method", ["scatter_", "index_add_", "index_copy_"])
def test_in_place_operations_keep_the_layout(method: str) -> None:
    x = torch.randn(3, 5, 2).permute(0, 2, 1)
    index = torch.zeros_like(x[:1], dtype=torch.int64) if method == "scatter_" else torch.tensor([0])

    def function(x: torch.Tensor, index: torch.Tensor) -> Any:
        y = x * 1
        getattr(y, method)(0, index, x[-1:].clone())
        return y, y + 1, y.cumsum_(0) * 2

    run = compiled(graph_of(function), [x, index])
    for ours, eager in zip(run(x, index), function(x, index), strict=True):
        assert torch.equal(ours, eager) and ours.stride() == eager.stride()


@pytest.mark.parametrize("view", [lambda v: v.reshape(-1), lambda v: v[0], lambda v: v.t()])
def test_a_view_of_an_intermediate_made_without_gradients(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def fn(x: torch.Tensor) -> Any:
        v = x * 2
        before = torch._C._set_grad_enabled(False)
        shown = view(v)
        torch._C._set_grad_enabled(True)
        return shown, before

    graph = fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(operator.mul, (x, 2))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    shown = graph.call_function(view, (doubled,))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((shown,))
    value = torch.randn(2, 3, requires_grad=True)
    (found,) = compiled(fx.GraphModule(torch.nn.Module(), graph), [value])(value)
    wanted, _ = fn(value)
    assert (found.requires_grad, found._is_view()) == (wanted.requires_grad, wanted._is_view()) == (True, True)
    assert torch.equal(found, wanted)


def test_inference_mode_records_nothing_whatever_the_grad_mode() -> None:
    x = torch.randn(3, requires_grad=True)
    with torch.inference_mode():
        run = compiled(graph_of(turned_on), [x], training=None)
        assert not run.backward_passes
        assert not any(result.requires_grad for result in run(x)[1:])
