"""Checkpoints: what is saved for backward, what is recomputed, and where."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of, run_both
from torch.utils.checkpoint import checkpoint

from framesmith_aten.meta import CHECKPOINT, CHECKPOINT_PATH, TANGENT, Checkpoint
from framesmith_aten.tracing.redrawn import generator_state, redrawn_mask

aten = torch.ops.aten


def checkpointed(fn, **ranges):
    """Return the graph of `fn` with the calls from one name to another, by checkpoint, marked.

    `one=("sin", "cos")`: the checkpoint of that name; `one_two` is in `one`.
    """
    gm = graph_of(fn)
    names = [node.name for node in gm.graph.nodes]
    made = {}
    for number, (name, (first, last, *options)) in enumerate(ranges.items(), 1):
        around = made.get(name.rpartition("_")[0])
        made[name] = Checkpoint(number, around, **(options[0] if options else {}))
        for node in [*gm.graph.nodes][names.index(first) : names.index(last) + 1]:
            if node.op != "placeholder":
                CHECKPOINT.set(node, made[name])
    return gm


def leaves(*sizes):
    torch.manual_seed(0)
    return [torch.randn(*size, requires_grad=True) for size in sizes]


def saved(graph):
    [backward] = graph.backward_passes
    nodes = [node for node in backward.graph.nodes if node.op == "placeholder" and not TANGENT.get(node)]
    return [tuple(node.meta["val"].shape) for node in nodes if not node.name.startswith("input")]


def calls(graph):
    [backward] = graph.backward_passes
    return [node for node in backward.graph.nodes if node.op == "call_function"]


def targets(graph):
    return [node.target for node in calls(graph)]


def test_only_its_inputs_are_saved():
    def fn(x, w):
        return torch.sin(torch.tanh(x @ w) @ w) @ w

    plain = run_both(graph_of(fn), leaves((8, 4), (4, 4)))
    graph = run_both(checkpointed(fn, one=("matmul", "sin")), leaves((8, 4), (4, 4)))
    assert len(saved(plain)) == 2
    assert saved(graph) == [(8, 4)]  # the result: the matmul outside saves it
    assert targets(graph).count(aten.mm.default) == targets(plain).count(aten.mm.default) + 2


def test_a_result_is_saved_for_others_and_not_recomputed_for_them():
    def fn(x, w):
        y = torch.tanh(x @ w)
        z = torch.tanh(y @ w)
        return torch.tanh(z @ w).sum()

    marked = checkpointed(fn, one=("matmul", "tanh"), two=("matmul_1", "tanh_1"), three=("matmul_2", "tanh_2"))
    graph = run_both(marked, leaves((8, 4), (4, 4)))
    assert saved(graph) == [(8, 4)] * 2
    paths = [path for node in calls(graph) if (path := CHECKPOINT_PATH.get(node)) is not None]
    assert paths == sorted(paths, reverse=True), "one checkpoint after the other, the last one first"
    assert {*paths} == {(1,), (2,), (3,)}


def test_recomputation_stands_where_its_backward_pass_begins():
    def fn(x, w):
        return (torch.tanh(x @ w).sin() @ w).exp().cos().sum()

    graph = run_both(checkpointed(fn, one=("matmul", "sin")), leaves((8, 4), (4, 4)))
    nodes = calls(graph)
    recomputed = [at for at, node in enumerate(nodes) if node.target is aten.mm.default and CHECKPOINT_PATH.on(node)]
    first = next(at for at, node in enumerate(nodes) if any(TANGENT.get(one) for one in node.all_input_nodes))
    assert recomputed and min(recomputed) > first


def test_a_nested_checkpoint_is_recomputed_twice():
    def fn(x, w):
        y = torch.sin(x @ w)
        z = torch.tanh(y @ w)
        return (torch.exp(z) @ w).sum()

    marked = checkpointed(fn, one=("matmul", "exp"), one_two=("matmul_1", "tanh"))
    graph = run_both(marked, leaves((8, 4), (4, 4)))
    tanh = [CHECKPOINT_PATH.get(node) for node in calls(graph) if node.target is aten.tanh.default]
    assert tanh == [(1,), (1, 2)]
    assert saved(graph) == [(8, 4)]  # what exp gives: the last matmul is outside


def test_equal_calls_of_two_checkpoints_are_two():
    def fn(x, w):
        return (torch.sin(x * w).cos() + torch.sin(x * w).exp()).sum()

    marked = checkpointed(fn, one=("mul", "cos"), two=("mul_1", "exp"))
    graph = run_both(marked, leaves((8, 4), (8, 4)))
    assert saved(graph) == []
    assert sum(node.target is aten.sin.default for node in graph.forward_graph.nodes) == 2


@pytest.mark.parametrize("p", [0.5, 0.0])
def test_masks_are_saved_as_bool(p):
    def fn(x, w):
        return (F.dropout(torch.tanh(x @ w), p) @ w).sum()

    graph = run_both(checkpointed(fn, one=("matmul", "dropout")), leaves((8, 4), (4, 4)))
    [backward] = graph.backward_passes
    masks = [node.meta["val"].dtype for node in backward.graph.nodes if node.op == "placeholder"]
    assert masks.count(torch.bool) == (p != 0)
    assert all(node.target is not aten.bernoulli.p for node in calls(graph))


@pytest.mark.parametrize("nested", [False, True])
def test_large_masks_are_drawn_again_from_the_state_of_the_generator(nested):
    def fn(x, w):
        y = F.dropout(torch.tanh(x * w), 0.3)
        return (F.dropout(torch.sin(y * w), 0.3) * w).sum()

    ranges = {"one": ("mul", "dropout_1")} | ({"one_two": ("sin", "dropout_1")} if nested else {})
    graph = run_both(checkpointed(fn, **ranges), leaves((128, 128), (128, 128)))
    [backward] = graph.backward_passes
    types = [node.meta["val"].dtype for node in backward.graph.nodes if node.op == "placeholder"]
    assert torch.bool not in types and types.count(torch.uint8) == 2
    assert targets(graph).count(redrawn_mask()) == 2
    assert [node.target for node in graph.forward_graph.nodes].count(generator_state()) == 2
    assert redrawn_mask() not in [node.target for node in graph.forward_graph.nodes]


def test_masks_that_a_policy_saves_are_saved():
    def fn(x, w):
        return (F.dropout(torch.tanh(x * w), 0.3) * w).sum()

    policy = {"saves": lambda op, args, kwargs, result: op is aten.bernoulli.p}
    graph = run_both(checkpointed(fn, one=("mul", "dropout", policy)), leaves((128, 128), (128, 128)))
    assert redrawn_mask() not in targets(graph)


def test_random_numbers_are_drawn_once():
    def fn(x, w):
        return (torch.rand_like(x) * torch.tanh(x @ w)).sum()

    graph = run_both(checkpointed(fn, one=("rand_like", "mul")), leaves((4, 4), (4, 4)))
    assert saved(graph) == [(4, 4)]


def test_a_result_that_is_changed():
    """Eager mode's checkpoint computes the gradient of what `exp` gave; without one, autograd refuses it."""

    def fn(x, w):
        y = torch.exp(x * w)
        y.add_(1)
        return y

    def expected(x, w):
        return [checkpoint(lambda x, w: torch.exp(x * w), x, w, use_reentrant=False).add_(1)]

    inputs = leaves((4, 4), (4, 4))
    graph = compiled(checkpointed(fn, one=("mul", "exp")), inputs)
    results, gradients = [], []
    for run in (expected, graph):
        [result] = run(*inputs)
        results.append(result)
        gradients.append(torch.autograd.grad(result.sum(), inputs))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_results_and_arguments_that_the_user_holds_are_no_copies():
    def fn(x, w):
        y = torch.sin(x @ w)
        return y, torch.exp(y @ w).sum()

    graph = compiled(checkpointed(fn, one=("matmul", "sin"), two=("matmul_1", "exp")), leaves((8, 4), (4, 4)))
    assert all(node.target is not aten.clone.default for node in graph.forward_graph.nodes)
    run_both(checkpointed(fn, one=("matmul", "sin"), two=("matmul_1", "exp")), leaves((8, 4), (4, 4)))


def test_a_policy_saves_results_of_operators():
    asked = []

    def saves(op, args, kwargs, result):
        asked.append(op)
        return op is aten.mm.default

    def fn(x, w):
        return torch.tanh(torch.sin(x @ w) @ w).sum()

    marked = checkpointed(fn, one=("matmul", "tanh", {"saves": saves}))
    graph = run_both(marked, leaves((8, 4), (4, 4)))
    assert saved(graph) == [(8, 4)] * 2
    recomputed = [node for node in calls(graph) if node.target is aten.mm.default and CHECKPOINT_PATH.on(node)]
    assert all(any(TANGENT.get(one) or one.op != "placeholder" for one in node.all_input_nodes) for node in recomputed)
    assert asked.count(aten.mm.default) == 2 and aten.tanh.default in asked


def test_a_policy_is_asked_about_an_operator_not_its_decomposition():
    asked = []
    options = {"saves": lambda op, args, kwargs, result: asked.append(op) or False}

    def fn(x):
        return F.layer_norm(F.silu(x), [4])

    compiled(checkpointed(fn, one=("silu", "layer_norm", options)), leaves((8, 4)))
    assert asked == [aten.silu.default, aten.native_layer_norm.default]


def test_a_reentrant_one_refuses_autograd_grad():
    marked = checkpointed(lambda x: torch.exp(torch.sin(x)).sum(), one=("sin", "exp", {"reentrant": True}))
    [x] = leaves((4,))
    graph = compiled(marked, [x])
    with pytest.raises(RuntimeError, match="use_reentrant=True"):
        torch.autograd.grad(graph(x)[0], x)
    graph(x)[0].backward()
    torch.testing.assert_close(x.grad, (torch.exp(torch.sin(x)) * torch.cos(x)).detach())


def test_second_passes_and_second_derivatives():
    marked = checkpointed(lambda x, w: torch.exp(torch.sin(x * w)).sum(), one=("mul", "exp"))
    x, w = leaves((4,), (4,))
    graph = compiled(marked, [x, w])
    [loss] = graph(x, w)
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    [loss] = graph(x, w)
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    (grad,) = torch.autograd.grad(marked(x, w)[0], x, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(grad.sum(), x)[0])


def test_mutations_of_what_it_reads_raise():
    marked = checkpointed(lambda x, w: torch.exp(torch.sin(x * w)).sum(), one=("mul", "exp"))
    x, w = leaves((4,), (4,))
    [loss] = compiled(marked, [x, w])(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
