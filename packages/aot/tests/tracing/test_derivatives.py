"""Gradients with formulas that eager mode chooses by data, for all kinds of data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, graph_of

from framesmith_aot import AotUnsupported

VALUES = (1.5, 0.0, -2.0, float("nan"), float("inf"))

CALLS: dict[str, Callable[[Any], torch.Tensor]] = {
    "prod": lambda x: x.prod(),
    "prod of columns": lambda x: torch.prod(x, 0),
    "prod of rows, keepdim": lambda x: x.prod(-1, keepdim=True),
    "prod by name": lambda x: torch.prod(x, dim=1, keepdim=False),
    "prod as numpy says": lambda x: torch.prod(input=x, axis=1, keepdims=True),
    "prod along an axis": lambda x: x.prod(axis=0),
    "prod in float64": lambda x: x.prod(dtype=torch.float64),
    "max": lambda x: x.max(),
    "min": lambda x: torch.min(x),
    "median": lambda x: x.median(),
    "median, by another name": lambda x: torch.median(a=x),
    "prod by numpy's names": lambda x: torch.prod(x=x, axis=-1, keepdims=True),
    "nanmedian": lambda x: torch.nanmedian(x),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_zeros_nans_and_infinities(call: Callable[[Any], torch.Tensor]) -> None:
    run = compiled(graph_of(lambda x: (call(x),)), [torch.ones(2, 2, requires_grad=True)])
    for values in itertools.product(VALUES, repeat=4):
        grads = []
        for one in (lambda x: (call(x),), run):
            x = torch.tensor(values).view(2, 2).requires_grad_()
            (one(x)[0].sum() * 3).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads, equal_nan=True)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_types_and_results(call: Callable[[Any], torch.Tensor]) -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        x = torch.arange(1, 7).view(2, 3).to(dtype)
        x.requires_grad_(dtype.is_floating_point)
        [result] = compiled(graph_of(lambda x: (call(x),)), [x])(x)
        expected = call(x)
        torch.testing.assert_close(result, expected)
        if x.requires_grad:
            torch.testing.assert_close(*(torch.autograd.grad(one.sum(), x)[0] for one in (result, expected)))


def test_the_input_of_prod_under_autocast_may_be_mutated() -> None:
    def f(x: Any) -> Any:
        y = x * 1
        z = y.prod(0)
        y.mul_(2)
        return (z,)

    x = torch.tensor([[1.0, 0.5], [2.0, -1.0]], dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        [result], [expected] = compiled(graph_of(f), [x])(x), f(x)
    assert result.dtype == expected.dtype == torch.float32
    assert torch.equal(*(torch.autograd.grad(one.sum(), x)[0] for one in (result, expected)))
    [result] = compiled(graph_of(f), [x])(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_second_derivatives_of_prod() -> None:
    x = torch.tensor([[1.0, 0.0, 3.0], [2.0, -1.0, 4.0]], dtype=torch.float64, requires_grad=True)
    run = compiled(graph_of(lambda x: (x.prod(0) * x.max(),)), [x])
    assert torch.autograd.gradcheck(run, [x + 0.5])
    assert torch.autograd.gradgradcheck(run, [x + 0.5])


def test_a_number_has_its_own_derivative() -> None:
    x = torch.zeros((), requires_grad=True)
    [result] = compiled(graph_of(lambda x: (x.prod(),)), [x])(x)
    assert torch.autograd.grad(result, x)[0] == 1


def test_changes_of_many_tensors_at_once_are_refused_where_autograd_would_see_them() -> None:
    def f(x: Any) -> Any:
        torch._foreach_mul_([x], 2.0)
        return (x.sin(),)

    def by_another(x: Any, w: Any) -> Any:
        torch._foreach_add_([x], [w])
        return (x.sin(),)

    leaf = torch.ones(2, requires_grad=True)
    with pytest.raises(AotUnsupported, match="unrecorded-change"):
        compiled(graph_of(f), [leaf * 1])
    plain = torch.ones(2)
    compiled(graph_of(f), [plain])(plain)
    assert torch.equal(plain, torch.full((2,), 2.0))
    with pytest.raises(AotUnsupported, match="unrecorded-change"):
        compiled(graph_of(by_another), [plain, leaf])
