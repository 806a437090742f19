"""Operators with effects run as often as in eager mode, in its order, also where nothing uses their results."""

from __future__ import annotations

import pytest
import torch
from harness import compiled, graph_of, run_both
from torch import fx

from framesmith_aot import AotUnsupported

seen = []


@pytest.fixture(scope="module", autouse=True)
def ops():
    with torch.library._scoped_library("aot_effects", "FRAGMENT") as made:
        made.define("note(Tensor x, str what) -> ()")
        made.define("count(Tensor x) -> int")
        made.define("twice(Tensor x, str what) -> Tensor")
        made.define("scale(Tensor(a!) x, float k) -> ()")
        made.define("move(Tensor(a!) x, Tensor y) -> Tensor")

        def note(x, what):
            seen.append(what)

        def twice(x, what):
            seen.append(what)
            return x * 2

        def scale(x, k):
            seen.append(f"scale {k}")
            x.mul_(k)

        def move(x, y):
            seen.append("move")
            x.add_(y)
            return x.exp()

        made.impl("note", note, "CPU")
        made.impl("note", lambda x, what: None, "Meta")
        made.impl("count", lambda x: 0, "Meta")
        made.impl("twice", twice, "CPU")
        made.impl("twice", lambda x, what: torch.empty_like(x), "Meta")
        made.impl("scale", scale, "CPU")
        made.impl("scale", lambda x, k: None, "Meta")
        made.impl("move", move, "CPU")
        made.impl("move", lambda x, y: torch.empty_like(x), "Meta")
        yield torch.ops.aot_effects


def same_effects(fn, *inputs, **options):
    """Run eager and compiled, compare values and the order of effects, return the compiled graph."""
    gm = graph_of(fn)
    graph = run_both(gm, list(inputs), calls=1, **options)
    seen.clear()
    gm(*[value.detach().clone() for value in inputs])
    eager = list(seen)
    seen.clear()
    graph(*[value.detach().clone() for value in inputs])
    assert seen == eager and eager
    return graph


def test_unused_and_equal_calls(ops):

    def fn(x):
        ops.note(x, "first")
        ops.twice(x, "unused")
        a, b = ops.twice(x, "equal"), ops.twice(x, "equal")
        ops.note(a, "last")
        return a + b

    same_effects(fn, torch.randn(3))


def test_effects_of_a_graph_with_gradients(ops):

    def fn(x, y):
        ops.note(x.detach(), "before")
        z = (x * y).sin()
        ops.note(z.detach(), "between")
        ops.twice(z.detach(), "unused")
        return z.exp()

    same_effects(fn, torch.randn(3, requires_grad=True), torch.randn(3))


def test_effects_of_the_backward_pass(ops):

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ops.note(x, "forward")
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            ops.note(torch.ones(2), "backward, of nothing that came")
            ops.note(grad, "backward")
            return grad * 2

    def applied(x):  # FX does not spell the method where torch writes it in C
        return Noted.apply(x)

    nodes = fx.Graph()
    nodes.output((nodes.call_function(applied, (nodes.placeholder("x"),)),))
    graph = compiled(fx.GraphModule({}, nodes), [torch.ones(2, requires_grad=True)])
    x = torch.ones(2, requires_grad=True)
    seen.clear()
    (out,) = graph(x)
    assert seen == ["forward"]
    out.sum().backward()
    assert seen == ["forward", "backward, of nothing that came", "backward"]
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("keep", [True, False])
def test_operators_that_write(ops, keep):

    def fn(x):
        y = x + 1
        ops.scale(y, 2.0)
        z = ops.move(y[0], x[1])
        ops.scale(x, 3.0)
        ops.note(x, "done")
        return y, z

    with torch.no_grad():
        same_effects(fn, torch.randn(2, 3), keep_input_mutations=keep)


def test_an_operator_that_writes_where_gradients_flow_is_refused(ops):

    def fn(x):
        y = x * 2
        ops.scale(y, 2.0)
        return y

    with pytest.raises(AotUnsupported, match="custom-mutation"):
        compiled(graph_of(fn), [torch.randn(2, requires_grad=True)])


def test_a_value_that_is_no_tensor_is_refused(ops):
    with pytest.raises(AotUnsupported, match="unknown-value"):
        compiled(graph_of(lambda x: (ops.count(x), x + 1)[1]), [torch.randn(2)])


@pytest.mark.parametrize(("first", "second"), [((0, 4), (4, 8)), ((4, 8), (0, 3)), ((0, 4), (3, 7)), ((0, 0), (0, 4))])
def test_inputs_of_one_storage_are_refused_where_they_overlap(first, second):
    def function(x, y):
        x.mul_(y.sum())
        y.add_(1)
        return x + 1, y[:1]

    base = torch.arange(1.0, 9.0)
    inputs = [base[slice(*first)], base[slice(*second)]]
    if first[0] < second[1] and second[0] < first[1] and first[0] != first[1]:
        with pytest.raises(AotUnsupported, match="aliased-inputs"):
            compiled(graph_of(function), inputs)
        return
    run = compiled(graph_of(function), inputs)
    found, twin = run(*inputs), torch.arange(1.0, 9.0)
    expected = function(twin[slice(*first)], twin[slice(*second)])
    assert all(map(torch.equal, (*found, base), (*expected, twin)))
