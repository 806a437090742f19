"""`torch.autograd.forward_ad` in compiled functions: one graph, or a break by name; both as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch import nn
from torch.autograd import Function
from torch.func import functional_call, grad, jacrev, jvp, vmap

import framesmith
from integration_tests.transforms.transforms import Tensor, m, outcome, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")

NET = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))


class Scaled(Function):
    """With a `jvp` that gives away that it was used."""

    @staticmethod
    def forward(x: Tensor, k: float) -> Tensor:
        return x * k

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.k, None

    @staticmethod
    def jvp(ctx: Any, change: Tensor, _: None) -> Tensor:
        return change * ctx.k * 10


def pushed(function: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Any:
    with fwd.dual_level():
        return fwd.unpack_dual(function(fwd.make_dual(x, tangent)))


def along_ones(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    return lambda x: pushed(function, x, torch.ones_like(x))


def two_duals(x: Tensor, y: Tensor) -> Any:
    with fwd.dual_level():
        one = fwd.make_dual(x, y.cos())
        other = fwd.make_dual(y, x.sin())
        return fwd.unpack_dual(one * other.exp()), fwd.unpack_dual(one.sum())


def none_without_a_dual(x: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, x + 1)
        found = [fwd.unpack_dual(one) for one in (x * 2, dual.detach(), dual > 0, torch.zeros(2))]
    return [(one.primal, one.tangent is None) for one in found]


def outside(x: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, x + 1)
        made = dual.sin()
    return fwd.unpack_dual(made).tangent is None, made, fwd.unpack_dual(x).primal is x


def unpacked_is_constant(x: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, x + 1)
        primal, tangent = fwd.unpack_dual(dual.sin())
        again = fwd.unpack_dual(primal * dual)
        return again.tangent, fwd.unpack_dual(primal * 2).tangent is None, fwd.unpack_dual(tangent).tangent is None


def own_memory_is_written(x: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, x.cos())
        buffer = torch.zeros(3, 4)
        buffer[1:] = dual[1:] * 2
        buffer.mul_(dual)
        return fwd.unpack_dual(buffer)


def numbers_drawn_before(x: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, torch.rand(3, 4))
        return fwd.unpack_dual(dual * torch.rand(3, 4) + torch.rand(4))


def as_decorator(x: Tensor) -> Any:
    @fwd.dual_level()
    def function(y: Tensor) -> Any:
        return fwd.unpack_dual(fwd.make_dual(y, y).tan(), level=0).tangent

    return function(x), function(x + 1)


def of_parameters(x: Tensor) -> Any:
    with fwd.dual_level():
        duals = {name: fwd.make_dual(one, torch.ones_like(one)) for name, one in NET.named_parameters()}
        return fwd.unpack_dual(functional_call(NET, duals, (x,)))


def penalty(x: Tensor) -> Any:
    primal, tangent = pushed(NET, x, x.cos())
    return primal.sum() + tangent.square().sum()


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "sine": along_ones(lambda x: x.sin() * x.sum()),
    "a layer": along_ones(NET),
    "sums": along_ones(lambda x: x.square().log1p().cumsum(-1)),
    "views": along_ones(lambda x: x.t()[1:].reshape(-1) * 2),
    "grad inside": along_ones(grad(lambda y: (y.sin() * y).sum())),
    "vmap inside": along_ones(vmap(lambda row: row.cumsum(0) * row.sum())),
    "jacobian inside": along_ones(lambda x: jacrev(lambda y: y.sin() * y.sum())(x[0])),
    "a Function": along_ones(lambda x: Scaled.apply(x.sin(), 3.0) * 2),
    "within a gradient": lambda x: grad(lambda y: pushed(torch.sin, y, x.cos()).tangent.sum())(x),
    "within a second gradient": lambda x: grad(
        lambda y: grad(lambda z: pushed(torch.tan, z, y).tangent.sum())(y).square().sum()
    )(x),
    "gradients off": torch.no_grad()(along_ones(lambda x: x.exp() * x)),
    "none without a dual": none_without_a_dual,
    "outside": outside,
    "unpacked is constant": unpacked_is_constant,
    "own memory": own_memory_is_written,
    "numbers drawn before": numbers_drawn_before,
    "a decorator": as_decorator,
    "parameters": of_parameters,
    "penalty": penalty,
}


@pytest.mark.parametrize("make", [plain, t], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, make: Callable[..., Tensor]) -> None:
    run((PROGRAMS[name], [(make(3, 4),)]))
    stats = framesmith.stats()
    assert (stats["graphs"], stats["breaks"]) == (1, 0)


def test_two_duals() -> None:
    run((two_duals, [(t(3, 4), t(3, 4))]))


@pytest.mark.parametrize("name", ["sine", "a layer", "grad inside", "a Function", "unpacked is constant"])
def test_dynamic_sizes(name: str) -> None:
    run((PROGRAMS[name], [(t(size, 4),) for size in (3, 5, 2)]), dynamic=True)


def test_gradients_of_gradients() -> None:
    found = []
    for call in (penalty, framesmith.compile(penalty, fullgraph=True)):
        torch.manual_seed(1)
        x = t(3, 4)
        [first] = torch.autograd.grad(call(x), x, create_graph=True)
        found.append([first.detach(), *torch.autograd.grad(first.square().sum(), x)])
    torch.testing.assert_close(*found)


def raises(x: Tensor) -> Any:
    def function(y: Tensor) -> Tensor:
        raise ValueError("mine")

    return pushed(function, x, x)


def caught(x: Tensor) -> Any:
    try:
        raises(x)
    except ValueError:
        pass
    return pushed(torch.sin, x, x)


def test_the_level_is_left_where_a_body_raises() -> None:
    run((caught, [(plain(3, 4),)]))
    for function in (raises, framesmith.compile(raises)):
        for _ in range(2):
            with pytest.raises(ValueError, match="mine"):
                function(plain(3, 4))
            assert fwd._current_level == -1


def written_after(x: Tensor) -> Any:
    weight = x + 1
    with fwd.dual_level():
        dual = fwd.make_dual(x, x)
        made = dual * weight
        weight.mul_(2)
        return fwd.unpack_dual(made)


def draws(x: Tensor) -> Any:
    return pushed(lambda y: nn.functional.dropout(y.sin()), x, x)


def writes_the_primal(x: Tensor) -> Any:
    return pushed(lambda y: y.mul_(2), x, x)


def breaks_inside(x: Tensor) -> Any:
    return pushed(lambda y: y * 2 if y.sum() > 0 else y * 3, x, x)


def nested(x: Tensor) -> Any:
    with fwd.dual_level():
        return pushed(torch.sin, x, x)


def within(x: Tensor) -> Any:
    return jvp(lambda y: pushed(torch.sin, y, x).tangent, (x,), (x,))


def dual_of_dual(x: Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x, x)
        return fwd.unpack_dual(fwd.make_dual(dual * 2, x))


def other_shape(x: Tensor) -> Any:
    return pushed(torch.sin, x, x[:1])


def integers(x: Tensor) -> Any:
    return pushed(torch.sin, x.long(), x.long())


def without_level(x: Tensor) -> Any:
    return fwd.make_dual(x, x)


def within_vmap(x: Tensor) -> Any:
    with fwd.dual_level():
        return vmap(lambda row: fwd.unpack_dual(fwd.make_dual(row, row)).tangent)(x)


BREAKS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "raises": ("", raises),
    "written after": ("body-changes-tensor", written_after),
    "draws": ("derivative-draws-again", draws),
    "writes the primal": ("body-changes-tensor", writes_the_primal),
    "breaks inside": ("asks-batched-tensor", breaks_inside),
    "nested": ("dual-tensor-refused", nested),
    "within a transform": ("dual-tensor-refused", within),
    "dual of dual": ("dual-tensor-refused", dual_of_dual),
    "another shape": ("dual-tensor-refused", other_shape),
    "integers": ("dual-tensor-refused", integers),
    "without level": ("dual-tensor-refused", without_level),
    "within vmap": ("dual-tensor-refused", within_vmap),
}


@pytest.mark.parametrize("name", BREAKS)
def test_it_runs_eagerly(name: str) -> None:
    kind, function = BREAKS[name]
    compiled = framesmith.compile(function)
    for _ in range(3):
        x = torch.arange(-2.0, 4.0).reshape(2, 3)
        assert outcome(compiled, x.clone()) == outcome(function, x.clone())
        assert fwd._current_level == -1
    framesmith.reset()
    with pytest.raises(Exception, match=rf"\[{kind}\]" if kind else "mine"):
        framesmith.compile(function, fullgraph=True)(torch.arange(-2.0, 4.0))
    assert fwd._current_level == -1


def test_calls_within_a_level_of_the_caller_have_tangents() -> None:
    compiled = framesmith.compile(lambda x: x.sin() * 2)
    x = plain(3)
    want = pushed(lambda y: y.sin() * 2, x, x)
    with pytest.warns(UserWarning, match="compile the function that enters the level") as warned:
        for _ in range(3):
            torch.testing.assert_close(pushed(compiled, x, x), want)
    assert len([one for one in warned if "compile the function" in str(one.message)]) == 1


def test_the_tangent_of_a_dual_is_the_given_one() -> None:
    def function(x: Tensor, tangent: Tensor) -> Any:
        with fwd.dual_level():
            found = fwd.unpack_dual(fwd.make_dual(x, tangent)).tangent
        return found is tangent, found + 1

    run((function, [(plain(3), plain(3))]))


def test_memory_of_duals_is_that_of_their_primals() -> None:
    def function(x: Tensor) -> Any:
        with fwd.dual_level():
            dual = fwd.make_dual(x, torch.ones_like(x))
            return fwd.unpack_dual(dual).primal

    x = m(3)().detach()
    assert framesmith.compile(function, fullgraph=True)(x).data_ptr() == x.data_ptr()
