"""The listing of what is saved for backward and what is recomputed: the tensors that autograd holds, with reasons."""

from __future__ import annotations

import pytest
import torch
from harness import compiled, graph_of

from framesmith_aten.meta import CHECKPOINT, Checkpoint


def leaves(*sizes):
    torch.manual_seed(0)
    return [torch.randn(*size, requires_grad=True) for size in sizes]


def traced(fn, inputs, **options):
    """Return the trace of a function that the compiler is shown, and the compiled graph."""
    found = []
    gm = fn if isinstance(fn, torch.fx.GraphModule) else graph_of(fn)
    graph = compiled(gm, inputs, observe=found.append, **options)
    [one] = found
    return one, graph


def layouts(tensors):
    return sorted((tuple(one.shape), str(one.dtype)) for one in tensors)


def held(result):
    """Return the distinct tensors that the autograd nodes behind a result have saved."""
    found, waiting, seen = {}, [result.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [one for one, _ in node.next_functions]
            found.update((one.data_ptr(), one) for one in getattr(node, "saved_tensors", ()))
    return [*found.values()]


def two_nodes(x, w):
    h = torch.tanh(x @ w)
    return h, torch.sin(h @ w).exp()


def masked(x, w):
    return torch.nn.functional.dropout(torch.relu(x @ w), 0.5) @ w


def mutated(x, w):
    y = w * 2
    w_copy = y.relu_()
    return (x @ w_copy).cos().sin()


@pytest.mark.parametrize("fn", [two_nodes, masked, mutated])
@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_the_listing_is_what_autograd_holds(fn, budget):
    inputs = leaves((8, 4), (4, 4))
    one, graph = traced(fn, inputs, memory_budget=budget)
    memory = one.memory()
    results = graph(*inputs)
    saved = held(results[-1])
    assert layouts(value.value for value in memory.saved) == layouts(saved)
    assert memory.bytes == sum(value.nbytes for value in saved)


def test_each_saved_tensor_has_its_kind_its_reason_and_its_readers():
    memory = traced(lambda x, w: torch.exp(torch.tanh(x @ w) @ w), leaves((8, 4), (4, 4)))[0].memory()
    shown = {
        one.value.name: (one.kind, one.value.operator, [reader.operator for reader in one.readers])
        for one in memory.saved
    }
    assert shown == {
        "x": ("input", "", ["mm"]),
        "w": ("input", "", ["mm"]),
        "tanh_default": ("intermediate", "tanh", ["mul", "mm"]),
        "exp_default": ("result", "exp", ["mul"]),
    }
    assert [one.why for one in memory.saved if one.kind == "intermediate"] == [
        "reading it costs less than computing it"
    ]
    assert memory.added_bytes == 8 * 4 * 4


def test_cheap_values_are_recomputed():
    def cubes(x, w):
        y = x @ w
        return (y * y * y).sum()

    one, _ = traced(cubes, leaves((8, 4), (4, 4)))
    [again] = one.memory().recomputed
    assert (again.value.operator, again.why) == ("mul", "cheaper to compute than to save")
    readers = [reader for saved in one.memory().saved for reader in saved.readers if reader.through]
    assert {reader.through for reader in readers} == {("mul",)}


def test_a_checkpoint_recomputes_by_its_number():
    gm = graph_of(lambda x, w: torch.sin(torch.tanh(x @ w) @ w) @ w)
    for node in gm.graph.nodes:
        if node.name in ("matmul", "tanh", "matmul_1", "sin"):
            CHECKPOINT.set(node, Checkpoint(1))
    memory = traced(gm, leaves((8, 4), (4, 4)))[0].memory()
    assert {one.why for one in memory.recomputed} == {"checkpoint 1"}
    assert {one.value.operator for one in memory.recomputed} >= {"mm", "tanh"}
    assert [one.why for one in memory.saved if one.kind == "intermediate"] == ["it is read outside of its checkpoint"]


def test_the_budget_recomputes_by_segments():
    def deep(x, w):
        for _ in range(9):
            x = torch.tanh(torch.tanh(torch.tanh(x @ w) @ w) @ w)
        return x

    whys = {one.why for one in traced(deep, leaves((64, 4), (4, 4)), memory_budget=0.3)[0].memory().recomputed}
    assert whys and all(why.startswith("the memory budget, segment ") for why in whys)


def test_a_graph_without_gradients_saves_nothing():
    one, _ = traced(lambda x: x.sin().cos(), [torch.randn(3)])
    assert one.parts is None and not one.memory().saved and not one.memory().recomputed
