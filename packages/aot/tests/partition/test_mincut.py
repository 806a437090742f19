"""The minimum cut has the value of the best of all cuts, and separates source from sink."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_aot.partition.mincut import INFINITE, FlowNetwork

edges = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)).filter(lambda e: e[0] != e[1]), max_size=14
)


def value(cut, graph):
    return sum(capacity for tail, head, capacity in graph if tail in cut and head not in cut)


@settings(max_examples=150, deadline=None)
@given(edges)
def test_best_of_all_cuts(graph):
    network = FlowNetwork(6)
    for tail, head, capacity in graph:
        network.add_edge(tail, head, float(capacity))
    side = network.source_side(0, 5)
    assert side is not None and 0 in side and 5 not in side
    others = range(1, 5)
    every = [{0, *chosen} for n in range(5) for chosen in itertools.combinations(others, n)]
    assert value(side, graph) == min(value(cut, graph) for cut in every)


def test_infinite_path():
    network = FlowNetwork(3)
    network.add_edge(0, 1, INFINITE)
    network.add_edge(1, 2, INFINITE)
    assert network.source_side(0, 2) is None


def test_chain_is_cut_at_its_cheapest_edge():
    network = FlowNetwork(4)
    for tail, capacity in ((0, INFINITE), (1, 3.0), (2, 5.0)):
        network.add_edge(tail, tail + 1, capacity)
    assert network.source_side(0, 3) == {0, 1}


def test_of_equal_edges_the_last_is_cut():
    network = FlowNetwork(5)
    for tail, capacity in ((0, INFINITE), (1, 3.0), (2, 3.0), (3, 5.0)):
        network.add_edge(tail, tail + 1, capacity)
    assert network.source_side(0, 4) == {0, 1, 2}
