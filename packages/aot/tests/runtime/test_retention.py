"""Several backward passes through one compiled graph, allowed and refused as in eager mode."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, graph_of


def of(fn: Callable[..., Any], *inputs: torch.Tensor) -> Callable[..., Any]:
    return compiled(graph_of(fn), list(inputs))


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_separate_backward_passes_one_after_the_other() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * w).sin(), (y * w).exp()

    x, y, w = leaf(3), leaf(3), leaf(3)
    a, b = of(f, x, y, w)(x, y, w)
    a.sum().backward()
    b.sum().backward()
    got = [t.grad.clone() for t in (x, y, w)]
    for t in (x, y, w):
        t.grad = None
    a, b = f(x, y, w)
    (a.sum() + b.sum()).backward()
    for mine, theirs in zip(got, (x, y, w), strict=True):
        torch.testing.assert_close(mine, theirs.grad)


def test_a_detached_output_has_a_separate_pass() -> None:
    def f(x: torch.Tensor, g: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fake = (x * g).tanh()
        return fake, (fake.detach() * d).exp().sum()

    x, g, d = torch.randn(3), leaf(3), leaf(3)
    fake, loss = of(f, x, g, d)(x, g, d)
    loss.backward()
    assert g.grad is None
    with torch.no_grad():
        d.add_(1.0)  # an optimizer's step: nothing on the other way
    fake.sum().backward()
    torch.testing.assert_close(g.grad, x * (1 - (x * g).detach().tanh() ** 2))


def test_an_input_of_the_loss_is_freed_with_it() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = (x * w).exp()
        return logits, (logits * logits).sum()

    x, w = torch.randn(3), leaf(3)
    logits, loss = of(f, x, w)(x, w)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        logits.sum().backward()


def test_a_second_pass_over_the_same_nodes_is_refused_and_retain_graph_allows_it() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), y.exp()

    x, y = leaf(3), leaf(3)
    run = of(f, x, y)
    a, b = run(x, y)
    a.sum().backward()
    b.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()
    a, b = run(x, y)
    for _ in range(3):
        (a.sum() + b.sum()).backward(retain_graph=True)


def test_a_mutation_of_a_saved_tensor_is_refused() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), y * c

    x, y, c = leaf(3), leaf(3), torch.randn(3)
    a, b = of(f, x, y, c)(x, y, c)
    a.sum().backward()
    c.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        b.sum().backward()


def test_nothing_is_retained_after_every_pass() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * c, y * c

    x, y, c = leaf(3), leaf(3), torch.randn(3)
    a, b = of(f, x, y, c)(x, y, c)
    gone = weakref.ref(c)
    del c
    a.sum().backward()
    assert gone() is not None
    b.sum().backward()
    gc.collect()
    assert gone() is None


def test_a_tensor_saved_for_another_result_is_not_read_where_gradients_are_always_zero() -> None:
    """The gradient of random numbers is zeros, computed of no tangent: only eager mode saves the sigmoid before."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.bernoulli(x.sigmoid()), x.sin()

    for way in (f, of(f, leaf(3) * 1)):
        x = leaf(3)
        held = x * 1
        drawn, other = way(held)
        held.mul_(2)
        assert torch.equal(*torch.autograd.grad(drawn.sum(), x, retain_graph=True), torch.zeros(3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            other.sum().backward()


def test_hooks_on_results_that_come_before_an_operation_that_is_refused() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        refused = x.sin()
        other = x * 1
        refused.add_(2.0)
        x.mul_(2)
        return other, refused, (refused * 2).exp()

    for order in ((0, 1), (0, 1, 2), (2, 0)):
        seen = []
        for way in (f, of(f, leaf(3, 4) * 1)):
            called: list[int] = []
            results = way(leaf(3, 4) * 1)
            for at in order:
                results[at].register_hook(lambda grad, at=at, called=called: called.append(at))
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                sum(results[at].sum() for at in order).backward()
            seen.append(sorted(called))
        assert seen[0] == seen[1] and 0 in seen[0]
