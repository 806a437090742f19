"""Hooks that compiled functions register on tensors, inputs and results of operations, against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import framesmith

pytestmark = pytest.mark.usefixtures("fresh")

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 8)
#: The hooks that ran.
RAN: list[Any] = []


def noting(name: Any, change: Callable[[Tensor], Tensor] | None = None) -> Callable[[Tensor], Tensor | None]:
    """Return a hook that notes its name, and changes the gradient if there is a change."""

    def hook(gradient: Tensor) -> Tensor | None:
        RAN.append(name)
        return None if change is None else change(gradient)

    return hook


class Clipped(nn.Module):
    """Clips the gradient of its hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        hidden.register_hook(noting("hidden", lambda g: g.clamp(-0.1, 0.1)))
        return self.second(hidden)


NET = Clipped()


def doubled(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return y.cos().sum()


def used_before(x: Tensor) -> Tensor:
    y = x.sin()
    z = y * 3
    y.register_hook(noting("y", lambda g: g * 2))
    return (z * y.cos()).sum()


def in_order(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(noting(1))
    z = y.exp()
    z.register_hook(noting(2, lambda g: g + 1))
    y.register_hook(noting(3, lambda g: g * 2))
    return (z + y).sum()


def removed(x: Tensor) -> Tensor:
    y = x.sin()
    handle = y.register_hook(noting("never"))
    handle.remove()
    handle.remove()
    return y.sum()


def replaced(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(noting("never")).remove()
    y.register_hook(noting("instead", lambda g: -g))
    return y.sum()


def of_a_view(x: Tensor) -> Tensor:
    y = x.sin().view(2, 4)
    y.register_hook(noting("view", lambda g: g * 2))
    return (y * 2).sum()


def of_a_result(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(noting("result", lambda g: g * 2))
    return y


def of_an_input(x: Tensor) -> Tensor:
    x.register_hook(noting("input", lambda g: g * 5))
    return (x * 2).sum()


def without_gradients(x: Tensor) -> Tensor:
    try:
        x.detach().register_hook(print)
    except RuntimeError as error:
        return x * len(str(error))
    raise AssertionError("unreachable")


def retained(x: Tensor) -> Any:
    y = x.sin()
    y.retain_grad()
    x.retain_grad()
    return y, y.cos().sum()


def after_accumulation(x: Tensor) -> Tensor:
    x.register_post_accumulate_grad_hook(lambda p: RAN.append(p.grad.sum().item()))
    return (x * 2).sum()


def of_captured(x: Tensor) -> Tensor:
    y, scale = x.sin(), x.detach() * 2
    y.register_hook(lambda g: g * scale)
    return y.sum()


def in_a_loop(x: Tensor) -> Tensor:
    for index in range(3):
        x = x * 1.1
        x.register_hook(noting(index, lambda g, index=index: g * (index + 1)))
    return x.sum()


def of_a_module(x: Tensor) -> Tensor:
    return NET(x.reshape(1, 8)).sum()


def second(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda g: g * g)
    return (y**3).sum()


def changed_after(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(noting("changed", lambda g: g * 2))
    y.mul_(3)
    return y.sum()


def handle_returned(x: Tensor) -> Any:
    y = x.sin()
    return y.sum(), y.register_hook(noting("kept"))


def in_a_block(x: Tensor) -> Tensor:
    y = x.sin()
    with y.register_hook(noting("never", lambda g: g * 2)):
        z = y * 3
    return z.sum()


def handle_removed_and_returned(x: Tensor) -> Any:
    y = x.sin()
    handle = y.register_hook(noting("never"))
    handle.remove()
    return y.sum(), handle


def handle_asked(x: Tensor) -> Tensor:
    y = x.sin()
    return y.sum() * (y.register_hook(noting("asked")).id >= 0)


WHOLE = [
    doubled, used_before, in_order, removed, replaced, of_a_view, of_a_result, of_an_input, without_gradients, retained,
    after_accumulation, of_captured, in_a_loop, of_a_module, second, handle_returned, in_a_block,
    handle_removed_and_returned,
]  # fmt: skip
BREAKS = {
    changed_after: "hooked-tensor-changed",
    handle_asked: "hook-handle-asked",
}


def outcome(function: Callable[[Tensor], Any], *, twice: bool) -> list[Any]:
    RAN.clear()
    NET.zero_grad()
    x = X.clone().requires_grad_()
    found = function(x)
    results = [one for one in (found if isinstance(found, tuple) else (found,)) if isinstance(one, Tensor)]
    loss = sum(one.sum() for one in results)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=twice, retain_graph=True)
    if twice and gradient.requires_grad:
        gradient.sum().backward(retain_graph=True)
    loss.backward()
    retained = [one.grad for one in results if one.retains_grad]
    return [[*RAN], loss.detach(), gradient.detach(), x.grad, retained, [p.grad for p in NET.parameters()]]


def check(function: Callable[[Tensor], Any], **options: Any) -> None:
    compiled = framesmith.compile(function, strict=True, **options)
    for twice in (False, True):
        for _ in range(2):
            ran, *got = outcome(compiled, twice=twice)
            expected, *want = outcome(function, twice=twice)
            assert ran == expected
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda function: function.__name__)
def test_one_graph(function: Callable[[Tensor], Any], backend: str) -> None:
    check(function, fullgraph=True, **({} if backend == "default" else {"backend": backend}))


@pytest.mark.parametrize("function", BREAKS, ids=lambda function: function.__name__)
def test_break(function: Callable[[Tensor], Any]) -> None:
    check(function)
    report = framesmith.explain(function, X.clone().requires_grad_())
    assert {event.broken.kind.id for event in report.of_kind("break") if event.broken} == {BREAKS[function]}


def test_hooks_run_once_for_each_call() -> None:
    """An input keeps its hooks: each call adds one."""
    for function in (of_an_input, framesmith.compile(of_an_input, fullgraph=True)):
        RAN.clear()
        x = X.clone().requires_grad_()
        function(x)
        function(x).backward()
        assert RAN == ["input", "input"]
        torch.testing.assert_close(x.grad, torch.full((8,), 50.0))


def test_returned_handles_remove_their_hooks() -> None:
    compiled = framesmith.compile(handle_returned, fullgraph=True)
    for removed in (True, False):
        x = X.clone().requires_grad_()
        RAN.clear()
        result, handle = compiled(x)
        if removed:
            handle.remove()
        result.backward()
        assert RAN == ([] if removed else ["kept"])


def test_handle_removed_behind_a_break() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        handle = y.register_hook(noting("removed", lambda g: g * 2))
        z = y * 2
        print("")
        handle.remove()
        return (z * y).sum()

    check(function)
    compiled = framesmith.compile(function)
    RAN.clear()
    compiled(X.clone().requires_grad_()).backward()
    assert RAN == []


def test_a_list_whose_items_are_all_replaced_is_not_guarded() -> None:
    kept: list[Any] = []

    def function(x: Tensor) -> Tensor:
        y = x.sin()
        kept[:] = [y.register_hook(noting("kept", lambda gradient: gradient * 2))]
        return y.sum()

    compiled = framesmith.compile(function, strict=True, fullgraph=True)
    for length in range(3):
        kept.extend([None] * length)
        x = X.clone().requires_grad_()
        compiled(x).backward()
        torch.testing.assert_close(x.grad, X.cos() * 2)
        assert len(kept) == 1
    assert framesmith.stats()["graphs"] == 1
