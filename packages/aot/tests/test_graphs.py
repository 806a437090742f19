"""The graphs given to a compiler: canonical, verified, with provenance; and the generated text."""

from __future__ import annotations

import pytest
import torch
from harness import compiled, graph_of
from torch import fx

aten = torch.ops.aten


def inference(fn, *inputs):
    with torch.no_grad():
        return compiled(graph_of(fn), list(inputs))


def targets(graph):
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_transposes_compose():
    graph = inference(lambda x: x.t().transpose(0, 1).t() + 1, torch.randn(2, 3))
    assert targets(graph.forward_graph) == [aten.permute.default, aten.add.Tensor]


def test_equal_calls_are_one_but_random_ones_are_not():
    graph = inference(lambda x: x.sin() + x.sin() + torch.rand_like(x) + torch.rand_like(x), torch.randn(2))
    assert targets(graph.forward_graph).count(aten.sin.default) == 1
    assert targets(graph.forward_graph).count(aten.rand_like.default) == 2


def test_signed_zero_is_another_constant():
    graph = inference(lambda x: torch.atan2(x * 0.0, x * -0.0), torch.randn(2))
    assert targets(graph.forward_graph).count(aten.mul.Tensor) == 2


def test_unused_work_is_dropped():
    graph = inference(lambda x: (x.exp(), x + 1)[1], torch.randn(2))
    assert targets(graph.forward_graph) == [aten.add.Tensor]


def test_operators_that_the_compiler_lowers_stay_whole():

    def fn(x):
        return torch.nn.functional.silu(x)

    assert aten.sigmoid.default in targets(inference(fn, torch.randn(2)).forward_graph)
    with torch.no_grad():
        whole = compiled(graph_of(fn), [torch.randn(2)], lowers=lambda op: op is aten.silu.default)
    assert targets(whole.forward_graph) == [aten.silu.default]


def test_nodes_have_their_provenance():
    gm = graph_of(lambda x: x.sin() + 1)
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = f"at {node.name}"
    with torch.no_grad():
        graph = compiled(gm, [torch.randn(2)])
    assert [n.meta["stack_trace"] for n in graph.forward_graph.nodes if n.op == "call_function"] == ["at sin", "at add"]


def test_text_of_inference():
    graph = inference(lambda x, y: (x + y, x.view(-1), 3), torch.randn(2, 2), torch.randn(2, 2))
    assert graph.text.splitlines() == [
        "def compiled_graph(in0, in1):",
        "    [r0] = graph([in0, in1])",
        "    out1 = view(in0, [-1])",
        "    return (r0, out1, 3, )",
    ]


def test_attributes_become_inputs():
    root = torch.nn.Module()
    root.count = torch.nn.Buffer(torch.zeros(2))
    ops = fx.Graph()
    x = ops.placeholder("x")
    count = ops.get_attr("count")
    ops.call_method("add_", (count, 1))
    ops.output((ops.call_method("add", (x, count)),))
    gm = fx.GraphModule(root, ops)
    with torch.no_grad():
        graph = compiled(gm, [torch.zeros(2)])
        assert graph(torch.zeros(2))[0].tolist() == [1, 1]
        assert graph(torch.zeros(2))[0].tolist() == [2, 2]
    assert gm.count.tolist() == [2, 2]


def test_calls_that_may_raise_stay_though_unused():
    table, index, square = torch.randn(4, 2), torch.tensor([1]), torch.eye(2)
    graph = inference(
        lambda t, i, a: (torch.nn.functional.embedding(i, t), torch._assert_async(a.sum()), torch.linalg.inv(a), t + 1)[
            3
        ],
        table,
        index,
        square,
    )
    found = targets(graph.forward_graph)
    assert aten.embedding.default in found
    assert aten._assert_async.default in found
    assert aten._linalg_check_errors.default in found
    with pytest.raises(IndexError):
        graph(table, torch.tensor([9]), square)
    with pytest.raises(RuntimeError):
        graph(table, index, torch.zeros(2, 2))


def test_probabilities_are_checked():
    loss = torch.nn.functional.binary_cross_entropy
    graph = inference(lambda p, t: loss(p, t), torch.full((3,), 0.5), torch.ones(3))
    with pytest.raises(RuntimeError):
        graph(torch.full((3,), 2.0), torch.ones(3))


def _in_channels_last(graph):
    """Return the graph with every sine of an NCHW tensor, and its gradient, computed in channels-last."""
    new, env = fx.Graph(), {}
    for node in graph.nodes:
        env[node] = new.node_copy(node, env.__getitem__)
        if node.target is aten.sin.default:
            before, env[node].args = env[node].args[0], ()
            with new.inserting_before(env[node]):
                cloned = new.call_function(aten.clone.default, (before,), {"memory_format": torch.channels_last})
            cloned.meta = {**node.meta, "val": node.meta["val"].clone(memory_format=torch.channels_last)}
            env[node].args, env[node].meta["val"] = (cloned,), cloned.meta["val"]
            back = new.call_function(aten.clone.default, (env[node],), {"memory_format": torch.contiguous_format})
            back.meta = dict(node.meta)
            env[node] = back
    return new


def test_a_step_is_transformed_before_the_partition():
    seen = []

    def transform_step(graph):
        seen.append(targets(graph))
        return _in_channels_last(graph)

    def program(x, y):
        return x.sin() * y, (x * y).sum()

    inputs = [torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(2, 3, 4, 4)]
    graph = compiled(graph_of(program), inputs, transform_step=transform_step)
    (joint,) = seen
    assert {aten.sin.default, aten.cos.default} <= {*joint}
    assert targets(graph.forward_graph).count(aten.clone.default) == 2
    results, wanted = graph.function(*inputs), program(*inputs)
    for mine, theirs in zip(results, wanted, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs)
    grads = [torch.autograd.grad([one.sum() for one in each], inputs[:1])[0] for each in (results, wanted)]
    torch.testing.assert_close(*grads)
    with torch.no_grad():
        compiled(graph_of(program), inputs, transform_step=transform_step)
    assert len(seen) == 1  # there is nothing to cut


def test_a_step_that_is_not_transformed_stays():
    inputs = [torch.randn(2, 3, requires_grad=True)]
    graph = compiled(graph_of(lambda x: x.sin()), inputs, transform_step=lambda graph: None)
    assert targets(graph.forward_graph) == [aten.sin.default]
