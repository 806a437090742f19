"""Nodes of integer expressions: made of symbols that the graph knows, and right for every value of these."""

from __future__ import annotations

import math
import operator

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from framesmith_aten.graphs.nodes import is_pure, may_fail
from framesmith_aten.graphs.numbers import (
    FUNCTIONS,
    LAYOUT_QUERIES,
    ScalarNodes,
    divide,
    is_number_node,
    numbers_in,
    numbers_of,
)
from framesmith_aten.graphs.verify import why_invalid

aten = torch.ops.aten


def symbolic(*sizes):
    """A fake tensor with symbols for its sizes."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(sizes))
    return mode.from_tensor(torch.zeros(sizes), symbolic_context=context)


def graph_with(tensor):
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = tensor
    numbers = ScalarNodes(graph)
    numbers.offer_layout(tensor, node)
    return graph, numbers


def value(graph, node, *tensors):
    graph.output((node,))
    return fx.GraphModule({}, graph)(*tensors)[0]


POSITIVE = st.sampled_from(
    [operator.add, operator.mul, torch.sym_max, torch.sym_min, lambda a, b: a // b, lambda a, b: a % b + 1]
)
EXPRESSIONS = st.recursive(
    st.sampled_from([lambda a, b: a, lambda a, b: b, lambda a, b: 3, lambda a, b: 7]),
    lambda inner: st.builds(
        lambda function, left, right: lambda a, b: function(left(a, b) + 1, right(a, b) + 1), POSITIVE, inner, inner
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(EXPRESSIONS, st.lists(st.tuples(st.integers(2, 40), st.integers(2, 40)), min_size=3, max_size=3))
def test_expressions(expression, sizes):
    tensor = symbolic(5, 9)
    graph, numbers = graph_with(tensor)
    number = expression(*tensor.shape)
    if not isinstance(number, torch.SymInt):
        return
    node = numbers.node_of(number)
    graph.lint()
    if isinstance(node, fx.Node):
        assert all(is_number_node(one) for one in graph.nodes if one.op == "call_function")
        assert {one.target for one in graph.nodes if one.op == "call_function"} <= FUNCTIONS | LAYOUT_QUERIES
        graph.output((node,))
        assert why_invalid(graph) is None
        module = fx.GraphModule({}, graph)
        for a, b in sizes:
            assert module(torch.empty(a, b))[0] == expression(a, b)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s / 2,
        lambda s: torch.sym_float(s) * 2.5,
        lambda s: math.ceil(s / 2),
        lambda s: math.floor(s / 3),
        lambda s: torch.sym_sqrt(s),
        lambda s: s > 9,
        lambda s: torch.sym_not(s > 4),
        lambda s: s == 7,
        lambda s: abs(s - 9),
        lambda s: s**2,
        lambda s: -s,
        lambda s: s & 3,
        lambda s: torch.sym_sum([s, s // 2, s // 3, 1]),
        lambda s: torch.sym_ite(s > 4, s * 2, s),
        lambda s: torch.sym_ite(s > 4, torch.sym_ite(s > 8, s // s * 3, s), s + 1),
    ],
)
def test_other_functions(function):
    tensor = symbolic(5)
    for size in (2, 3, 7, 11):
        graph, numbers = graph_with(tensor)
        node = numbers.node_of(function(tensor.shape[0]))
        found, expected = value(graph, node, torch.empty(size)), function(size)
        assert found == expected and type(found) is type(expected)


def test_one_node_for_equal_numbers():
    tensor = symbolic(5, 9)
    a, b = tensor.shape
    _, numbers = graph_with(tensor)
    assert numbers.node_of(a * b + a) is numbers.node_of(a + b * a)
    assert numbers.node_of(a) is numbers.node_of(tensor.shape[0])


def test_what_is_computed_of_known_numbers_is_not_asked_of_a_later_tensor():
    sizes = symbolic(4, 8)
    size, double = sizes.shape
    area = size * double
    torch._check(double == 2 * size)
    with sizes.fake_mode:
        x = torch.empty(size)
    graph, numbers = graph_with(x)  # which does not know `double`
    later = graph.call_function(aten.repeat.default, (next(iter(graph.nodes)), [8]))
    with sizes.fake_mode:
        later.meta["val"] = torch.empty(area)
    numbers.offer_layout(later.meta["val"], later)
    assert numbers.node_of(later.meta["val"].shape[0]) < later


def test_what_is_known_is_no_node():
    tensor = symbolic(5, 9)
    _, numbers = graph_with(tensor)
    assert numbers.node_of(tensor.shape[0] - tensor.shape[0] + 3) == 3
    assert bool(tensor.shape[0] == 5)
    assert numbers.node_of(tensor.shape[0]) == 5


def test_a_symbol_that_nothing_binds():
    _, numbers = graph_with(symbolic(5))
    other = symbolic(5, 9).shape[1]
    assert not numbers.knows(other)
    with pytest.raises(KeyError):
        numbers.node_of(other)


def test_nodes_stand_before_what_is_there():
    tensor = symbolic(5)
    graph, numbers = graph_with(tensor)
    relu = graph.call_function(aten.relu.default, (next(iter(graph.nodes)),))
    relu.meta["val"] = tensor
    later = graph.placeholder("later")
    later.meta["val"] = tensor
    assert numbers.node_of(tensor.shape[0] * 2 + 1) < relu
    again = numbers_in(graph)
    assert again.node_of(tensor.shape[0]) < relu


def test_strides_and_offsets():
    tensor = symbolic(6, 8)[1:, ::2]
    graph, numbers = graph_with(tensor)
    entries = numbers_of(tensor)
    assert ("offset", 0) in entries and ("size", 1) in entries
    node = numbers.node_of(tensor.storage_offset())
    assert value(graph, node, torch.empty(7, 10)[1:, ::2]) == 10


def test_purity_and_failure():
    tensor = symbolic(5)
    graph, numbers = graph_with(tensor)
    node = numbers.node_of(tensor.shape[0] // 2)
    assert is_pure(node) and not may_fail(node)
    unknown = tensor.shape[0].node.shape_env.create_unbacked_symfloat()
    given = graph.placeholder("f")
    given.meta["val"] = unknown
    divided = graph.call_function(operator.truediv, (1.0, given))
    divided.meta["val"] = unknown
    assert is_pure(divided) and may_fail(divided)


def test_symbols_among_arguments_are_no_graph():
    tensor = symbolic(5)
    graph, numbers = graph_with(tensor)
    x = next(iter(graph.nodes))
    made = graph.call_function(aten.expand.default, (x, [tensor.shape[0]]))
    made.meta["val"] = tensor
    assert "symbol" in why_invalid(graph)
    made.args = (x, [numbers.node_of(tensor.shape[0])])
    assert why_invalid(graph) is None


def test_division_is_that_of_doubles():
    numbers = (3.0, -3.0, 0.0, -0.0, math.inf, math.nan, 2)
    for dividend in numbers:
        for divisor in numbers:
            quotient = torch.tensor(dividend, dtype=torch.float64) / divisor
            torch.testing.assert_close(torch.tensor(divide(dividend, divisor)).double(), quotient, equal_nan=True)
            assert math.copysign(1, divide(dividend, divisor)) == math.copysign(1, quotient) or quotient.isnan()


def test_what_formulas_divide_by_zero_is_infinite():
    x = symbolic(5, 4)
    graph, numbers = graph_with(x)
    rows, columns = x.shape
    node = numbers.node_of(torch.sym_float(columns) / torch.sym_float(rows - 3))
    assert value(graph, node, torch.zeros(3, 4)) == math.inf


def test_a_sum_of_many_terms_is_one_node():
    tensor = symbolic(*range(2, 10))
    graph, numbers = graph_with(tensor)
    node = numbers.node_of(torch.sym_sum([*tensor.shape, 3]) * 2)
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert targets.count(torch.sym_sum) == 1 and operator.add not in targets
    assert all(node.target in FUNCTIONS | LAYOUT_QUERIES and is_pure(node) for node in numbers_nodes(graph))
    assert value(graph, node, torch.zeros(tuple(range(2, 10)))) == 2 * (sum(range(2, 10)) + 3)


def numbers_nodes(graph):
    return [node for node in graph.nodes if is_number_node(node)]
