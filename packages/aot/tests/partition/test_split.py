"""The partition: values saved for backward, and recomputed ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of, run_both

from framesmith_aten.meta import HELD, TANGENT

aten = torch.ops.aten


def targets(graph):
    return [node.target for node in graph.nodes if node.op == "call_function"]


def saved(graph):
    [backward] = graph.backward_passes
    return [node for node in backward.graph.nodes if node.op == "placeholder" and not TANGENT.get(node)]


def leaves(*sizes):
    torch.manual_seed(0)
    return [torch.randn(*size, requires_grad=True) for size in sizes]


def test_cheap_pointwise_chain_saves_its_input_only():
    def fn(x, w):
        return F.relu((x + 1) * 2 - w).abs() + 3

    graph = compiled(graph_of(lambda x, w: fn(x @ w, w)), leaves((8, 8), (8, 8)))
    sizes = [node.meta["val"].numel() for node in saved(graph)]
    assert len(sizes) == 3  # x, w, and one of the chain
    assert aten.mm.default not in targets(graph.backward_passes[0].graph)[:1]


def test_of_two_values_of_equal_size_the_later_is_saved():
    graph = compiled(graph_of(lambda x, w: F.relu(x @ w) @ w), leaves((8, 8), (8, 8)))
    assert aten.relu.default not in targets(graph.backward_passes[0].graph)
    assert len(saved(graph)) == 3  # x, w, and what relu gives


def test_gathers_of_saved_values_are_recomputed():
    def fn(x, w, at):
        hidden = torch.tanh(x @ w)
        return torch.cat([hidden[at], hidden[at + 1]], 1) @ torch.cat([w, w])

    graph = compiled(graph_of(fn), [*leaves((8, 8), (8, 8)), torch.arange(7).repeat(9)])
    recomputed = targets(graph.backward_passes[0].graph)
    assert {aten.cat.default, aten.index.Tensor} <= {*recomputed} and aten.tanh.default not in recomputed
    assert all(node.meta["val"].numel() <= 64 for node in saved(graph))


def test_matmuls_and_random_numbers_run_once():
    def fn(x, w):
        return F.dropout(torch.tanh(x @ w), 0.5) @ w

    graph = compiled(graph_of(fn), leaves((8, 8), (8, 8)))
    assert targets(graph.forward_graph).count(aten.mm.default) == 2
    assert targets(graph.backward_passes[0].graph).count(aten.mm.default) == 4
    assert targets(graph.backward_passes[0].graph).count(aten.bernoulli.p) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masks_of_dropout_are_saved_as_bools(dtype):
    def fn(x, w):
        return F.dropout(F.gelu(x @ w), 0.1) @ w

    x, w = (leaf.detach().to(dtype).requires_grad_() for leaf in leaves((64, 64), (64, 64)))
    graph = compiled(graph_of(fn), [x, w])
    types = [node.meta["val"].dtype for node in saved(graph)]
    assert types.count(torch.bool) == 1 and len(types) == 4  # x, w, the matmul, and the mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_mask_divided_by_a_number_is_a_choice(dtype):
    def fn(x, w):
        return F.dropout(x * w, 0.3).sin()

    x, w = (leaf.detach().to(dtype).requires_grad_() for leaf in leaves((64, 64), (64, 64)))
    graph = run_both(graph_of(fn), [x, w])
    for part in (graph.forward_graph, graph.backward_passes[0].graph):
        assert aten.div.Scalar not in targets(part)
        [node] = part.find_nodes(op="call_function", target=aten.where.self)
        assert node.args[1].args[0] == torch.ones((), dtype=dtype).div(1 - 0.3).item()


def test_inputs_that_the_caller_holds_are_marked():
    graph = compiled(graph_of(lambda x, w: torch.tanh(x @ w).sin() @ w), leaves((8, 8), (8, 8)))
    [backward] = graph.backward_passes
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    assert len(inputs) == 4 and sum(map(HELD.on, inputs)) == 3  # not what the forward graph computes
    assert [node.name.startswith(("input", "tangent")) for node in inputs] == [HELD.on(node) for node in inputs]
    assert all(HELD.on(node) for node in graph.forward_graph.nodes if node.op == "placeholder")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_an_input_is_saved_as_the_cast_that_alone_reads_it(kind):
    graph = compiled(graph_of(lambda x, w: x.to(kind).float() @ w), leaves((8, 8), (8, 8)))
    assert kind in [node.meta["val"].dtype for node in saved(graph)]


def test_drawn_numbers_that_are_returned_stay_as_they_are():
    def fn(x, w):
        drawn = torch.bernoulli(torch.full_like(x.detach(), 0.5))
        return drawn, x * drawn * w

    graph = compiled(graph_of(fn), leaves((64, 64), (64, 64)))
    assert aten.ne.Scalar not in targets(graph.forward_graph)


def test_views_are_not_saved():
    def fn(x, w):
        return (x.view(4, 16).t() @ w).permute(1, 0).exp()

    graph = compiled(graph_of(fn), leaves((8, 8), (4, 4)))
    roots = [node.meta["val"] for node in saved(graph)]
    assert sorted(tuple(val.shape) for val in roots) == sorted([(8, 8), (4, 4), (4, 16)]) or len(roots) == 3


def test_mask_is_saved_rather_than_floats():
    def fn(x, w):
        return torch.where(x @ w > 0, w, 0.0)

    graph = compiled(graph_of(fn), leaves((64, 64), (64, 64)))
    assert [node.meta["val"].dtype for node in saved(graph)] == [torch.bool]


def test_overwritten_input_is_copied_for_the_backward_pass():
    def fn(x, w):
        y = x.clone() * w
        x.add_(1)
        return (y,)

    graph = compiled(graph_of(fn), [torch.randn(4), *leaves((4,))])
    assert graph.overwritten == (0,)
    assert aten.clone.default in targets(graph.forward_graph)


def test_memory_that_eager_saves_must_not_be_mutated_even_through_a_view():
    def fn(x, w):
        h = torch.tanh(x @ w)
        return h.view(-1), h.sum()

    inputs = leaves((4, 4), (4, 4))
    for run in (fn, compiled(graph_of(fn), inputs)):
        view, total = run(*inputs)
        view.detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_batch_norm_saves_no_running_statistics():
    def fn(x, m, v):
        return F.batch_norm(x, m, v, None, None, True)

    graph = compiled(graph_of(fn), [*leaves((8, 4)), torch.zeros(4), torch.ones(4)])
    assert len(saved(graph)) == 3
