"""Writes to parts of an input as copies onto these parts, wherever no result differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graphs.tracing import mutating
from torch import fx

from framesmith_aten.operators import op_name, view_written
from framesmith_backends import CpuBackend
from framesmith_backends.rewrite.in_place_calls import with_calls_in_place
from framesmith_backends.rewrite.partial_writes import write_parts
from framesmith_backends.rewrite.regions import region_of

Tensor = torch.Tensor
copy = torch.ops.aten.copy_.default


def mutating_first(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The graph of the function, whose first result is copied onto the first input at the end."""
    return mutating(function, inputs, [0])


def check(gm: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
    """Runs the graph as kernels and as it is, and compares results and inputs; results share no memory."""
    plain, compiled = ([x.clone() for x in inputs] for _ in range(2))
    wanted = gm(*plain)
    found = CpuBackend().compile(gm, inputs)(list(compiled))
    for one, two in zip([*found, *compiled], [*wanted, *plain], strict=True):
        torch.testing.assert_close(one, two)
        assert one.stride() == two.stride()
    memory = [x.untyped_storage().data_ptr() for x in (*found, *compiled)]
    assert len({*memory}) == len(memory)


CACHE, NEW, AT = torch.linspace(-1, 1, 96).reshape(2, 2, 4, 6), torch.full((2, 6), 5.0), torch.tensor([1, 3])


def put(whole: Tensor, value: Tensor, *indices: int) -> Tensor:
    """`whole` with what stands at these indices of its first dimensions replaced, as graphs have it."""
    at, *rest = indices
    return torch.select_scatter(whole, put(whole[at], value, *rest) if rest else value, 0, at)


def two_layers(c: Tensor, n: Tensor, i: Tensor) -> Any:
    for layer in range(2):
        for half in range(2):
            c = put(c, c[layer].unbind()[half].index_copy(0, i, n * (1 + half)), layer, half)
        keys, values = c[layer].unbind()
        n = n + (n @ keys.t()).softmax(-1) @ values
    return c, n


WHOLE: dict[str, Callable[..., Any]] = {
    "one part": lambda c, n, i: (put(c, c[0, 1] * 2, 0, 1), n + 1),
    "a part that is read": lambda c, n, i: (v := put(c, c[0, 1] * 2, 0, 1), v[0, 1].sum(0)),
    "beside what is read": lambda c, n, i: (v := put(c, c[0, 1] * 2, 0, 1), v[1, 1] + v[0, 0]),
    "twice": lambda c, n, i: (put(v := put(c, c[0, 1] * 2, 0, 1), v[0, 1].exp(), 0, 1), n * 2),
    "all of it, then a part": lambda c, n, i: (put(put(c, c[0].sin(), 0), n[0] * 2, 0, 1, 2), n * 2),
    "a slice": lambda c, n, i: (v := torch.slice_scatter(c, n.expand(2, 2, 2, 6) * 2, 2, 1, 3), v[:, :, 3:] + 1),
    "a slice from behind": lambda c, n, i: (torch.slice_scatter(c, c[:, :, -2:].exp(), 2, -2), n.sin()),
    "every other": lambda c, n, i: (torch.slice_scatter(c, c[..., ::2].exp(), 3, 0, 6, 2), c[..., 1] * 2),
    "calls": two_layers,
    "of another type": lambda c, n, i: (v := put(c, c[0, 1].double() * 2, 0, 1), n * 2, v[1, 1] + 1),
}


@pytest.mark.parametrize("name", WHOLE)
def test_parts_alone_are_written(name: str) -> None:
    inputs = [CACHE, NEW, AT]
    gm = mutating_first(WHOLE[name], inputs)
    graph = write_parts(gm).graph
    ends = graph.find_nodes(op="call_function", target=copy)
    assert ends
    assert all((part := region_of(end.args[0])) is not None and part.steps for end in ends)
    assert not any(view_written(node.target) for node in graph.nodes)
    check(gm, inputs)
    assert any(view_written(node.target) for node in gm.graph.nodes)  # the graph given is left as it was


def test_calls_write_to_their_parts_themselves() -> None:
    gm = with_calls_in_place(write_parts(mutating_first(two_layers, [CACHE, NEW, AT])))
    names = [op_name(node.target) for node in gm.graph.nodes if node.op == "call_function"]
    assert names.count("index_copy_") == 4 and not {"copy_", "index_copy", "select_scatter"} & {*names}


READ_ELSEWHERE: dict[str, Callable[..., Any]] = {
    "the part before": lambda c, n, i: (put(c, c[0, 1].index_copy(0, i, n), 0, 1), c[0, 1] @ n.t()),
    "around it": lambda c, n, i: (put(c, c[0, 1].index_copy(0, i, n), 0, 1), c[0].flatten(0, 1) @ n.t()),
    "by another view": lambda c, n, i: (put(c, c[0, 1].index_copy(0, i, n), 0, 1), c.flatten() * 2),
    "by the call": lambda c, n, i: (put(c, c[0, 1].index_copy(0, i, c[0, 1, :2]), 0, 1), n * 2),
    "in a result": lambda c, n, i: (put(c, v := c[0, 1].index_copy(0, i, n), 0, 1), v),
    "a view of it in a result": lambda c, n, i: (put(c, v := c[0, 1].index_copy(0, i, n), 0, 1), v[1:]),
}


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_calls_whose_part_somebody_reads_write_to_a_copy_of_it(name: str) -> None:
    inputs = [CACHE, NEW, AT]
    gm = mutating_first(READ_ELSEWHERE[name], inputs)
    names = [str(node.target) for node in with_calls_in_place(write_parts(gm)).graph.nodes]
    assert "aten.index_copy.default" in names
    check(gm, inputs)


LEFT: dict[str, Callable[..., Any]] = {
    "parts exchanged": lambda c, n, i: (put(put(c, c[1], 0), c[0], 1),),
    "a part of another": lambda c, n, i: (put(c, c[1, 0], 0, 1),),
    "of another tensor": lambda c, n, i: (put(c + 1, c[0, 1] * 2, 0, 1),),
    "a part of it": lambda c, n, i: (torch.select_scatter(c.transpose(0, 1), c[0] * 2, 1, 0).transpose(0, 1),),
}


@pytest.mark.parametrize("name", LEFT)
def test_writes_that_results_show_stay_whole(name: str) -> None:
    gm = mutating_first(LEFT[name], [CACHE, NEW, AT])
    assert write_parts(gm) is gm
    check(gm, [CACHE, NEW, AT])


SEEN: dict[str, Callable[..., Any]] = {
    "computed of another type": lambda c, n, i: (v := put(c, c[0, 1].double().exp(), 0, 1), v[0, 1] * 2),
    "a version": lambda c, n, i: (v := put(c, c[0, 1] * 2, 0, 1), v),
    "a part of a version": lambda c, n, i: (v := put(c, c[0, 1] * 2, 0, 1), v[0, 1]),
    "what was written, and the part": lambda c, n, i: (v := put(c, w := c[0, 1] * 2, 0, 1), v[0, 1], w),
    "a view that crosses writes": lambda c, n, i: (v := put(put(c, n[0], 0, 1, 1), n[1], 0, 1, 2), v[0, 1] + 1, n * 2),
}


@pytest.mark.parametrize("name", SEEN)
def test_results_have_memory_of_their_own(name: str) -> None:
    check(mutating_first(SEEN[name], [CACHE, NEW, AT]), [CACHE, NEW, AT])
