"""Grad mode and autocast inside and around a graph."""

from __future__ import annotations

import operator

import torch
from harness import compiled, graph_of, run_both
from torch import fx


def block_graph(enter, leave, body):
    """x, w -> (body before, body inside a block, body after), with the block's calls as a tracer writes them."""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    outs = [graph.call_function(body, (x, w))]
    token = graph.call_function(*enter)
    outs.append(graph.call_function(body, (x, w)))
    if leave is not None:
        function, args = leave
        graph.call_function(function, tuple(token if a == "token" else a for a in args))
        outs.append(graph.call_function(body, (x, w)))
    graph.output(tuple(outs))
    return fx.GraphModule({}, graph)


def inputs():
    torch.manual_seed(0)
    return [torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)]


def test_no_grad_block():
    set_grad = torch._C._set_grad_enabled
    gm = block_graph((set_grad, (False,)), (set_grad, (True,)), operator.matmul)
    outs = run_both(gm, inputs())(*inputs())
    assert [out.requires_grad for out in outs] == [True, False, True]


def test_block_left_open():
    gm = block_graph((torch._C._set_grad_enabled, (False,)), None, operator.matmul)
    graph = compiled(gm, inputs())
    try:
        graph(*inputs())
        assert not torch.is_grad_enabled()
    finally:
        torch._C._set_grad_enabled(True)


def test_enable_grad_block_in_no_grad():
    set_grad = torch._C._set_grad_enabled
    gm = block_graph((set_grad, (True,)), (set_grad, (False,)), operator.matmul)
    with torch.no_grad():
        run_both(gm, inputs(), training=True)


def test_view_made_without_gradients():
    def view(x, w):
        return x.view(9)

    set_grad = torch._C._set_grad_enabled
    gm = block_graph((set_grad, (False,)), (set_grad, (True,)), view)
    _, inside, after = run_both(gm, inputs())(*inputs())
    assert inside.grad_fn is None and after.grad_fn is not None


def test_parameter_updated_without_gradients():
    graph = fx.Graph()
    p, g = graph.placeholder("p"), graph.placeholder("g")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_method("add_", (p, g), {"alpha": -0.1})
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((p,))
    gm = fx.GraphModule({}, graph)
    run_both(gm, [torch.ones(3, requires_grad=True), torch.ones(3)])


def test_autocast_block():
    autocast = torch.amp.autocast_mode
    gm = block_graph(
        (autocast._enter_autocast, ("cpu", torch.bfloat16, True, True)),
        (autocast._exit_autocast, ("token",)),
        operator.matmul,
    )
    outs = run_both(gm, inputs())(*inputs())
    assert [out.dtype for out in outs] == [torch.float32, torch.bfloat16, torch.float32]


def test_autocast_around():
    def fn(x, w):
        return torch.softmax(x @ w, -1) @ w

    with torch.autocast("cpu", torch.bfloat16):
        graph = run_both(graph_of(fn), inputs())
    assert "no_autocast()" in graph.text


def test_deterministic_state_of_the_cache():
    values = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        graph = compiled(graph_of(lambda x, w: x @ w), values)
        graph(*values)
        (torch.ones(3, 3) @ values[1]).sum().backward()
    assert type(values[1].grad) is torch.Tensor
