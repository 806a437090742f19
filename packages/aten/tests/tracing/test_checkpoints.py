"""Checkpoints in the tracer: marks of nodes, and policies that are asked about operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith_aten.fakes import new_fake_mode
from framesmith_aten.graphs.tidying.cleanup import merge_equal
from framesmith_aten.meta import CHECKPOINT, CHECKPOINT_PATH, SAVED_IN, Checkpoint
from framesmith_aten.tracing.tracer import GraphTracer

aten = torch.ops.aten


def traced(run: Any, *checkpoints: Checkpoint | None) -> fx.Graph:
    """Return the graph of `run`, called once in each of the checkpoints."""
    mode = new_fake_mode()
    tracer = GraphTracer(mode)
    source = fx.Graph()
    x = mode.from_tensor(torch.ones(3, 3), static_shapes=True)
    tracer.placeholder("x", x)
    results = []
    with mode, tracer:
        for checkpoint in checkpoints:
            tracer.source = source.call_function(run)
            if checkpoint is not None:
                CHECKPOINT.set(tracer.source, checkpoint)
            results.append(run(x))
    tracer.graph.output(tuple(map(tracer.node_of, results)))
    return tracer.graph


def test_nodes_have_the_path_of_their_checkpoint() -> None:
    outer = Checkpoint(1)
    graph = traced(torch.sin, None, outer, Checkpoint(2, outer))
    assert [CHECKPOINT_PATH.get(node) for node in graph.find_nodes(op="call_function", target=aten.sin.default)] == [
        None,
        (1,),
        (1, 2),
    ]


def test_a_policy_is_asked_once_about_an_operator() -> None:
    asked = []

    def saves(op: Any, args: Any, kwargs: Any, result: torch.Tensor) -> bool:
        asked.append((op, tuple(result.shape)))
        return op is aten.silu.default

    outer = Checkpoint(1, None, saves)
    graph = traced(lambda x: torch.nn.functional.silu(x).cos(), Checkpoint(2, outer))
    assert asked == [(aten.silu.default, (3, 3)), (aten.cos.default, (3, 3))]
    kept = {node.target for node in graph.nodes if SAVED_IN.on(node)}
    assert len(kept) == 1 and aten.cos.default not in kept
    assert [SAVED_IN.of(node) for node in graph.nodes if SAVED_IN.on(node)] == [(1,)]


def test_equal_calls_are_merged_within_a_checkpoint_alone() -> None:
    one = Checkpoint(1)
    graph = traced(torch.sin, None, one, one, Checkpoint(2), None)
    merge_equal(graph)
    assert [CHECKPOINT_PATH.get(node) for node in graph.find_nodes(op="call_function", target=aten.sin.default)] == [
        None,
        (1,),
        (2,),
    ]
