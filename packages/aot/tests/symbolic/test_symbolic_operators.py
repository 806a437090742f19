"""Operators that could specialise a symbol, and do not; those that must, with a guard."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from harness import graph_of
from symbols import check, compile_symbolic, guards_hold


def test_a_scale_that_is_saved_for_backward():
    gm = graph_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    made = lambda n, d: [torch.randn(2, n, d, requires_grad=True) for _ in range(3)]  # noqa: E731
    graph = compile_symbolic(gm, made(6, 8), [(1, 2)] * 3)
    for sizes in ((6, 8), (5, 3), (7, 10)):
        assert guards_hold(graph, made(*sizes))
        check(graph, gm, made(*sizes))


def test_dropout_that_drops_nothing_gives_its_input():
    gm = graph_of(lambda x: (F.dropout(x, 0.5, False), x * 2))
    graph = compile_symbolic(gm, [torch.randn(3, 4, requires_grad=True)])
    for size in (3, 5):
        check(graph, gm, [torch.randn(size, 4, requires_grad=True)])


def test_a_view_by_strides_is_guarded_to_be_within_its_storage():
    gm = graph_of(lambda x: torch.as_strided(x, (2, 2), (1, 3), 1) * 2)
    graph = compile_symbolic(gm, [torch.randn(12, requires_grad=True)])
    for size in (12, 6, 20):
        assert guards_hold(graph, [torch.randn(size)])
        check(graph, gm, [torch.randn(size, requires_grad=True)])
    assert not guards_hold(graph, [torch.randn(5)])


def test_a_range_of_floats():
    gm = graph_of(lambda x, end: (torch.arange(0.5, end, 0.25) + x,))
    graph = compile_symbolic(gm, [torch.randn(1), 3.0], [(), None])
    for end in (3.0, 3.1, 7.25):
        check(graph, gm, [torch.randn(1), end])


def test_a_backward_pass_that_torch_has_no_rule_for():
    gm = graph_of(lambda x: F.fractional_max_pool3d(x, 2, output_size=(2, 2, 2)))
    graph = compile_symbolic(gm, [torch.randn(2, 3, 5, 6, 5, requires_grad=True)], [(0,)])
    assert not guards_hold(graph, [torch.randn(4, 3, 5, 6, 5)])  # its forward pass must know the size
    check(graph, gm, [torch.randn(2, 3, 5, 6, 5, requires_grad=True)])
