"""`torch.func.grad` and `grad_and_value` in compiled functions and as a target, nested and in vmap, against eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, grad_and_value, vmap

import framesmith
from integration_tests.transforms.transforms import (
    Program,
    Programs,
    Tensor,
    m,
    outcome,
    output_of_new_process,
    plain,
    run,
    t,
)

pytestmark = pytest.mark.usefixtures("fresh")

PROGRAMS = Programs()
simple, program = PROGRAMS.simple, PROGRAMS.program


simple("a target", grad(lambda x: (x.sin() * x).sum()), m(3, 4))
simple("without gradients around", grad(lambda x: (x.sin() * x).sum()), lambda: plain(3, 4))
simple("inside", lambda x: grad(lambda y: (y.sin() * y).sum())(x.cos()) + 1, m(3, 4))
simple("and value", grad_and_value(lambda x: (x**3).sum()), m(3, 4))
simple("another argument", grad(lambda x, y: (x * y).sum(), argnums=1), m(3), m(3))
simple("arguments", grad(lambda x, y: (x * y * y).sum(), argnums=(0, 1)), m(3), m(3))
simple("the last argument", grad_and_value(lambda x, y: (x * y * y).sum(), argnums=(-1,)), m(3), m(3))
simple("others", grad(lambda x: ((x**2).sum(), (x.sin(), {"k": x * 2})), has_aux=True), m(3))
simple("the argument as another", grad_and_value(lambda x: ((x**2).sum(), x), has_aux=True), m(3))
simple("an unused argument", grad(lambda x, y: (y * 2).sum(), argnums=(0, 1)), m(3), m(2))
simple("detached", grad(lambda x, y: (x.detach() * x * y.detach()).sum()), m(3), m(3))
simple("second", grad(lambda x: grad(lambda y: (y**3).sum())(x).sum()), m(3))
simple("captured of the outer", lambda x: grad(lambda a: (grad(lambda b: (a * b * b).sum())(a) * a).sum())(x), m(3))
simple("captured and given", lambda x: grad(lambda a: (a * x * x).sum())(x), m(3))
simple("one twice", lambda x: grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1))(x, x), m(3))
simple("in vmap", vmap(grad(lambda a: (a.sin() * a).sum())), m(4, 8))
simple("of vmap", grad(lambda x: vmap(lambda a: (a.sin() * a).sum())(x).sum()), m(4, 8))
simple("between vmaps", vmap(grad(lambda x: vmap(lambda a: a**2)(x).sum())), m(2, 4))
simple("second in vmap", vmap(lambda a: grad(lambda b: grad(lambda c: c**3)(b))(a)), m(4))
simple("classes", grad_and_value(F.cross_entropy), m(3, 4), lambda: torch.tensor([0, 1, 3]))
simple("halves", grad(lambda x: (x @ x.t()).sum()), lambda: t(3, 4, dtype=torch.bfloat16))
simple("casts", grad(lambda x: (x.double() ** 2).sum().float()), m(3))
simple("random numbers", grad_and_value(lambda x: (x * torch.rand(3)).sum()), m(3))
simple("expanded", grad(lambda x: x.sum()), m(3, 4))
simple("a keyword", lambda x: grad(lambda x, *, k=1: (x**k).sum())(x, k=3), m(3))
simple("permuted", grad_and_value(lambda x: (x.t().contiguous() ** 2).sum()), lambda: t(4, 3).t())


@program
def gradients_off_around() -> Program:
    @torch.no_grad()
    def f(x: Tensor) -> Tensor:
        return grad(lambda y: (y * y).sum())(x)

    return f, [(t(3, 4),)]


@program
def trees() -> Program:
    function = grad(lambda p, x: F.linear(x, p["w"], p["b"]).tanh().sum())
    return function, [({"w": t(2, 3), "b": t(2)}, t(4, 3))]


@program
def captured() -> Program:
    w = t(3, 3)
    return grad_and_value(lambda x: ((x @ w).exp().sum(), w), has_aux=True), [(t(3),)]


@program
def modules() -> Program:
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))
    return vmap(grad(lambda x: net(x).sum())), [(t(3, 4),)]


@program
def for_each_sample() -> Program:
    def loss(p: tuple[Tensor, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(F.linear(F.linear(x, p[0]).relu(), p[1]), y)

    return vmap(grad(loss), in_dims=(None, 0, 0)), [((t(8, 4), t(2, 8)), plain(5, 4), plain(5, 2))]


@program
def adapted() -> Program:
    def loss(ws: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss((x @ ws[0]).relu() @ ws[1], y)

    def f(ws: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        def task(x: Tensor, y: Tensor) -> Tensor:
            gradients = grad(loss)(ws, x, y)
            return loss([w - 0.01 * g for w, g in zip(ws, gradients, strict=True)], x, y)

        return vmap(task)(x, y).mean()

    return f, [([t(3, 8), t(8, 1)], plain(2, 5, 3), plain(2, 5, 1))]


@program
def heat_equation() -> Program:
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def u(s: Tensor, x: Tensor) -> Tensor:
        return net(torch.stack([s, x])).squeeze()

    def residual(s: Tensor, x: Tensor) -> Tensor:
        return (grad(u, 0)(s, x) - grad(grad(u, 1), 1)(s, x)) ** 2

    return lambda s, x: vmap(residual)(s, x).mean(), [(plain(6), plain(6))]


@program
def changes_its_own() -> Program:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.mul_(x)
        y[0] = 1
        return (y * y).sum()

    return grad(f), [(t(3, 4),)]


@program
def steps() -> Program:
    def f(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = x - 0.1 * grad(lambda h: (h @ w).tanh().sum())(x)
        return x

    return f, [(t(3, 4), t(4, 4))]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str) -> None:
    run(PROGRAMS[name]())
    stats = framesmith.stats()
    assert (stats["graphs"], stats["breaks"]) == (1, 0)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("classes", "modules", "for_each_sample")])
def test_symbolic_sizes(name: str) -> None:
    run(PROGRAMS[name](), dynamic=True)


def raises(x: Tensor) -> Tensor:
    raise ValueError("mine")


def changed(x: Tensor) -> Tensor:
    x.mul_(2)
    return (x * x).sum()


def with_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        c = x * 2
    return (x * c).sum()


def keywords(x: Tensor) -> Any:
    return grad(lambda y, *, k: (y * k).sum())(x, k=x + 1)


def without_gradient(x: Tensor) -> Tensor:
    """Of which the gradient is zeros."""
    x.requires_grad = False
    return (x * x).sum()


BREAKS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "no scalar": ("function-not-differentiated", grad(lambda x: x * 2)),
    "no tensor": ("function-not-differentiated", grad(lambda x: 3.0)),
    "a pair": ("function-not-differentiated", grad(lambda x: (x.sum(), 3), has_aux=True)),
    "no pair": ("function-not-differentiated", grad(lambda x: x.sum(), has_aux=True)),
    "another argument": ("function-not-differentiated", grad(lambda x: x.sum(), argnums=5)),
    "an argument twice": ("function-not-differentiated", grad(lambda x: x.sum(), argnums=(0, 0))),
    "no number of an argument": ("function-not-differentiated", grad(lambda x: x.sum(), argnums="x")),  # type: ignore[arg-type]
    "a list of arguments": ("function-not-differentiated", grad(lambda x: x.sum(), argnums=[0])),  # type: ignore[arg-type]
    "tensors as keywords": ("function-not-differentiated", keywords),
    "integers": ("operation-failed", lambda x: grad(lambda y: (y * 2).sum())(x.long())),
    "a number of data": ("body-reads-number", grad(lambda x: (x * x.sum().item()).sum())),
    "a condition": ("asks-batched-tensor", grad(lambda x: (x * 2).sum() if x.sum() > 0 else (x * 3).sum())),
    "asks": ("asks-batched-tensor", grad(lambda x: (x * 2).sum() if x.requires_grad else (x * 3).sum())),
    "asks a result": ("asks-batched-tensor", grad(lambda x: (x * 2).sum() if (x * 2).is_leaf else (x * 3).sum())),
    "keeps out": ("asks-batched-tensor", grad(without_gradient)),
    "a method that torch refuses": ("tensor-autograd-state", grad(lambda x: x.requires_grad_(False).sum())),
    "raises": ("body-raises", grad(raises)),
    "changes its argument": ("body-changes-tensor", grad(changed)),
    "no_grad": ("body-changes-mode", grad(with_no_grad)),
    "another transform": ("not-inlined", torch.func.functionalize(lambda x: x.sin())),
}


@pytest.mark.parametrize("name", BREAKS)
def test_it_runs_eagerly(name: str) -> None:
    kind, function = BREAKS[name]
    compiled = framesmith.compile(function)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        for _ in range(3):
            assert outcome(compiled, torch.arange(-2.0, 4.0)) == outcome(function, torch.arange(-2.0, 4.0))
    assert not [one for one in reported if "failed to compile" in str(one.message)]
    framesmith.reset()
    with pytest.raises(Exception, match=rf"\[{kind}\]"):
        framesmith.compile(function, fullgraph=True)(torch.arange(-2.0, 4.0))
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_objects_are_changed_once() -> None:
    seen: list[int] = []

    def f(x: Tensor) -> Tensor:
        seen.append(1)
        return (x * x).sum()

    compiled = framesmith.compile(lambda x: (grad(f)(x), len(seen)))
    for call in range(3):
        found, count = compiled(torch.ones(3))
        assert (found.tolist(), count) == ([2.0] * 3, call + 1)


def test_a_compiled_function_under_an_eager_transform_warns_once() -> None:
    compiled = framesmith.compile(lambda x: (x.sin() * x).sum())
    with pytest.warns(UserWarning, match="compile the function that applies the transform") as warned:
        for _ in range(3):
            torch.testing.assert_close(
                grad(compiled)(torch.ones(3)), grad(lambda x: (x.sin() * x).sum())(torch.ones(3))
            )
            torch.testing.assert_close(vmap(compiled)(torch.ones(2, 3)), torch.ones(2, 3).sin().sum(1))
    assert len([one for one in warned if "compile the function" in str(one.message)]) == 1
    with pytest.raises(RuntimeError, match="compile the function that applies the transform"):
        grad(framesmith.compile(lambda x: x.sum(), fullgraph=True))(torch.ones(3))


def test_the_call_after_one_whose_body_raises_is_compiled() -> None:
    state = {"raises": True}

    def f(x: Tensor) -> Tensor:
        if state["raises"]:
            raise ValueError("mine")
        return (x * x).sum()

    compiled = framesmith.compile(lambda x: grad(f)(x))
    with pytest.raises(ValueError, match="mine"):
        compiled(torch.ones(3))
    state["raises"] = False
    assert compiled(torch.ones(3)).tolist() == [2.0] * 3
    assert framesmith.stats()["graphs"] == 1


def test_gradients_of_gradients_through_the_call() -> None:
    def f(x: Tensor) -> Tensor:
        return grad(lambda y: (y**4).sum())(x).sum()

    found = []
    for call in (f, framesmith.compile(f, fullgraph=True)):
        x = torch.arange(1.0, 4.0, requires_grad=True)
        [first] = torch.autograd.grad(call(x), x, create_graph=True)
        found.append([first.detach(), *torch.autograd.grad(first.sum(), x)])
    torch.testing.assert_close(*found)


FIRST_OF_A_PROCESS = """
import sys, torch, framesmith
from torch.func import grad, vmap
compiled = framesmith.compile(vmap(grad(lambda x: (x.sin() * x).sum())), backend="eager", fullgraph=True)
for _ in range(2):
    compiled(torch.ones(2, 3))
print(framesmith.stats()["graphs"], "torch._dynamo" in sys.modules)
"""


def test_the_first_of_a_process_is_compiled_once_and_without_torchs_compiler() -> None:
    assert output_of_new_process(FIRST_OF_A_PROCESS).split() == ["1", "False"]
