"""Graphs compiled for symbolic sizes and numbers, compared with eager mode at every size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import graph_of
from symbols import check, compile_symbolic, guards_hold

SIZES = [(5, 7), (2, 3), (3, 2), (7, 11), (13, 5), (6, 6)]


def made(*shapes, grad=True):
    """Return tensors of these shapes for sizes a and b; a letter stands for a size."""

    def make(a, b):
        sizes = [[{"a": a, "b": b}.get(one) or int(one) for one in shape] for shape in shapes]
        return [torch.randn(size, requires_grad=grad) for size in sizes]

    return make


def _views_of_result(x):
    y = x * 2
    return y, y.view(-1), y.detach(), y[0]


def _heads(x):
    batch, length = x.size(0), x.size(1)
    return x.view(batch, length, 2, 3).transpose(1, 2).contiguous().view(batch, 2, -1)


def _attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / (q.size(-1) ** 0.5), -1) @ v


def _causal(x):
    hidden = x.new_ones((x.size(0), x.size(0)), dtype=torch.bool).triu(1)
    return x.masked_fill(hidden, -1e9).softmax(-1)


def _read_twice(x, w):
    hidden = x.exp() * 3
    return hidden * 2, (hidden + 1).sum(), w * hidden.sum()


def _input_view_read(x):
    flat = x.view(-1)
    return flat, flat.sin()


def _assigned(x, w):
    x.select(1, 0).copy_(w)
    return x.clone()


def _recurrent(x, h):
    for step in range(3):
        h = torch.tanh(x[step] + h)
    return h


CASES = {
    "linear": (lambda x, w, c: F.linear(x, w, c).relu(), made("ab6", "56", "5")),
    "views of a result": (_views_of_result, made("ab")),
    "views without their base": (lambda x: ((x * 2).view(-1), x.t()), made("ab")),
    "views of an input": (lambda x: (x.view(-1), x, x.t()[0], x.detach(), x[1:], x.unsqueeze(1)), made("ab")),
    "a view that is read": (_input_view_read, made("ab")),
    "mutated, then viewed": (lambda x: (x.add_(1), x.t(), x * 2), made("ab", grad=False)),
    "changed through a view": (lambda x: (x * 1).view(-1).mul_(2).add_(1), made("ab")),
    "an input's column": (_assigned, lambda a, b: [torch.randn(a, b), torch.randn(a, requires_grad=True)]),
    "joined": (lambda x, y: torch.cat([x, y]).sum(1), made("ab", "3b")),
    "stacked": (lambda x, y: torch.stack([x, y], 1).flatten(0, 1), made("ab", "ab")),
    "halves": (lambda x: x.chunk(2, 0)[1] * 2, made("ab")),
    "neighbours": (lambda x: x[:, :-1] * x[:, 1:], made("ab")),
    "padded": (lambda x: F.pad(x, (1, 2)), made("ab")),
    "repeated": (lambda x: x.repeat(2, x.size(0)), made("ab")),
    "expanded": (lambda x, y: x.expand(y.size(0), x.size(1)) * y + y, made("1b", "ab")),
    "heads": (_heads, made("ab6")),
    "attention": (_attention, made("22a4", "22a4", "22a4")),
    "attention, whole": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), made("22a4")),
    "causal": (_causal, made("aa")),
    "layer norm": (lambda x, w: F.gelu(F.layer_norm(x, (6,), w)), made("ab6", "6")),
    "batch norm": (lambda x, w, m: F.batch_norm(x, m.detach(), m.detach() ** 2, w, None, True), made("a4b", "4", "4")),
    "convolution": (lambda x, w: F.conv1d(x, w, padding=1), made("a4b", "543")),
    "dropout": (lambda x: F.dropout(x, 0.5), made("ab")),
    "loss": (lambda x: F.cross_entropy(x, x.new_zeros((x.size(0),), dtype=torch.long)), made("a5")),
    "reductions": (lambda x: (x.mean(), x.var(0), x.amax(1), x.max(), x.prod(1), x.cumsum(1)), made("ab")),
    "largest": (lambda x: (x.topk(2, 1)[0], x.sort(1)[0], x.argmax(1)), made("ab")),
    "factories": (lambda x: (torch.zeros_like(x) + x, x.new_ones(x.size(0)), torch.arange(x.size(1))), made("ab")),
    "numbers": (lambda x: (x / x.size(0), x.size(0) * 2 + x.size(1), x.numel()), made("ab")),
    "einsum": (lambda x, w: torch.einsum("bij,bjk->bik", x, w), made("ab4", "a4b")),
    "embedding": (lambda x, w: F.embedding((x * 0).long(), w), made("ab", "56")),
    "recurrent": (_recurrent, made("3ab", "ab")),
    "several nodes": (_read_twice, made("ab", "ab")),
    "two results": (lambda x, w: (x.sin(), w.cos(), x @ w), made("ab", "ba")),
}


def compiled_for(function, make, **options):
    gm = graph_of(function)
    first, other = make(5, 7), make(9, 8)
    pairs = zip(first, other, strict=True)
    dynamic = [[dim for dim in range(one.dim()) if one.shape[dim] != two.shape[dim]] for one, two in pairs]
    return gm, compile_symbolic(gm, first, dynamic, **options)


def check_at_sizes(graph, gm, make, history=False):
    ran = 0
    for a, b in SIZES:
        values = make(a, b)
        if guards_hold(graph, values):
            check(graph, gm, values, history=history)
            ran += 1
    assert ran >= 4


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("history", [False, True], ids=["leaves", "history"])
def test_training(name, history):
    function, make = CASES[name]
    gm, graph = compiled_for(function, make)
    check_at_sizes(graph, gm, make, history)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_no_grad(name):
    function, make = CASES[name]
    with torch.no_grad():
        gm, graph = compiled_for(function, make)
        check_at_sizes(graph, gm, make)
    assert not graph.backward_passes


@pytest.mark.parametrize("number", [3, 2.5])
@pytest.mark.parametrize("grad", [False, True])
def test_numbers_as_inputs(number, grad):
    gm = graph_of(lambda x, w, n: (torch.relu(x @ w) * n + n, x.size(0) * 2 + n, n))

    def make(a):
        return [torch.randn(a, 8, requires_grad=grad), torch.randn(8, 8, requires_grad=grad), number + a]

    graph = compile_symbolic(gm, make(5), [[0], [], None])
    assert not graph.env.guards
    for size in (2, 3, 7, 11):
        check(graph, gm, make(size))


def test_arithmetic_of_floats_in_the_order_of_the_program():
    def program(x, a, b, c):
        return x + ((a + b) + c), a + (b + c), (a + b) + c, a * 0.1 * 3

    gm = graph_of(program)
    graph = compile_symbolic(gm, [torch.zeros(3), 0.1, 0.2, 0.3])
    for values in ((0.1, 0.2, 0.3), (1e16, -1e16, 1.0), (0.7, 0.1, 0.2)):
        given = [torch.zeros(4, dtype=torch.float64).float(), *values]
        assert graph(*given)[1:] == gm(*given)[1:]


def test_sums_of_many_numbers_as_results():
    gm = graph_of(lambda x, a, b, c: (x + 1, (a + b + c + 7) // 2))
    graph = compile_symbolic(gm, [torch.zeros(3), 5, 6, 7])
    assert "sym_sum" in graph.text
    for values in ((5, 6, 7), (2, 9, 30)):
        assert graph(torch.zeros(3), *values)[1] == gm(torch.zeros(3), *values)[1]


def test_division_by_zero_is_raised_when_it_is_not_used():
    gm = graph_of(lambda x, a: (1.0 / a, x + 1)[1])
    graph = compile_symbolic(gm, [torch.zeros(3), 0.5])
    graph(torch.zeros(3), 2.0)
    with pytest.raises(ZeroDivisionError):
        graph(torch.zeros(3), 0.0)


def test_some_tangents_absent():
    gm = graph_of(lambda x, y: ((h := x * y) * 2, h.sum(0), h.view(-1).exp()))
    graph = compile_symbolic(gm, [torch.randn(5, 7, requires_grad=True), torch.randn(5, 7, requires_grad=True)])
    for size in ((2, 3), (7, 5)):
        for chosen in ([0], [1], [2], [0, 2], [1, 2]):
            found = []
            for function in (gm, graph):
                torch.manual_seed(0)
                leaves = [torch.randn(size, requires_grad=True), torch.randn(size, requires_grad=True)]
                results = function(*leaves)
                sum(results[at].sum() for at in chosen).backward()
                found.append([leaf.grad for leaf in leaves])
            torch.testing.assert_close(found[0], found[1])


def test_second_derivatives():
    gm = graph_of(lambda x, n: (x.view(-1).sin() * n).sum())
    graph = compile_symbolic(gm, [torch.randn(5, 7, requires_grad=True), 2.0])
    for size in ((2, 3), (7, 5)):
        found = []
        for function in (gm, graph):
            torch.manual_seed(0)
            leaf = torch.randn(size, requires_grad=True)
            [first] = torch.autograd.grad(function(leaf, 3.0)[0], leaf, create_graph=True)
            found.append(torch.autograd.grad((first**2).sum(), leaf)[0])
        torch.testing.assert_close(found[0], found[1])


def test_an_input_read_for_its_size_only_may_be_mutated_before_second_derivatives():
    gm = graph_of(lambda t, x: x.exp().expand(t.shape[0], -1).median() ** 2)
    graph = compile_symbolic(gm, [torch.randn(5), torch.randn(3, requires_grad=True)])
    for size in (2, 7):
        found = []
        for function in (gm, graph):
            torch.manual_seed(0)
            sized, leaf = torch.ones(size), torch.randn(3, requires_grad=True)
            result = function(sized, leaf)[0]
            sized.add_(1)
            [first] = torch.autograd.grad(result, leaf, create_graph=True)
            found.append([first, *torch.autograd.grad(first.sum(), leaf)])
        torch.testing.assert_close(*found)


def test_the_backward_pass_adds_no_guards():
    gm, graph = compiled_for(*CASES["attention"])
    guards = [str(guard.expr) for guard in graph.env.guards]
    check(graph, gm, CASES["attention"][1](4, 3))
    assert [str(guard.expr) for guard in graph.env.guards] == guards


def test_later_passes_take_tangents_of_symbolic_strides():
    gm = graph_of(lambda x, w: ((x @ w).sin().t().contiguous().exp(),))
    make = made("a3", "3b")
    compiled = compile_symbolic(gm, make(5, 7))
    for sizes in SIZES[:3]:
        for _ in range(2):
            check(compiled, gm, make(*sizes))
            inputs = make(*sizes)
            tangent = torch.randn(*sizes).t().detach()  # (b, a), strides of (a, b)
            found = [torch.autograd.grad(run(*inputs)[0], inputs, tangent) for run in (compiled, gm)]
            torch.testing.assert_close(*found)
