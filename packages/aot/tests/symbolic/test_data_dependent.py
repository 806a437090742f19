"""Unbacked numbers and sizes stay in graphs, with eager mode's results at every call."""

from __future__ import annotations

import operator

import pytest
import torch
from harness import graph_of
from symbols import check, compile_symbolic
from torch import fx

from framesmith_aot import AotUnsupported

LENGTHS = [4, 6, 2, 5, 3]


def rows(k):
    return torch.randn(LENGTHS[k], 3, requires_grad=True)


def signs(k):
    """No positive element first, then one, all and some."""
    return torch.tensor([[-1.0] * 3, [1.0, -1, -1], [1.0] * 3, [-1.0, 1, 1], [2.0, -2, 2]][k])


def selected(k):
    """Rows, first without a positive element."""
    return rows(k) if k else (-torch.ones(4, 3)).requires_grad_()


def number(*values):
    return torch.tensor(values)


CASES = {
    "item": (lambda x, n: x * n.item() + n.item(), lambda k: [rows(k), number(k)]),
    "item of a float": (lambda x, n: x * n.item(), lambda k: [rows(k), number(k + 0.5)]),
    "item, returned": (lambda x, n: (n.item(), n.item() * 2 + x.size(0), x + 1), lambda k: [rows(k), number(k)]),
    "item, a size": (lambda x, n: x.new_zeros((n.item(), 3)) + x.sum(0), lambda k: [rows(k), number(k)]),
    "tolist": (lambda x, n: x + n.tolist()[1], lambda k: [rows(k), number(k, k + 1)]),
    "nonzero": (lambda x: (x > 0).nonzero(), lambda k: [selected(k)]),
    "nonzero, an index": (lambda x: x[(x > 0).nonzero()[:, 0]] * 2, lambda k: [selected(k)]),
    "nonzero, counted": (lambda x: (x > 0).nonzero().size(0) * 2, lambda k: [selected(k)]),
    "masked_select": (lambda x: torch.masked_select(x, x > 0) * 2, lambda k: [selected(k)]),
    "mask": (lambda x: x[x.sum(1) > 0].sum(0), lambda k: [selected(k)]),
    "masks, returned": (lambda x: (x[x.sum(1) > 0], x[x > 0].exp()), lambda k: [selected(k)]),
    "mask, twice": (lambda x: (x[x > 0].exp(), x[x > 0].sum(), x[x > 0].sin().sum()), lambda k: [selected(k)]),
    "nonzero, twice": (
        lambda x: (x[(x > 0).nonzero()[:, 0]].sum(), x[(x > 0).nonzero()[:, 0]].exp()),
        lambda k: [selected(k)],
    ),
    "mask, changed": (lambda x, y: (y * 1).index_put_((y > 0,), x.sum()), lambda k: [rows(k), rows(k)]),
    "unique": (lambda x: torch.unique(x), lambda k: [torch.randint(0, 3, (k * 2,))]),
    "unique, all of it": (
        lambda x: [torch.unique(x, return_inverse=True, return_counts=True)[at] for at in range(3)],
        lambda k: [torch.randint(0, 3, (k * 2,))],
    ),
    "repeat_interleave": (
        lambda x, n: torch.repeat_interleave(x, n, dim=0) * 2,
        lambda k: [rows(k), torch.randint(0, 3 if k else 1, (LENGTHS[k],))],
    ),
    "split": (
        lambda x, n: torch.split(x, [n[0].item(), n[1].item()])[1] * 2,
        lambda k: [rows(k), number(k // 2, LENGTHS[k] - k // 2)],
    ),
    "slice": (lambda x, n: x[: n.item()] * 2, lambda k: [rows(k), number([1, 20, -1, -30, 0][k])]),
    "slice, a view": (lambda x, n: x[n.item() :], lambda k: [rows(k), number([1, 20, -1, -30, 0][k])]),
    "narrow": (lambda x, n: x.narrow(0, 0, n.item()) * 2, lambda k: [rows(k), number(min(k, 2))]),
    "expand": (lambda x: x[x > 0].unsqueeze(1).expand(-1, 4) * 1, lambda k: [signs(k)]),
    "matmul": (lambda x: x[x > 0].unsqueeze(1) @ x.unsqueeze(0), lambda k: [signs(k)]),
    "joined": (lambda x: torch.cat([x[x > 0], x]).softmax(0), lambda k: [signs(k)]),
    "sorted": (lambda x: x[x > 0].sort()[0].cumsum(0), lambda k: [signs(k)]),
    "summed along an axis": (
        lambda x: (torch.cumsum(x[x > 0], axis=0), x[x > 0].cumsum(axis=0), torch.cumsum(a=x[x > 0], dim=0)),
        lambda k: [selected(k)],
    ),
    "chosen, by another name": (lambda x: torch.masked_select(a=x, mask=x > 0) * 2, lambda k: [selected(k)]),
    "scattered": (
        lambda x: torch.zeros_like(x).scatter_add(0, (x > 0).nonzero().squeeze(1), x[x > 0]),
        lambda k: [signs(k)],
    ),
}


def compiled_for(function, make):
    gm = graph_of(function)
    pairs = zip(make(1), make(3), strict=True)
    dynamic = [[dim for dim in range(one.dim()) if one.shape[dim] != two.shape[dim]] for one, two in pairs]
    return gm, compile_symbolic(gm, make(1), dynamic)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name):
    function, make = CASES[name]
    torch.manual_seed(0)
    gm, graph = compiled_for(function, make)
    for k in range(5):
        check(graph, gm, make(k))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0].squeeze(),
        lambda x: x[x > 0].squeeze(0),
        lambda x: x[x > 0].split(1)[0],
        lambda x: x[x > 0] + x,
    ],
    ids=["squeeze", "squeeze(0)", "split", "broadcast"],
)
def test_refused(function):
    """Eager mode branches there for one element."""
    with pytest.raises(AotUnsupported, match="data-dependent"):
        compiled_for(function, lambda k: [signs(k)])


def checked_graph(message):
    """Return x.new_zeros(n.item()), with a check that n is at most 3."""
    graph = fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    count = graph.call_method("item", (n,))
    graph.call_function(torch._check, (graph.call_function(operator.le, (count, 3)), message))
    graph.output((graph.call_method("new_zeros", (x, count)),))
    return fx.GraphModule({}, graph)


def test_a_size_that_the_graph_asserts_further_on_is_checked_first():
    """In a captured graph, the assertion comes after the operation that has assumed the size."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    chosen = graph.call_method("masked_select", (x, graph.call_function(operator.gt, (x, 0))))
    fits = graph.call_function(operator.eq, (graph.call_function(torch.ops.aten.sym_size.int, (chosen, 0)), 2))
    added = graph.call_function(operator.add, (chosen, y))
    graph.call_function(torch.ops.aten._assert_scalar.default, (fits, "two, please"))
    graph.output((added,))
    gm = fx.GraphModule({}, graph)
    symbolic = compile_symbolic(gm, [torch.tensor([1.0, 2.0]), torch.ones(3, 2)], [[0], []])
    check(symbolic, gm, [torch.tensor([1.0, 0.0, 2.0]), torch.ones(3, 2)])
    for values in ([1.0, 0.0, 0.0], [1.0, 2.0, 3.0]):
        with pytest.raises(RuntimeError, match="two, please"):
            symbolic(torch.tensor(values), torch.ones(3, 2))


def test_checks_are_made_at_calls():
    gm = checked_graph("too many")
    graph = compile_symbolic(gm, [torch.zeros(2), number(2)], [[], []])
    for k in (0, 1, 3):
        check(graph, gm, [torch.zeros(2), number(k)])
    with pytest.raises(RuntimeError, match="too many"):
        graph(torch.zeros(2), number(4))
    with pytest.raises(RuntimeError):
        graph(torch.zeros(2), number(-1))


def test_lengths_that_do_not_fit():
    function, make = CASES["split"]
    _, graph = compiled_for(function, make)
    with pytest.raises(RuntimeError):
        graph(torch.zeros(5, 3), number(1, 3))
