"""Graphs that draw random numbers natively: the numbers of eager mode, and its state of the generator after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic

from framesmith_aten.tracing.redrawn import redrawn_mask
from framesmith_backends import CpuBackend
from framesmith_backends.native_ops.random_numbers.operator import (
    DRAWN_MASK,
    DRAWN_UNIFORM,
    FEWEST,
    REDRAWN_MASK,
    matches_aten,
)
from framesmith_backends.native_ops.random_numbers.rewrite import with_drawn_numbers

aten = torch.ops.aten
Function = Callable[[torch.Tensor], Any]
SHAPES = ((64, 70), (3, 5), (2049, 2))

DRAWN: dict[str, Function] = {
    "mask, read as numbers": lambda x: aten.bernoulli.p(torch.empty_like(x), 0.3) * x,
    "mask, compared": lambda x: (mask := aten.bernoulli.p(torch.empty_like(x), 0.3), mask != 0, mask != 1),
    "mask of half numbers": lambda x: aten.bernoulli.p(torch.empty_like(x).to(torch.bfloat16), 0.7).ne(0),
    "never and always": lambda x: (aten.bernoulli.p(x, 0.0), aten.bernoulli.p(x, 1.0)),
    "transposed": lambda x: aten.bernoulli.p(x.t(), 0.5),
    "uniform": lambda x: torch.rand(x.shape) + torch.rand_like(x),
    "in turn": lambda x: (torch.rand(x.shape), torch.randn(x.shape), aten.bernoulli.p(x, 0.5), torch.rand(x.shape)),
}
LEFT: dict[str, Function] = {
    "doubles": lambda x: torch.rand(x.shape, dtype=torch.float64),
    "other distributions": lambda x: (torch.randn_like(x), aten.uniform.default(x, -1.0, 2.0), aten.bernoulli(x * 0)),
}


def ours(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.target in (DRAWN_MASK, DRAWN_UNIFORM)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*DRAWN, *LEFT])
def test_the_same_numbers(name: str, shape: tuple[int, ...]) -> None:
    function = (DRAWN | LEFT)[name]
    x = torch.ones(shape)
    gm = trace(function, [x])
    call = CpuBackend().compile(gm, [x])
    for seed, before in ((1, 0), (2, 1)):
        found = []
        for run in (lambda: function(x), lambda: call([x])):
            torch.manual_seed(seed)
            torch.rand(before)
            result = run()
            found.append((*(result if isinstance(result, tuple) else (result,)), torch.get_rng_state()))
        for wanted, got in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0, check_stride=True)
    many = torch.Size(shape).numel() >= FEWEST
    assert bool(ours(with_drawn_numbers(gm))) == (name in DRAWN and many and matches_aten())


def test_dynamic_shapes() -> None:
    function = DRAWN["mask, read as numbers"]
    gm = trace_symbolic(function, [torch.ones(64, 70)])
    call = CpuBackend().compile(gm, [torch.ones(64, 70)])
    for shape in ((64, 70), (3, 5), (700, 9)):
        found = []
        for run in (function, lambda x: call([x])[0]):
            torch.manual_seed(0)
            found.append((run(torch.ones(shape)), torch.get_rng_state()))
        assert all(map(torch.equal, *found))
    assert bool(ours(with_drawn_numbers(gm))) == matches_aten()


def test_another_generator_is_used() -> None:
    gm = trace(lambda x: aten.bernoulli.p(x, 0.3), [torch.ones(64, 70)])
    [node] = gm.graph.find_nodes(op="call_function", target=aten.bernoulli.p)
    node.kwargs = {"generator": torch.Generator()}
    assert with_drawn_numbers(gm) is gm


def test_a_comparison_reads_the_mask_itself() -> None:
    if not matches_aten():
        pytest.skip("ATen draws zeros and ones by a library on this processor")
    gm = with_drawn_numbers(trace(lambda x: aten.bernoulli.p(torch.empty_like(x), 0.3).ne(0), [torch.ones(64, 70)]))
    assert [node.target for node in gm.graph.nodes if node.op == "call_function"] == [DRAWN_MASK]


@pytest.mark.parametrize("count", [100, 50_000])
def test_masks_are_drawn_again_from_a_state(count: int) -> None:
    def function(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return redrawn_mask()(state, x.shape, 0.3).float() * x

    state, x = torch.Generator().manual_seed(4).get_state(), torch.randn(count)
    gm = trace(function, [state, x])
    assert torch.equal(CpuBackend().compile(gm, [state, x])([state, x])[0], function(state, x))
    assert torch.equal(state, torch.Generator().manual_seed(4).get_state())
    found = with_drawn_numbers(gm)
    assert (REDRAWN_MASK in [node.target for node in found.graph.nodes]) == (count >= FEWEST and matches_aten())
