"""Dependencies of groups while these grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from sample_programs.samples import vjp

from framesmith_aten.meta import CHECKPOINT_PATH, PHASE, TANGENT
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.fusion import group as grouping
from framesmith_backends.schedule.fusion.group import Group, Grouping, Node
from framesmith_backends.target import CPU


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + F.gelu(F.layer_norm(x, (30,)) @ w)
    return x


def written(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x @ w
    mean = y.mean(0)
    x.copy_(y.sin())
    return mean[None] @ w, (x @ w).softmax(-1) + mean, torch.rand(30) + mean


PROGRAMS: dict[str, tuple[Callable[..., object], tuple[tuple[int, ...], ...]]] = {
    "layers": (layers, ((20, 30), (30, 30))),
    "their gradients": (vjp(layers, 2), ((20, 30), (30, 30), (20, 30))),
    "writes between": (written, ((20, 30), (30, 30))),
    "many sums": (lambda x: [(x + k).sum(0) * x.amax(1).sum() for k in range(6)], ((20, 30),)),
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_groups_between_are_found_through_direct_users(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both questions, asked whenever kernels are merged, have the answers that all nodes together give."""
    asked: list[bool] = []

    def is_between(g: Grouping, host: Group, other: Group) -> bool:
        nodes = [n for n in g.nodes.values() if n is not other and n is not host]
        expected = any(host.before >> n.number & 1 and n.before >> other.number & 1 for n in nodes)
        assert answers[0](g, host, other) is expected
        asked.append(expected)
        return expected

    def is_needed(g: Grouping, node: Node) -> bool:
        expected = any(n.before >> node.number & 1 for n in g.nodes.values())
        assert answers[1](g, node) is expected
        asked.append(expected)
        return expected

    answers = grouping.is_between, grouping._is_needed
    monkeypatch.setattr(grouping, "is_between", is_between)
    monkeypatch.setattr(grouping, "_is_needed", is_needed)
    function, shapes = PROGRAMS[name]
    program = lower_graph(trace(function, [torch.randn(s) for s in shapes]), CPU).program
    nodes = grouping.group(program)
    assert asked
    done = 0
    for node in nodes:  # dependencies are closed, and respected
        assert node.before & ~done == 0
        done |= 1 << node.number


def recomputed(x: torch.Tensor, tangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A gradient through `cos` of one checkpoint, then through `sin` of another, of what both have read."""
    first = tangent @ x.cos()
    second = (first @ x.sin()) * x
    return first, second


@pytest.mark.parametrize("marked", [False, True])
def test_what_two_checkpoints_recompute_is_not_one_kernel(marked: bool) -> None:
    gm = trace(recomputed, [torch.ones(30, 30), torch.ones(30, 30)])
    TANGENT.set([*gm.graph.find_nodes(op="placeholder")][1], True)
    for number, target in enumerate((torch.ops.aten.cos.default, torch.ops.aten.sin.default)):
        [node] = gm.graph.find_nodes(op="call_function", target=target)
        PHASE.set(node, "backward")
        if marked:
            CHECKPOINT_PATH.set(node, (number,))
    program = lower_graph(gm, CPU).program
    assert len(program.recomputed) == 2 * marked
    groups = [node for node in grouping.group(program) if isinstance(node, Group)]
    names = [{one.name.partition(".")[0] for one in node.members} for node in groups]
    assert any({"cos_default", "sin_default"} <= own for own in names) is not marked, names
