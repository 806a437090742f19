"""Detached graphs, rehydrated: equal nodes, metadata and values, which share memory as before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from framesmith_aten.graphs.detached import detach_graph

aten = torch.ops.aten


def graph_of(mode: FakeTensorMode) -> fx.Graph:
    graph = fx.Graph()

    def noted(node: fx.Node, value: object, stack: str | None = None) -> fx.Node:
        node.meta.update({"val": value, "phase": "forward", "tangent": node.op == "placeholder"})
        if stack is not None:
            node.meta["stack_trace"] = stack
        return node

    with mode:
        x = torch.empty_strided((3, 4), (1, 3), dtype=torch.bfloat16, requires_grad=True)
        turned = x.t()
        row = turned[1]
        both = torch.split(turned, 2)
    a = noted(graph.placeholder("x"), x)
    b = noted(graph.call_function(aten.t.default, (a,)), turned, "one line")
    c = noted(graph.call_function(aten.select.int, (b, 0, 1)), row, "one line")
    d = noted(graph.call_function(aten.split.Tensor, (b,), {"split_size": 2}), list(both), "another")
    e = noted(graph.call_function(aten.cat.default, ([c, c],)), None)
    graph.output((e, [b, None, slice(None, d)]))
    return graph


def storages(graph: fx.Graph) -> list[int]:
    found = [leaf for node in graph.nodes for leaf in tree_leaves(node.meta.get("val")) if leaf is not None]
    return [leaf.untyped_storage()._cdata for leaf in found]


def fakes(graph: fx.Graph) -> list[torch.Tensor]:
    leaves = [leaf for node in graph.nodes for leaf in tree_leaves(node.meta.get("val"))]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def test_a_rehydrated_graph_is_equal() -> None:
    mode = FakeTensorMode()
    graph = graph_of(mode)
    detached = detach_graph(graph)
    assert detached is not None
    again = detached.rehydrate()
    assert str(again) == str(graph)
    again.lint()
    for one, other in zip(graph.nodes, again.nodes, strict=True):
        assert (one.name, one.op, one.target, str(one.args), str(one.kwargs)) == (
            other.name, other.op, other.target, str(other.args), str(other.kwargs)
        )  # fmt: skip
        assert {**one.meta, "val": None} == {**other.meta, "val": None}
    pairs = list(zip(fakes(graph), fakes(again), strict=True))
    assert len(pairs) == 5
    for mine, made in pairs:
        assert type(made) is FakeTensor
        assert made.fake_mode is mode
        assert (made.shape, made.stride(), made.storage_offset()) == (mine.shape, mine.stride(), mine.storage_offset())
        assert (made.dtype, made.device, made.requires_grad) == (mine.dtype, mine.device, mine.requires_grad)
    assert len(set(storages(again))) == len(set(storages(graph))) == 1


class Watching(TorchDispatchMode):
    """Notes every operator that runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))  # type: ignore[operator, misc]


@pytest.mark.parametrize("other", [FakeTensorMode, nullcontext], ids=["under other fakes", "plain"])
def test_who_watches_operators_sees_nothing_of_it(other: Callable[[], AbstractContextManager[object]]) -> None:
    mode = FakeTensorMode()
    graph = graph_of(mode)
    detached = detach_graph(graph)
    assert detached is not None
    with other(), Watching() as watching:
        again = detached.rehydrate()
    assert not watching.seen
    assert all(type(fake) is FakeTensor and fake.fake_mode is mode for fake in fakes(again))
    assert [fake.stride() for fake in fakes(again)] == [fake.stride() for fake in fakes(graph)]


def test_the_fakes_are_gone() -> None:
    graph = graph_of(FakeTensorMode())
    refs = [weakref.ref(fake) for fake in fakes(graph)]
    detached = detach_graph(graph)
    del graph
    gc.collect()
    assert detached is not None
    assert not any(ref() is not None for ref in refs)


def symbolic(graph: fx.Graph) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    first = next(iter(graph.nodes))
    first.meta["val"] = mode.from_tensor(torch.empty(5, 7))


def of_two_modes(graph: fx.Graph) -> None:
    with FakeTensorMode():
        next(iter(graph.nodes)).meta["val"] = torch.empty(2)


def with_a_real_tensor(graph: fx.Graph) -> None:
    next(iter(graph.nodes)).meta["val"] = torch.empty(2)


def with_a_conjugate(graph: fx.Graph) -> None:
    first = next(iter(graph.nodes))
    with first.meta["val"].fake_mode:
        first.meta["val"] = torch.empty(2, dtype=torch.complex64).conj()


def with_a_node_noted(graph: fx.Graph) -> None:
    first, second, *_ = graph.nodes
    second.meta["of"] = [first]


@pytest.mark.parametrize("change", [symbolic, of_two_modes, with_a_real_tensor, with_a_conjugate, with_a_node_noted])
def test_what_could_not_be_made_again_stays(change: Callable[[fx.Graph], None]) -> None:
    graph = graph_of(FakeTensorMode())
    change(graph)
    assert detach_graph(graph) is None
