"""Graphs with views, aliases, mutations and layers behave compiled as they do eagerly."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, LAYERS
from harness import compiled, graph_of, run_both

from framesmith_aot import AotUnsupported

ALL = {**CASES, **LAYERS}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("history", [False, True], ids=["leaves", "history"])
def test_training(name, history):
    function, inputs = ALL[name]
    run_both(graph_of(function), inputs, history=history)


@pytest.mark.parametrize("name", ALL)
def test_no_grad(name):
    function, inputs = ALL[name]
    with torch.no_grad():
        graph = run_both(graph_of(function), inputs)
    assert not graph.backward_passes


@pytest.mark.parametrize("name", ALL)
def test_inference_mode(name):
    function, inputs = ALL[name]
    run_both(graph_of(function), [value.detach() for value in inputs], inference=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALL)
def test_copies_outside_the_graph(name):
    function, inputs = ALL[name]
    graph = run_both(graph_of(function), inputs, keep_input_mutations=False)
    assert torch.ops.aten.copy_.default not in [node.target for node in graph.forward_graph.nodes]


@pytest.mark.parametrize("name", LAYERS)
def test_without_decompositions(name):
    function, inputs = ALL[name]
    run_both(graph_of(function), inputs, lowers=lambda op: True)


@pytest.mark.parametrize("dims", [(0, 1), (1, 0)])
def test_memory_with_gaps_keeps_its_order(dims):
    def program(x):
        view = x.permute(dims)
        view.scatter_add_(0, torch.zeros_like(view, dtype=torch.int64), view.clone())
        return x * 2, torch.nn.functional.dropout(x + 1, 0.5)

    gapped = torch.arange(24.0).view(3, 8)[:, ::2]
    torch.manual_seed(0)
    wanted = program(gapped.clone())
    found = []
    for value in (gapped, torch.arange(24.0).view(3, 8)[:, ::2]):
        torch.manual_seed(0)
        run = program if value is gapped else compiled(graph_of(program), [value]).function
        results = run(value)
        found.append(results)
    for mine, theirs, contiguous in zip(found[1], found[0], wanted, strict=True):
        assert mine.stride() == theirs.stride() == contiguous.stride() == (4, 1)
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_leaves_made_in_inference_mode(mode):
    """`x.sum()` of one records no gradient, `x + w` does: graphs that record are refused."""
    with torch.inference_mode():
        leaf = torch.ones(3).requires_grad_()
    graph = graph_of(lambda x, w: x.sum() * w)
    with mode():
        if mode is torch.enable_grad:
            with pytest.raises(AotUnsupported, match="inference-leaf"):
                compiled(graph, [leaf, torch.ones(3)])
        else:
            assert compiled(graph, [leaf, torch.ones(3)]).function(leaf, torch.ones(3))[0].tolist() == [3.0] * 3
