"""Operators without derivative: refused when their gradient is asked for, in eager's order, and the rest is not."""

from __future__ import annotations

import pytest
import torch
from harness import compiled, graph_of


@pytest.mark.parametrize("fn", [lambda x: x // 3, lambda x: (3 % x) * x, lambda x: torch.heaviside(x, x)])
def test_a_missing_derivative_is_refused_when_it_is_asked_for(fn):
    x = torch.linspace(1, 2, 3, requires_grad=True)
    errors = []
    for run in (fn, compiled(graph_of(fn), [x])):
        y = run(x)
        y = y[0] if isinstance(y, tuple) else y
        torch.testing.assert_close(y, fn(x))
        with pytest.raises(RuntimeError, match="is not implemented") as error:
            y.sum().backward()
        errors.append((error.type, str(error.value)))
    assert errors[0] == errors[1]


def in_reverse(x):
    first, second = x.sin(), x.cos()
    third = first * 2
    return third, second, first


def made_after_what_is_refused(x):
    lost = x.relu()
    lost.relu_()
    return x * 1, lost


@pytest.mark.parametrize("fn", [in_reverse, made_after_what_is_refused])
def test_hooks_are_called_in_the_order_of_eager(fn):
    """The engine runs the node of the highest sequence number first, in any order of outputs."""
    seen_by = {True: [], False: []}
    for compiles, names in seen_by.items():
        leaf = torch.linspace(1, 2, 3, requires_grad=True)
        results = compiled(graph_of(fn), [leaf])(leaf) if compiles else fn(leaf)
        for at, result in enumerate(results):
            result.register_hook(lambda grad, at=at, names=names: names.append(at))
        try:
            sum((result * 2).sum() for result in results).backward()
        except RuntimeError as error:
            names.append(str(error)[:40])
    assert seen_by[True] == seen_by[False]


@pytest.mark.parametrize("fn", [lambda x: torch.heaviside(x, x), lambda x: torch.heaviside(x, x) * x])
def test_the_engine_reaches_a_missing_derivative_in_eagers_order(fn):
    """First of all where it is the result's own: then no hook elsewhere runs."""
    leaf = torch.linspace(1, 2, 3, requires_grad=True)
    seen_by = {True: [], False: []}
    for compiles in seen_by:
        result = compiled(graph_of(fn), [leaf])(leaf) if compiles else fn(leaf)
        refused = result[0] if isinstance(result, tuple) else result
        later = leaf * 2
        later.register_hook(seen_by[compiles].append)
        with pytest.raises(RuntimeError, match="is not implemented"):
            ((refused * 2).sum() + later.sum()).backward()
    assert len(seen_by[True]) == len(seen_by[False])


def one_refused(x, w):
    return x * w, (x // 3) * w


def refused_by_a_mutation_of_a_saved_tensor(x, w):
    lost = (x * w).exp()
    lost.add_(1)
    return lost, w.cos() * x


def below_one_trunk(x, w):
    trunk = (x * w).tanh()
    return trunk.exp(), (trunk // 3) * w, trunk.sin() * w


@pytest.mark.parametrize("fn", [one_refused, refused_by_a_mutation_of_a_saved_tensor, below_one_trunk])
def test_an_operator_without_derivative_is_refused_and_the_rest_is_not(fn):
    leaves = [torch.linspace(1, 2, 3, requires_grad=True), torch.linspace(2, 4, 3, requires_grad=True)]
    run = compiled(graph_of(fn), leaves)
    expected, found = fn(*leaves), run(*leaves)
    outcomes = []
    for results in (expected, found):
        kinds = []
        for result in results:
            try:
                kinds.append(torch.autograd.grad(result.sum(), leaves, retain_graph=True, allow_unused=True))
            except RuntimeError as error:
                kinds.append(str(error).split(":")[0])
        outcomes.append(kinds)
    assert any(isinstance(kind, str) for kind in outcomes[0]) and not all(isinstance(kind, str) for kind in outcomes[0])
    for one, two in zip(*outcomes, strict=True):
        assert (
            one == two
            if isinstance(one, str)
            else [torch.allclose(*pair) for pair in zip(one, two) if pair[0] is not None]
        )
