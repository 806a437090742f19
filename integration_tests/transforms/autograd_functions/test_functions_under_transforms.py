"""`torch.autograd.Function`s under torch's function transforms: in one graph, by their own rules, as in eager mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import framesmith
from integration_tests.transforms.autograd_functions.rules import (
    BackwardWithRule,
    BothRules,
    Cosine,
    Matmul,
    Pair,
    Ruleless,
    Scaled,
    Sine,
)
from integration_tests.transforms.transforms import Tensor, close, outcome

pytestmark = pytest.mark.usefixtures("fresh")

ROWS, SQUARES = (3, 4), (5, 4, 4)


def loss_of_pair(v: Tensor) -> Tensor:
    first, second = Pair.apply(v, v.cos())
    return first.sum() + second * 3


def nested_matmuls(m: Tensor) -> Tensor:
    first = m.reshape(5, 1, 4, 4).expand(5, 3, 4, 4)
    second = m.reshape(5, 4, 1, 4).expand(5, 4, 3, 4)
    return vmap(vmap(lambda a, b: Matmul.apply(a, b)), in_dims=(1, 2))(first, second)


WHOLE: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "derived rule": (lambda x: vmap(Scaled.apply)(x) * 2, ROWS),
    "derived rule, other dimension": (
        lambda x: vmap(lambda row: Scaled.apply(row.exp(), 3.0), in_dims=1, out_dims=1)(x),
        ROWS,
    ),
    "derived rule, two results": (lambda x: vmap(lambda a: Pair.apply(a, a.exp()))(x), ROWS),
    "derived rule, unbatched operand": (lambda x: vmap(lambda a: Pair.apply(a, x[0]))(x), ROWS),
    "gradient": (lambda x: grad(lambda v: Scaled.apply(v).sum())(x), ROWS),
    "second gradient": (lambda x: grad(lambda v: grad(lambda u: Scaled.apply(u).sum())(v).sum())(x), ROWS),
    "gradient of two results": (lambda x: grad(loss_of_pair)(x), ROWS),
    "gradients of examples": (lambda x: vmap(grad(lambda v: Scaled.apply(v).sum()))(x), ROWS),
    "gradients of examples, two results": (lambda x: vmap(grad(loss_of_pair))(x), ROWS),
    "gradient of a batch": (lambda x: grad(lambda v: vmap(Scaled.apply)(v).sum())(x), ROWS),
    "jvp": (lambda x: jvp(Scaled.apply, (x,), (x.cos(),)), ROWS),
    "jvp of a captured operand": (lambda x: jvp(lambda v: Scaled.apply(x) * v, (x,), (x.cos(),)), ROWS),
    "vjp": (lambda x: vjp(Scaled.apply, x)[1](x.cos()), ROWS),
    "jacfwd": (lambda x: jacfwd(Scaled.apply)(x[0]), ROWS),
    "jacrev": (lambda x: jacrev(Scaled.apply)(x), ROWS),
    "hessian": (lambda x: hessian(lambda v: Scaled.apply(v).pow(2).sum())(x[0]), ROWS),
    "own rule": (lambda m: vmap(lambda a: Matmul.apply(a, a.t()))(m), SQUARES),
    "own rule, unbatched operand": (lambda m: vmap(lambda a: Matmul.apply(a, m[0]))(m), SQUARES),
    "own rule, other dimensions": (
        lambda m: vmap(lambda a: Matmul.apply(m[0], a), in_dims=2, out_dims=1)(m[:4]),
        SQUARES,
    ),
    "gradient of own rule": (
        lambda m: grad(lambda n: vmap(lambda a: Matmul.apply(a, a.t()))(n).sin().sum())(m),
        SQUARES,
    ),
    "own rule around a gradient": (lambda m: vmap(grad(lambda a: Matmul.apply(a, a.t()).sin().sum()))(m), SQUARES),
    "own rule twice": (nested_matmuls, SQUARES),
    "own rule after an operation": (lambda x: vmap(lambda v: Cosine.apply(v * 2), in_dims=1)(x), ROWS),
    "own rule, nested": (lambda x: vmap(vmap(Cosine.apply), in_dims=1)(x), ROWS),
    "own rule of what is unbatched": (lambda x: vmap(lambda v: Cosine.apply(x) + v)(x[:, 0]), ROWS),
    "own rule of what the outer vmap batches": (
        lambda x: vmap(lambda row: vmap(lambda one: Cosine.apply(row) * one)(row))(x),
        ROWS,
    ),
    "a Function in backward": (lambda x: vmap(grad(lambda v: Cosine.apply(v).sum()))(x), ROWS),
    "a Function in backward, differentiated": (
        lambda x: grad(lambda y: vmap(grad(lambda v: Cosine.apply(v).sum()))(y).sum())(x),
        ROWS,
    ),
    "one after another": (lambda x: vmap(lambda v: Pair.apply(v, Cosine.apply(v))[0])(x), ROWS),
    "outside": (lambda x: Cosine.apply(x).sin() + Scaled.apply(x, 1.5) + Pair.apply(x, x)[1] + Sine.apply(x), ROWS),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str, requires_grad: bool) -> None:
    function, sizes = WHOLE[name]
    x = torch.randn(sizes, dtype=torch.float64).requires_grad_(requires_grad)
    compiled = framesmith.compile(function, fullgraph=True, strict=True)
    for _ in range(2):
        close(compiled(x), function(x), [x] if requires_grad else [])


@pytest.mark.parametrize("name", ["derived rule, two results", "gradients of examples", "own rule", "own rule, nested"])
def test_dynamic_sizes(name: str) -> None:
    function, sizes = WHOLE[name]
    compiled = framesmith.compile(function, fullgraph=True, strict=True, dynamic=True)
    for more in range(3):
        x = torch.randn(sizes[0] + more, *sizes[1:], dtype=torch.float64, requires_grad=True)
        close(compiled(x), function(x), [x])


@pytest.mark.parametrize("name", ["own rule", "own rule twice", "own rule around a gradient", "jvp", "derived rule"])
def test_graph_run_by_torch(name: str) -> None:
    function, sizes = WHOLE[name]
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    close(framesmith.compile(function, fullgraph=True, strict=True, backend="eager")(x), function(x), [x])


def kinds_of_breaks(function: Callable[[Tensor], Any], x: Tensor) -> list[str]:
    """Return the kinds of breaks that an error names where a graph must be whole."""
    framesmith.reset()
    with pytest.raises(RuntimeError, match="the graph breaks") as raised:
        framesmith.compile(function, fullgraph=True)(x)
    return re.findall(r"\[([a-z-]+)\]", str(raised.value))


BREAKS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "no rule": ("operation-failed", lambda x: vmap(Ruleless.apply)(x)),
    "two rules": ("autograd-function", lambda x: vmap(BothRules.apply)(x)),
    "no jvp": ("no-fake-rule", lambda x: jvp(Ruleless.apply, (x,), (x,))),
    "a rule in backward": ("autograd-function", lambda x: vmap(grad(lambda v: BackwardWithRule.apply(v).sum()))(x)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_break(name: str) -> None:
    kind, function = BREAKS[name]
    x = torch.linspace(0, 1, 6).reshape(2, 3)
    assert outcome(framesmith.compile(function), x) == outcome(function, x)
    assert kind in kinds_of_breaks(function, x)
