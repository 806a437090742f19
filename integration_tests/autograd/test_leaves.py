"""Tensors that a compiled function makes leaves, or detaches in place, against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import framesmith

pytestmark = pytest.mark.usefixtures("fresh")

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 8)
#: The hooks that ran.
RAN: list[Any] = []


def method(x: Tensor, w: Tensor) -> Any:
    y = x.detach() * 2
    y.requires_grad_()
    return (y * w).sum()


def attribute(x: Tensor, w: Tensor) -> Any:
    y = x.detach() * 2
    y.requires_grad = True
    return (y * w).sum() * y.requires_grad * y.is_leaf


def shown(x: Tensor, w: Tensor) -> Any:
    y = (x.detach() * 2).requires_grad_(True)
    return y, (y.exp() * w).sum()


def first_shown(x: Tensor, w: Tensor) -> Any:
    """The leaf is a result of a graph that reads it in two groups."""
    y = (x * 2).detach().requires_grad_()
    z = y.exp()
    return y, z, (z * w).sum(), (y * x).sum()


def of_an_input(x: Tensor, w: Tensor) -> Any:
    y = x.detach().requires_grad_()
    return y, (y.sin() * w).sum()


def view_shown(x: Tensor, w: Tensor) -> Any:
    y = (x.detach() * 2).requires_grad_()
    v = y.view(2, 4)
    return y, v, (v * w.view(2, 4)).sum()


def alone(x: Tensor, w: Tensor) -> Any:
    """No gradient reaches an input."""
    y = (x * w).detach().requires_grad_()
    return y.sin().sum()


def alone_and_shown(x: Tensor, w: Tensor) -> Any:
    y = (x * w).detach().requires_grad_()
    return y, y.sin().sum()


def only_a_leaf(x: Tensor, w: Tensor) -> Any:
    return (x * w).detach().requires_grad_()


def factory(x: Tensor, w: Tensor) -> Any:
    bias = torch.zeros(8, requires_grad=True)
    scale = x.new_ones(8, requires_grad=True)
    return bias, ((x + bias) * w * scale).sum()


def back(x: Tensor, w: Tensor) -> Any:
    y = x.detach() * 2
    y.requires_grad_()
    z = y * w
    y.requires_grad_(False)
    return (z + y).sum() * (not y.requires_grad)


def in_no_grad(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        y.requires_grad_()
        y.mul_(3)
    return y, (y * w).sum()


def hooked(x: Tensor, w: Tensor) -> Any:
    y = (x.detach() * 2).requires_grad_()
    y.register_hook(lambda g: RAN.append("leaf") or g * 3)
    y.register_post_accumulate_grad_hook(lambda leaf: RAN.append(leaf.grad.sum().item()))
    return y, (y * w).sum()


def gradient_read(x: Tensor, w: Tensor) -> Any:
    y = (x.detach() * 2).requires_grad_()
    z = y * w
    z.retain_grad()
    return z.sum() * ((y.grad is None) + (z.grad is None))


def gradient_set(x: Tensor, w: Tensor) -> Any:
    y = (x.detach() * 2).requires_grad_()
    y.grad = torch.ones_like(x)
    return y, (y * w).sum()


def detached(x: Tensor, w: Tensor) -> Any:
    y = x * w
    z = y * 2
    same = y.detach_() is y
    return z.sum() + (y * w).sum() * same, y


def detached_and_changed(x: Tensor, w: Tensor) -> Any:
    y = x * w
    y.detach_()
    y.add_(1)
    return (y * x).sum(), y


def other_data(x: Tensor, w: Tensor) -> Any:
    y, z = x.detach().sum(), w.detach().exp()
    y.data = z
    y.mul_(3)
    return (y * x).sum(), y, z


def refused(x: Tensor, w: Tensor) -> Any:
    found = 0
    for change in (lambda: (x * 2).requires_grad_(False), lambda: torch.arange(8).requires_grad_()):
        try:
            change()
        except RuntimeError as error:
            found += len(str(error))
    return (x * w).sum() * found


def in_a_checkpoint(x: Tensor, w: Tensor) -> Any:
    def body(x: Tensor) -> Any:
        bias = torch.zeros(8)
        bias.requires_grad = True
        return (x.sin() + bias).exp(), bias

    y, bias = checkpoint(body, x, use_reentrant=False)
    y, _ = checkpoint(lambda y, bias: ((y + bias).cos(), bias), y * w, bias, use_reentrant=False)
    return y.sum()


WHOLE = [
    method, attribute, shown, first_shown, of_an_input, view_shown, alone, alone_and_shown, only_a_leaf, factory, back,
    in_no_grad, other_data, hooked, gradient_read, gradient_set, detached, detached_and_changed, refused,
    in_a_checkpoint,
]  # fmt: skip


def outcome(function: Callable[..., Any], *, twice: bool) -> list[Any]:
    RAN.clear()
    x, w = X.clone().requires_grad_(), (X + 2).clone().requires_grad_()
    found = function(x, w)
    results = found if isinstance(found, tuple) else (found,)
    leaves = [one for one in results if one.is_leaf and one.requires_grad]
    known = [(one.requires_grad, one.is_leaf, one._is_view()) for one in results]
    loss = sum(one.sum() for one in results if one.requires_grad)
    assert isinstance(loss, Tensor)
    gradients: Any = ()
    if twice:
        wanted = [x, w, *leaves]
        gradients = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        second = sum((one * one).sum() for one in gradients if one is not None)
        loss = loss + second
    loss.backward()
    gradients = [None if one is None else one.detach() for one in gradients]
    values = [one.detach().clone() for one in results]
    return [known, [*RAN], values, x.grad, w.grad, [one.grad for one in leaves], gradients]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda function: function.__name__)
def test_one_graph(function: Callable[..., Any], backend: str, twice: bool) -> None:
    options: Any = {} if backend == "default" else {"backend": backend}
    compiled = framesmith.compile(function, fullgraph=True, strict=True, **options)
    for _ in range(2):
        known, ran, *got = outcome(compiled, twice=twice)
        expected, hooks, *want = outcome(function, twice=twice)
        assert (known, ran) == (expected, hooks)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "aot_eager", "eager"])
def test_only_the_leaf_requires_gradients(backend: str) -> None:
    def made(x: Tensor) -> tuple[Tensor, bool]:
        y = x * 2
        y.requires_grad = True
        return y * 3, y.is_leaf

    compiled = framesmith.compile(made, backend=backend, fullgraph=True)
    for x in (torch.ones(3), torch.zeros(3)):
        (found, is_leaf), (wanted, _) = compiled(x), made(x)
        assert is_leaf and found.requires_grad and torch.equal(found, wanted)
        found.sum().backward()


def test_memory_is_shared_with_the_input() -> None:
    for function in (of_an_input, framesmith.compile(of_an_input, fullgraph=True)):
        x, w = X.clone().requires_grad_(), X.clone()
        leaf, _ = function(x, w)
        assert leaf.data_ptr() == x.data_ptr()
        assert leaf._version == x._version


def test_inputs_break() -> None:
    """The state of a tensor that others hold changes outside of graphs."""

    def frozen(x: Tensor, w: Tensor) -> Any:
        w.requires_grad_(False)
        return (x * w).sum()

    got, want = (outcome(call, twice=False) for call in (framesmith.compile(frozen, strict=True), frozen))
    torch.testing.assert_close(got[2:], want[2:])
    report = framesmith.explain(frozen, X.clone().requires_grad_(), X.clone().requires_grad_())
    assert {event.broken.kind.id for event in report.of_kind("break") if event.broken} == {"tensor-autograd-state"}


def views_before(x: Tensor, w: Tensor) -> Any:
    y = x.detach() * 2
    view = y[:3]
    y.requires_grad_()
    return view.requires_grad, view


def hooked_before(x: Tensor, w: Tensor) -> Any:
    y = torch.ones(3, requires_grad=True)
    y.register_hook(lambda grad: grad * 2)
    z = (y * w.sum()).sum()
    y.detach_()
    return y.requires_grad, z


def into_another(x: Tensor, w: Tensor) -> Any:
    out = torch.empty(3)
    made = torch.ones(3, out=out, requires_grad=True)
    return made is out, out.requires_grad, out


@pytest.mark.parametrize("function", [views_before, hooked_before, into_another], ids=lambda one: one.__name__)
def test_state_that_others_see_breaks(function: Callable[..., Any]) -> None:
    compiled = framesmith.compile(function, strict=True)
    found, wanted = (call(X.clone(), X.clone()) for call in (compiled, function))
    assert found[:-1] == wanted[:-1]
    torch.testing.assert_close(found[-1], wanted[-1])
