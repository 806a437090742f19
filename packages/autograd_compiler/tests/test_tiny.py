"""The first file to run: backward passes captured as graphs, and found again."""

import torch

from framesmith_autograd_compiler import capture


def test_a_backward_pass_is_captured_once():
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    w = torch.eye(4, requires_grad=True)
    (expected,) = torch.autograd.grad((x @ w).relu().pow(2).mean(), [w])
    graphs = []

    def compiler_fn(gm):
        graphs.append(gm)
        return gm

    with capture(compiler_fn) as seen:
        for _ in range(3):
            (x @ w).relu().pow(2).mean().backward()
    torch.testing.assert_close(w.grad, 3 * expected)
    assert (seen.runs, len(seen.programs), len(graphs)) == (3, 2, 2)  # without a gradient there, and with one
