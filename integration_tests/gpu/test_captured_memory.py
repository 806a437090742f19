"""Memory of captured graphs on the simulated GPU: it lives as long as a graph may use it, and no longer."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

SIMULATED = torch.cuda.is_available() and torch.cuda.get_device_name() == "simulated GPU"
pytestmark = pytest.mark.skipif(
    not SIMULATED or os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "0",
    reason="no simulated GPU on which each tensor is an allocation of its own",
)
Made = tuple[torch.cuda.CUDAGraph, torch.Tensor]


def allocations() -> int:
    from integration_tests.simulated_gpu.device import start

    gc.collect()
    return int(start().driver.sim_count_allocations())


@pytest.fixture(autouse=True)
def _generator_has_its_memory() -> Iterator[None]:
    """While there are graphs, the generator's state for replays takes memory."""
    x = torch.ones(1, device="cuda")
    held = [captured(x) for _ in range(2)]
    for graph, y in held:
        graph.replay()
        torch.testing.assert_close(y, y)
    yield


def captured(x: torch.Tensor) -> Made:
    """A graph of two operators, with a result between them that nobody holds."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2).sin()
    return graph, y


def test_memory_of_a_capture_goes_with_its_graph_on_a_gpu() -> None:
    x = torch.arange(4.0, device="cuda")
    before = allocations()
    graph, y = captured(x)
    held = allocations()
    assert held >= before + 2  # torch may add the generator's state
    for k in range(2):
        x.fill_(k)
        graph.replay()
        torch.testing.assert_close(y, torch.full_like(y, 2 * k).sin())
    del y
    assert allocations() == held  # the next replay writes there
    graph.replay()
    del graph
    assert allocations() == before


def test_what_a_graph_has_made_stays_with_who_holds_it_on_a_gpu() -> None:
    x = torch.ones(4, device="cuda")
    before = allocations()
    graph, y = captured(x)
    graph.replay()
    graph.reset()
    assert allocations() == before + 1 and y.tolist() == torch.full((4,), 2.0).sin().tolist()
    del y
    assert allocations() == before


def test_a_later_graph_keeps_what_it_reads_of_an_earlier_one_on_a_gpu() -> None:
    x = torch.ones(4, device="cuda")
    before = allocations()
    first, y = captured(x)
    second, z = captured(y)
    first.replay()
    del first, y
    second.replay()
    torch.testing.assert_close(z.cpu(), (torch.full((4,), 2.0).sin() * 2).sin())
    del second, z
    assert allocations() == before


def test_a_capture_that_fails_leaves_nothing_on_a_gpu() -> None:
    x = torch.ones(4, device="cuda")
    before = allocations()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError), torch.cuda.graph(graph):
        (x * 2).sin().tolist()
    del graph
    assert allocations() == before


@pytest.mark.parametrize("again", [False, True])
def test_a_graph_on_memory_that_was_freed_is_an_error_on_a_gpu(again: bool) -> None:
    """Also where the memory has become another tensor's."""
    from integration_tests.simulated_gpu.device import start

    x = torch.ones(4, device="cuda")
    graph, y = captured(x)
    del x
    others = [torch.ones(4, device="cuda") for _ in range(64 if again else 0)]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        graph.replay()
        torch.cuda.synchronize()
    errors = start().recover()
    assert len(errors) == 1 and "a graph uses memory that was freed: aten.mul.Tensor at 0x" in errors[0]
    del graph, y, others
