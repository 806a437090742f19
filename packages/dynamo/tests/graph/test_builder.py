"""The graph builder alone: inputs on first use, effects, global state, outputs, examples as before the trace."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from framesmith_aten.recording import OperatorLog
from framesmith_dynamo.graph.builder import GraphBuilder, fake_of_node
from framesmith_dynamo.graph.finished import placeholder_name
from framesmith_guards import AttrSource, LocalSource

X = torch.arange(6.0).reshape(2, 3)


def call(builder: GraphBuilder, target: Any, args: tuple[Any, ...]) -> tuple[Any, fx.Node]:
    """Run a call on fakes and record it."""
    log = OperatorLog()
    function = getattr(torch.Tensor, target) if isinstance(target, str) else target
    result = builder.run(log, function, fx.node.map_arg(args, fake_of_node), {})
    return result, builder.record(target, args, {}, result, log.effects)


def test_inputs_become_placeholders_in_order_of_use() -> None:
    builder = GraphBuilder()
    a, b, c = (builder.add_input(X.clone(), LocalSource(name)) for name in "abc")
    result, node = call(builder, operator.add, (c.node, a.node))
    finished = builder.finish([builder.ref(result, node)])
    assert finished is not None
    assert [item.source for item in finished.inputs] == [LocalSource("c"), LocalSource("a")]
    assert not b.is_used
    assert torch.equal(finished.module(X, X + 1)[0], 2 * X + 1)


def test_dead_operations_go_and_effects_stay() -> None:
    builder = GraphBuilder()
    a = builder.add_input(X.clone(), LocalSource("a"))
    call(builder, torch.exp, (a.node,))
    call(builder, "add_", (a.node, 1))
    call(builder, torch.nn.functional.dropout, (a.node,))
    finished = builder.finish([])
    assert finished is not None
    targets = [node.target for node in finished.module.graph.nodes if node.op.startswith("call")]
    assert targets == ["add_", torch.nn.functional.dropout]


def test_no_graph_when_nothing_is_left() -> None:
    builder = GraphBuilder()
    a = builder.add_input(X.clone(), LocalSource("a"))
    call(builder, torch.exp, (a.node,))
    assert builder.finish([]) is None


def test_examples_are_as_before_the_trace() -> None:
    builder = GraphBuilder()
    weight = torch.nn.Parameter(X.clone())
    a = builder.add_input(X.clone(), LocalSource("a"))
    w = builder.add_input(weight, AttrSource(LocalSource("self"), "weight"))
    call(builder, "t_", (a.node,))
    result, node = call(builder, torch.matmul, (w.node, a.node))
    finished = builder.finish([builder.ref(result, node)])
    assert finished is not None
    by_name = {item.source.name: item for item in finished.inputs}
    assert by_name["L['a']"].example.shape == (2, 3)
    assert by_name["L['self'].weight"].example.requires_grad


def test_state_is_given_back_and_ended_in_the_graph() -> None:
    builder = GraphBuilder()
    a = builder.add_input(X.clone().requires_grad_(), LocalSource("a"))
    builder.emit_state(torch._C._set_grad_enabled, (False,))
    result, node = call(builder, operator.mul, (a.node, 2))
    assert not result.requires_grad
    assert builder.state.grad_after() is False
    finished = builder.finish([builder.ref(result, node)])
    builder.state.restore()
    assert torch.is_grad_enabled()
    assert finished is not None
    assert not finished.module(X.clone().requires_grad_())[0].requires_grad
    assert torch.is_grad_enabled()


def test_a_failed_operation_leaves_no_node() -> None:
    builder = GraphBuilder()
    a = builder.add_input(X.clone(), LocalSource("a"))
    with pytest.raises(RuntimeError):
        call(builder, torch.matmul, (a.node, a.node))
    assert [node.op for node in builder.graph.nodes] == ["placeholder"]


def test_names() -> None:
    assert placeholder_name("L['x'].weight[0]") == "l_x_weight_0"
