"""`tensor.data = value` of inputs, parameters first of all, against eager mode."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable
from itertools import starmap
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from framesmith_aot import DoubleBackwardError

pytestmark = pytest.mark.usefixtures("fresh")

Tensor = torch.Tensor


def once(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    w.data = w.data * 0.5
    return m(x).sum()


def twice(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    w.data = w.data * 0.5
    w.data = w.data.clamp(-0.1, 0.1)
    return (w * w * w).sum() + m(x).square().sum()


def all_without_gradients(m: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        for one in m.parameters():
            one.data = one * 0.9
    return m(x).square().sum()


def old_memory_written(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    old = w.data
    w.data = w.data * 2
    old.zero_()
    return m(x).sum(), old


def value_returned(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    w.data = made = w.data.tanh()
    return m(x).sum(), made, w, w.data


def shared_by_two(m: nn.Module, x: Tensor) -> Any:
    m[0].weight.data = m[0].weight.data + m[2].weight.data
    m[2].weight.data = m[0].weight.data
    return m(x).sum()


def exchanged_copies(m: nn.Module, x: Tensor) -> Any:
    one, other = m[0].weight, m[2].weight
    one.data, other.data = other.data.clone(), one.data.clone()
    return m(x).sum()


def to_what_has_a_history(m: nn.Module, x: Tensor) -> Any:
    m[0].bias.data = m[2](x).mean(0)
    return m(x).square().sum()


def not_a_parameter(m: nn.Module, x: Tensor) -> Any:
    x.data = x.data * 2
    return m(x).sum()


def other_strides(m: nn.Module, x: Tensor) -> Any:
    m[0].weight.data = (m[0].weight.data * 2).t()
    return m(x).sum()


def with_attributes(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    w.data = w.data * 2
    w.grad, w.mark = None, 5
    w.register_hook(lambda grad: grad * w.mark)
    return m(x).sum()


WHOLE = [
    once, twice, all_without_gradients, old_memory_written, value_returned, shared_by_two, exchanged_copies,
    to_what_has_a_history, not_a_parameter, other_strides, with_attributes,
]  # fmt: skip


def value_written_later(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    w.data = made = w.data * 2
    made.mul_(2)
    return m(x).sum(), made


def parameter_written_later(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    w.data = w.data * 2
    with torch.no_grad():
        w.mul_(2)
    return m(x).sum()


def viewed_later(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    w.data = w.data * 2
    return m(x).sum(), w.view(-1)


def another_input(m: nn.Module, x: Tensor) -> Any:
    m[0].weight.data = m[2].weight
    return m(x).sum()


def exchanged(m: nn.Module, x: Tensor) -> Any:
    one, other = m[0].weight, m[2].weight
    one.data, other.data = other.data, one.data
    return m(x).sum()


def another_type(m: nn.Module, x: Tensor) -> Any:
    m[0].weight.data = m[0].weight.data.double()
    return m[0].weight.sum() + m[2](x).sum()


def another_shape(m: nn.Module, x: Tensor) -> Any:
    m[0].weight.data = m[0].weight.data[:2].clone()
    return m[0].weight.sum() + m[2](x).sum()


def pass_inside(m: nn.Module, x: Tensor) -> Any:
    w = m[0].weight
    w.data = w.data * 2
    m(x).square().sum().backward()
    return w.grad


def recorded_before(m: nn.Module, x: Tensor) -> Any:
    """Autograd saves the parameter for the gradient of `x`, which reads the new data."""
    bias = m[2].bias
    y = bias * x
    bias.data = bias.data + 1
    return y.sum() + m(x).sum()


BREAKING = [
    value_written_later, parameter_written_later, viewed_later, another_input, exchanged, another_type, another_shape,
    pass_inside, recorded_before,
]  # fmt: skip


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))


def outcome(call: Callable[..., Any], model: nn.Module, size: int) -> list[Any]:
    """Return identities, shared memory, layouts, versions and values behind a call, gradients, values behind a step."""
    torch.manual_seed(size)
    x = torch.randn(size, 4, requires_grad=True)
    before, parameters = [*model.state_dict().values()], [*model.parameters()]
    versions = [one._version for one in parameters]
    optimizer = torch.optim.SGD(parameters, 0.1)
    optimizer.zero_grad()
    result = call(model, x)
    results = result if isinstance(result, tuple) else (result,)
    shown = [*results, *parameters, *before, x]
    same = list(starmap(operator.is_, zip(model.parameters(), parameters, strict=True)))
    shared = [[one.data_ptr() == other.data_ptr() for other in shown] for one in shown]
    layouts = [(one.dtype, one.shape, one.stride(), one.requires_grad, one.is_leaf) for one in shown]
    changes = [one._version - version for one, version in zip(parameters, versions, strict=True)]
    values = [one.detach().clone() for one in shown]
    if results[0].requires_grad:
        results[0].backward()
    gradients = [None if one.grad is None else one.grad.clone() for one in (*parameters, x)]
    optimizer.step()
    return [same, shared, layouts, changes, values, gradients, [one.detach().clone() for one in shown]]


def check(function: Callable[..., Any], backend: str | None, **options: Any) -> None:
    if backend is not None:
        options["backend"] = backend
    compiled = framesmith.compile(function, **options)
    model = net()
    twin = copy.deepcopy(model)
    for size in (3, 3, 5, 6):
        *got, (values, gradients, after) = _parted(outcome(compiled, model, size))
        *want, (other_values, other_gradients, other_after) = _parted(outcome(function, twin, size))
        assert got == want
        torch.testing.assert_close(values, other_values, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients, other_gradients, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(after, other_after, rtol=1e-4, atol=1e-5)


def _parted(found: list[Any]) -> tuple[Any, ...]:
    return (*found[:4], tuple(found[4:]))


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda one: one.__name__)
def test_one_graph(function: Callable[..., Any], backend: str | None) -> None:
    check(function, backend, fullgraph=True, strict=True)


@pytest.mark.parametrize("function", BREAKING, ids=lambda one: one.__name__)
def test_graph_breaks_where_two_tensors_would_differ(function: Callable[..., Any]) -> None:
    check(function, "eager", strict=True)
    assert framesmith.stats()["breaks"]


def test_second_derivatives_are_refused() -> None:
    """The parameter has other memory by then, of which the graph would be computed again."""
    x = torch.randn(3, 4, requires_grad=True)
    loss = framesmith.compile(once, fullgraph=True)(net(), x)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(DoubleBackwardError, match="other memory"):
        gradient.sum().backward()


def test_an_error_later_leaves_what_eager_mode_leaves() -> None:
    def raising(m: nn.Module, x: Tensor) -> Tensor:
        m[0].weight.data = m[0].weight.data * 2
        raise ValueError("too late")

    for call in (raising, framesmith.compile(raising)):
        model = net()
        wanted = model[0].weight.detach() * 2
        with warnings.catch_warnings(), pytest.raises(ValueError, match="too late"):
            warnings.simplefilter("error")
            call(model, torch.ones(3, 4))
        assert torch.equal(model[0].weight, wanted)
