"""`torch.autograd.Function`s with gradients in compiled functions: in one graph, or a break; both as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from integration_tests.transforms.autograd_functions import programs as f
from integration_tests.transforms.autograd_functions.programs import Tensor

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.linspace(-1, 1, 8)
LAYER = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def both_of(make: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """Return a function of the sum of both results."""

    def function(x: Tensor) -> Tensor:
        first, second = make(x)
        return first * 2 + second

    return function


def in_autocast(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return make(x).float()

    return function


def in_place(x: Tensor) -> Tensor:
    y = x.sin()
    return f.InPlace.apply(y) * y


def mixed(x: Tensor) -> Tensor:
    y, name, count = f.Mixed.apply(x, {"k": 2.0})
    return y * count * len(name)


def layers(x: Tensor) -> Tensor:
    return LAYER[1](f.Swish.apply(LAYER[0](x)))


def counted(x: Tensor) -> Tensor:
    return f.Counted.apply(x) + len(f.NOTED)


def looped(x: Tensor) -> Tensor:
    for index in range(4):
        x = f.Clamped.apply(x * 1.5, -index - 1, index + 1)
    return x


WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "straight through": lambda x: f.Rounded.apply(x * 3).sin(),
    "reversed": lambda x: f.Reversed.apply(x.sin(), 0.5) * 2,
    "reversed result": lambda x: f.Reversed.apply(x.sin(), 0.5),
    "reversed input": lambda x: f.Reversed.apply(x, 0.5),
    "part of a reversed result": lambda x: f.Reversed.apply(x.sin(), 0.5)[2:],
    "reversed part": lambda x: f.Reversed.apply(x[2:], 0.5),
    "the argument": lambda x: f.Doubling.apply(x.sin()) * 2,
    "the argument as the result": lambda x: f.Doubling.apply(x),
    "one after another": lambda x: f.Swish.apply(f.Swish.apply(x) + 1),
    "a subclass": f.SwishTwice.apply,
    "in a Function": f.Around.apply,
    "needs": lambda x: f.Multiply.apply(x.reshape(2, 4), x.reshape(4, 2) + 1).tanh(),
    "needs one": lambda x: f.Multiply.apply(x.reshape(2, 4), torch.ones(4, 3)).tanh(),
    "one tensor twice": lambda x: f.Multiply.apply(x.reshape(1, 8), x.reshape(8, 1)) + f.Affine.apply(x, x, x),
    "none": lambda x: f.Affine.apply(x, x.cos(), None) + f.Affine.apply(x, x),
    "two results": both_of(f.SinCos.apply),
    "one of two results": lambda x: f.SinCos.apply(x)[0] * 2,
    "not differentiable": both_of(f.Sorted.apply),
    "setup_context": lambda x: f.Power.apply(x.exp()).sin(),
    "keyword": lambda x: f.Power.apply(x.exp(), k=3).sin(),
    "once": lambda x: f.Once.apply(x) * 2,
    "one of several not materialized": lambda x: f.SeveralUnmaterialized.apply(x)[0],
    "several not materialized": both_of(f.SeveralUnmaterialized.apply),
    "not materialized": both_of(f.Unmaterialized.apply),
    "in place": in_place,
    "attributes": lambda x: f.Kept.apply(x * 2),
    "captured": lambda x: f.Captured.apply(x) * x,
    "sizes": lambda x: f.Summed.apply(x) * x,
    "writes": lambda x: f.Clamped.apply(x * 2, -1, 1) * 3,
    "other values": mixed,
    "cast": in_autocast(lambda x: f.Cast.apply(x.reshape(2, 4) @ x.reshape(4, 2))),
    "autocast": in_autocast(lambda x: f.Autocast.apply(x.reshape(2, 4), x.reshape(4, 2))),
    "random": lambda x: f.Dropped.apply(x) + torch.rand(8),
    "layers": layers,
    "a side effect": counted,
    "loop": looped,
}
BREAKS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "body-effect": ("body-effect", f.CountedBackward.apply),
    "raises": ("body-raises", f.Refusing.apply),
    "raises in backward": ("body-raises", f.Failing.apply),
    "too many gradients": ("autograd-function", f.TooMany.apply),
    "asks for the mode": ("backward-asks-grad-mode", f.AsksMode.apply),
    "asks for the class": ("class-stands-in", f.AsksClass.apply),
    "asks for data": ("tensor-data-branch", f.AsksData.apply),
    "writes to its gradient": ("body-changes-tensor", f.WritesGradient.apply),
    "many not materialized": ("autograd-function", lambda x: f.ManyUnmaterialized.apply(x)[0]),
    "autograd in backward": ("tensor-autograd-state", f.Recomputing.apply),
    "escapes": ("body-tensor-escapes", lambda x: f.Escaping.apply(x) + f.Escaping.kept.pop()),
}


def outcome(function: Callable[[Tensor], Tensor], *, grad: bool, second: bool) -> list[Any]:
    """Return what is seen of a call, its backward pass, and with `second` the one of its gradient."""
    torch.manual_seed(0)
    f.NOTED.clear()
    f.Escaping.kept.clear()
    LAYER.zero_grad()
    x = X.clone().requires_grad_(grad)
    try:
        y = function(x)
        found: list[Any] = [y.detach().clone(), y.requires_grad, y.stride()]
        if y.requires_grad:
            weights = torch.linspace(1, 2, y.numel()).reshape(y.shape)
            (gradient,) = torch.autograd.grad(y, x, weights, create_graph=second, retain_graph=True)
            found.append(gradient)
            if second and gradient.requires_grad:
                (gradient,) = torch.autograd.grad(gradient.sum(), x, retain_graph=True, allow_unused=True)
                found.append(gradient)
            y.backward(weights)
            found += [x.grad, *(p.grad for p in LAYER.parameters())]
    except Exception as error:
        return [type(error), str(error)]
    return [*found, [*f.NOTED], torch.rand(1)]


def check(function: Callable[[Tensor], Tensor], compiled: Callable[[Tensor], Tensor], **settings: bool) -> None:
    want = outcome(function, **settings)
    for _ in range(2):
        got = outcome(compiled, **settings)
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            if isinstance(other, Tensor):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
            else:
                assert one == other


CASES = [{"grad": True, "second": False}, {"grad": True, "second": True}, {"grad": False, "second": False}]


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str, backend: str) -> None:
    options = {} if backend == "default" else {"backend": backend}
    compiled = framesmith.compile(WHOLE[name], fullgraph=True, strict=True, **options)
    for case in CASES:
        check(WHOLE[name], compiled, **case)


@pytest.mark.parametrize("name", BREAKS)
def test_break(name: str) -> None:
    kind, function = BREAKS[name]
    compiled = framesmith.compile(lambda x: function(x) * 1, strict=True)
    for case in CASES:
        check(lambda x: function(x) * 1, compiled, **case)
    report = framesmith.explain(lambda x: function(x) * 1, X.clone().requires_grad_()) if name != "raises" else None
    found = [] if report is None else [event.broken.kind.id for event in report.of_kind("break") if event.broken]
    assert report is None or kind in found


def test_a_view_of_an_input_shares_its_memory() -> None:
    x = X.clone().requires_grad_()
    y = framesmith.compile(lambda x: f.Reversed.apply(x, 2.0), fullgraph=True)(x)
    assert y.data_ptr() == x.data_ptr()
    assert y._base is x
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((8,), -2.0))
    with pytest.raises(RuntimeError, match="created inside a custom Function"):
        y.mul_(2)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("between", [True, False], ids=["operations", "results"])
def test_gradients_that_are_absent(used: tuple[int, ...], between: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = f.SeveralUnmaterialized.apply(x * 1.0)
        return (first * 2, second * 3) if between else (first, second)

    found = []
    for one in (function, framesmith.compile(function, fullgraph=True, strict=True)):
        x = X.clone().requires_grad_()
        results = one(x)
        total = sum(results[at].sum() for at in used)
        (gradient,) = torch.autograd.grad(total, x, retain_graph=True)
        found.append([gradient, *torch.autograd.grad(total, x, create_graph=True)])
    assert found[0][0].requires_grad is False
    torch.testing.assert_close(*found)


class Absorbing(torch.autograd.Function):
    """Gives no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> None:
        return None


class Answering(torch.autograd.Function):
    """Has a gradient where none arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        return torch.full((8,), 7.0) if g is None else g * 2


@pytest.mark.parametrize("absorbed", [True, False])
def test_the_only_gradient_is_absent(absorbed: bool) -> None:
    def function(x: Tensor) -> Tensor:
        result: Tensor = Answering.apply(x * 1.5)
        return result

    found = []
    for one in (function, framesmith.compile(function, fullgraph=True, strict=True)):
        x = X.clone().requires_grad_()
        result = one(x)
        (Absorbing.apply(result) if absorbed else result * 3).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("lone", [True, False])
def test_a_view_of_what_the_graph_has_made_refuses_writes(lone: bool) -> None:
    def function(x: Tensor) -> Any:
        y = f.Reversed.apply(x * x, 2.0)
        return y if lone else (y, x.sin())

    for one in (function, framesmith.compile(function, fullgraph=True, strict=True)):
        y = one(X.clone().requires_grad_())
        y = y if lone else y[0]
        assert y._is_view()
        with pytest.raises(RuntimeError, match="created inside a custom Function"):
            y.mul_(2)
        y = one(X.clone())
        (y if lone else y[0]).mul_(2)


def test_views_of_one_result() -> None:
    def function(x: Tensor) -> Any:
        y = x.sin()
        return y, f.Reversed.apply(y, 2.0), f.Reversed.apply(y, 3.0)[1:]

    found = []
    for one in (function, framesmith.compile(function, fullgraph=True, strict=True)):
        x = X.clone().requires_grad_()
        first, second, third = one(x)
        assert first.data_ptr() == second.data_ptr()
        (first.sum() + second.prod() + third.sum()).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kept", [f.Swish.apply, lambda x: f.Kept.apply(x)], ids=["saved", "attribute"])
def test_what_backward_needs_may_not_be_mutated(kept: Callable[[Tensor], Tensor]) -> None:
    h = X.clone().requires_grad_() * 2
    y = framesmith.compile(lambda h: kept(h) * 1, fullgraph=True)(h)
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_second_pass_and_second_derivative() -> None:
    x = X.clone().requires_grad_()
    y = framesmith.compile(lambda x: f.Swish.apply(x), fullgraph=True)(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    y = framesmith.compile(lambda x: f.Once.apply(x) * x, fullgraph=True)(x).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_recompiles() -> None:
    """For other settings that backward reads, other needs, other sizes."""
    scaled = framesmith.compile(lambda x: f.Scaled.apply(x), fullgraph=True, strict=True)
    multiply = framesmith.compile(lambda a, b: f.Multiply.apply(a, b), fullgraph=True, strict=True)
    summed = framesmith.compile(lambda x: f.Summed.apply(x), fullgraph=True, strict=True, dynamic=True)
    for scale in (2.0, 3.0):
        f.SETTINGS["scale"] = scale
        x = X.clone().requires_grad_()
        scaled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((8,), scale))
    for needs in ((True, False), (False, True), (True, True), (False, False)):
        pairs = []
        for function in (f.Multiply.apply, multiply):
            a, b = (X.reshape(size).clone().requires_grad_(need) for size, need in zip(((2, 4), (4, 2)), needs))
            y = function(a, b)
            if y.requires_grad:
                y.sum().backward()
            pairs.append((y.detach(), a.grad, b.grad))
        torch.testing.assert_close(*pairs)
    for size in (4, 6, 9):
        x = torch.linspace(0, 1, size).requires_grad_()
        summed(x).backward()
        torch.testing.assert_close(x.grad, torch.full((size,), float(size)))


def test_gradcheck() -> None:
    x = X.double().requires_grad_()
    for function in (f.Swish.apply, f.SwishTwice.apply, lambda x: f.SinCos.apply(x)[0], f.Power.apply, f.Kept.apply):
        compiled = framesmith.compile(lambda x, function=function: function(x) * 2, fullgraph=True)
        assert torch.autograd.gradcheck(compiled, x)
        # Not of those that save tensors between, whose history eager mode does not have either.
        second = torch.autograd.gradgradcheck(function, x, raise_exception=False)
        assert torch.autograd.gradgradcheck(compiled, x, raise_exception=False) == second


def test_training() -> None:
    """Three steps of a module with Functions between its layers."""
    found = []
    for compile_it in (lambda module: module, lambda module: framesmith.compile(module, fullgraph=True, strict=True)):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        step = compile_it(lambda x: module[1](f.Reversed.apply(f.Swish.apply(module[0](x)), 0.1)).sum())
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = step(X.reshape(1, 8))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found.append([*losses, *(p.detach() for p in module.parameters())])
    torch.testing.assert_close(*found)
