"""Results of scans that nothing uses, and operands that bodies do not read, are dropped."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes import new_fake_mode
from framesmith_aten.graphs.control_flow import scan
from framesmith_aten.graphs.tidying.cleanup import eliminate_dead
from framesmith_aten.graphs.tidying.unused_steps import drop_unused_steps
from framesmith_aten.graphs.verify import verify
from framesmith_aten.tracing.tracer import GraphTracer

aten = torch.ops.aten


def traced(body, examples):
    mode = new_fake_mode()
    tracer = GraphTracer(mode)
    fakes = [mode.from_tensor(one) for one in examples]
    for at, one in enumerate(fakes):
        tracer.placeholder(f"x{at}", one)
    with mode, tracer:
        results = body(*fakes)
    tracer.graph.output(tuple(tracer.node_of(one) for one in results))
    return mode, tracer, fakes, results


def a_scan(step, used):
    """Return a module of a scan of two carried values, two tensors and a captured one, which returns `used` results."""
    start, xs, weight = torch.randn(2, 3), torch.randn(2, 5, 3), torch.randn(3)
    _, inner, _, _ = traced(step, [*start, *xs[:, 0], weight])
    body = fx.GraphModule(inner.attributes, inner.graph)
    mode, tracer, fakes, _ = traced(lambda *args: args, [*start, *xs, weight])
    tracer.graph.erase_node(tracer.graph.output_node())
    with mode:
        made = [torch.empty(3), torch.empty(3), torch.empty(5, 3), torch.empty(5, 3)]
    tracer.call_bodies(scan, [body], ((2, 2), False), fakes, made)
    tracer.graph.output(tuple(tracer.node_of(made[at]) for at in used))
    return fx.GraphModule(tracer.attributes, tracer.graph), [*start, *xs, weight]


def step(c, d, x, y, w):
    return aten.add.Tensor(c, x), aten.mul.Tensor(d, 2), aten.mul.Tensor(y, w), aten.mul.Tensor(c, x)


def test_unused_results_and_what_only_they_read():
    for used in ((0, 1, 2, 3), (0, 3), (2,), (3, 1), (0,), (1,)):
        gm, inputs = a_scan(step, used)
        want = gm(*inputs)
        drop_unused_steps(gm.graph)
        eliminate_dead(gm.graph)
        gm.recompile()
        verify(gm.graph)
        for one, other in zip(gm(*inputs), want, strict=True):
            torch.testing.assert_close(one, other)


def test_a_slice_that_counts_the_steps_stays():
    gm, _ = a_scan(step, (1,))
    drop_unused_steps(gm.graph)
    [node] = [one for one in gm.graph.nodes if one.target is scan]
    assert node.args[1] == (2, 1)
    gm, _ = a_scan(step, (0, 3))
    drop_unused_steps(gm.graph)
    [node] = [one for one in gm.graph.nodes if one.target is scan]
    assert node.args[1] == (2, 1)
    assert len(node.args) == 3 + 3
    assert len(node.meta["val"]) == 3


def test_steps_are_not_recorded_one_by_one():
    def scanned(x):
        return scan(lambda c, a: (aten.add.Tensor(c, a), aten.mul.Tensor(c, a)), (1, 1), False, x[0], x)

    with pytest.raises(TraceUnsupported, match="control flow"):
        traced(scanned, [torch.ones(3, 2)])
