"""Calls of functions without side effects, traced for a caller that runs their graphs itself."""

from __future__ import annotations

import functools

import pytest
import torch

from framesmith_dynamo import NotPure, trace_pure_call

SCALE = torch.full((3,), 2.0)


def call(hook, grad):
    return hook(grad)


class Divides:
    def __init__(self, number):
        self.number = number

    def __call__(self, grad):
        return grad / self.number


def made_here(grad):
    copy = grad.clone()
    return [copy.mul_(2), None, (grad,)]


def scaled(number, grad):
    return grad * number


PURE = [
    lambda grad: grad * 0.5,
    lambda grad: grad.clamp(-1, 1) / (grad.norm() + 1),
    lambda grad: grad * SCALE,
    lambda grad: None,
    lambda grad: grad,
    lambda grad: torch.where(grad > 0, grad, 0),
    Divides(3.0),
    Divides(2.0).__call__,
    functools.partial(scaled, 4.0),
    made_here,
]


def filled(result, tensors):
    if isinstance(result, tuple):
        return [filled(one, tensors) for one in result]
    return None if result is None else tensors[result]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("hook", PURE)
def test_the_graph_computes_what_the_function_returns(hook, dynamic):
    grad = torch.randn(4, 3)
    with torch.no_grad():
        found = trace_pure_call(call, (hook, grad), dynamic=dynamic)
        inputs = [source.evaluate({"hook": hook, "grad": grad}, call) for source in found.inputs]
        result, expected = filled(found.result, found.module(*inputs)), hook(grad)
        assert not any(guard.explain({"hook": hook, "grad": grad}, call) for guard in found.guards)
    torch.testing.assert_close(result, [*expected[:2], [*expected[2]]] if hook is made_here else expected)


def test_guards_refuse_other_closures_and_codes():
    def scaling(by):
        return lambda grad: grad * by

    with torch.no_grad():
        found = trace_pure_call(call, (scaling(2.0), torch.ones(3)))
        holds = [
            not any(guard.explain({"hook": hook, "grad": torch.ones(3)}, call) for guard in found.guards)
            for hook in (scaling(2.0), scaling(3.0), Divides(2.0), lambda grad: grad * 2.0)
        ]
    assert holds == [True, False, False, False]


def test_sizes_are_symbols_where_asked():
    with torch.no_grad():
        found = trace_pure_call(call, (lambda grad: grad / grad.shape[0], torch.ones(4, 3)), dynamic=True)
        torch.testing.assert_close(found.module(torch.ones(7, 3))[0], torch.ones(7, 3) / 7)


LOG: list[object] = []


def changes_its_argument(grad):
    return grad.mul_(2)


def changes_a_global_tensor(grad):
    SCALE.add_(0)
    return grad * SCALE


def branches_on_data(grad):
    return grad if grad.sum() > 0 else -grad


def raises(grad):
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (lambda grad: LOG.append(grad), "changes what exists"),
        (lambda grad: setattr(grad, "seen", True), "changes what exists"),
        (changes_its_argument, "changes a tensor"),
        (changes_a_global_tensor, "changes a tensor"),
        (lambda grad: grad + torch.rand_like(grad), "random numbers"),
        (lambda grad: torch.linalg.inv(grad @ grad.T), "may raise"),
        (lambda grad: 3.0, "returns"),
        (lambda grad: print(grad), "print"),
        (branches_on_data, "data"),
        (raises, "KeyError"),
        (lambda grad: torch.set_grad_enabled(True) and grad, "changes what exists"),
    ],
)
def test_calls_with_side_effects_are_refused(hook, why):
    grad, before = torch.ones(3, 3), [*LOG]
    with torch.no_grad(), pytest.raises(NotPure, match=why):
        trace_pure_call(call, (hook, grad))
    assert before == LOG and not hasattr(grad, "seen") and bool((grad == 1).all())
