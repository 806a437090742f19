"""The first file to run: a graph with a gradient and a view of its input, compiled and called."""

import torch
from torch import fx

from framesmith_aot import compile_graph


def test_forward_and_backward():
    roles = []

    def compiler(gm, inputs, role):
        roles.append(role)
        return lambda arguments: gm(*arguments)

    gm = fx.symbolic_trace(lambda x, w: (torch.nn.functional.gelu(x @ w), x.t()))
    x, w = torch.ones(4, 8), torch.full((8, 8), 0.5, requires_grad=True)
    expected = torch.nn.functional.gelu(x @ w)
    (gradient,) = torch.autograd.grad(expected.sum(), [w])

    y, view = compile_graph(gm, [x, w], compiler=compiler)(x, w)
    y.sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(w.grad, gradient)
    assert view.data_ptr() == x.data_ptr() and view.shape == (8, 4)
    assert roles == ["forward", "backward"]
