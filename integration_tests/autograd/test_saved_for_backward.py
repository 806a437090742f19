"""Tensors that operators save for backward, and others: changing one in the graph is an error as in eager mode."""

import pytest
import torch
import torch.nn.functional as F

import framesmith

WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0]).requires_grad_()


def batch_norm(x):
    return F.batch_norm(x, None, None, WEIGHT, WEIGHT, training=True)


OPERATORS = {
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 0.2),
    "batch_norm": batch_norm,
    "batch_norm without weight": lambda x: F.batch_norm(x, None, None, training=True),
    "square": torch.square,
    "l1_loss": lambda x: F.l1_loss(x, x * 2),
    "masked_select": lambda x: x.masked_select(x.detach() > 0),
}


def outcome(function, rows, history):
    leaf = torch.linspace(-1, 1, rows * 4).view(rows, 4).requires_grad_()
    try:
        result = function(leaf * 1 if history else leaf)
        result.sum().backward()
    except RuntimeError as error:
        return str(error).split("[")[0]
    return leaf.grad


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_change_behind_the_operator(operator, history, dynamic):
    def function(x):
        result = OPERATORS[operator](x)
        with torch.no_grad():
            x.select(-1, 0).mul_(2)
        return result

    compiled = framesmith.compile(function, dynamic=dynamic)
    for rows in (3, 5, 0):
        ours, theirs = outcome(compiled, rows, history), outcome(function, rows, history)
        if isinstance(theirs, str):
            assert ours == theirs
        else:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shrink", [F.softshrink, F.hardshrink])
def test_shrinking_by_symbolic_scalars(shrink):
    compiled = framesmith.compile(lambda x, number: shrink(x * 2, number), dynamic=True)
    for rows in (3, 4, 5):
        x = torch.linspace(-1, 1, rows * 4).view(rows, 4).requires_grad_()
        for number in (0.1, 0.3, 0.7):
            ours, theirs = (
                torch.autograd.grad(f(x, number).sum(), x) for f in (compiled, lambda x, n: shrink(x * 2, n))
            )
            torch.testing.assert_close(ours, theirs)
