"""Second derivatives of graphs that mutate their inputs: values, hooks, and the contents of the inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, graph_of

pytestmark = pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")


def changed_then_read(x: Any, w: Any) -> Any:
    x.mul_(w)
    return (x.sin(),)


def changed_twice(x: Any, w: Any) -> Any:
    x.mul_(2).sin_()
    return (x * x * w,)


def read_then_changed(x: Any, w: Any) -> Any:
    y = x + w
    x.add_(1)
    return (y.exp(), x.cos())


def a_part_changed(x: Any, w: Any) -> Any:
    x[1:].mul_(w[1:])
    return ((x * w).exp(),)


def changed_behind_autograd(x: Any, w: Any) -> Any:
    x.mul_(2)
    y = x.exp()
    x.data.add_(1)
    return (y * y * w,)


def changed_after_it_was_saved(x: Any, w: Any) -> Any:
    x.mul_(2)
    y = x.exp()
    x.add_(1)
    return (y * y * w,)


def changed_to_a_saved_tensor(x: Any, w: Any) -> Any:
    x.exp_()
    return (x * x * w,)


def rectified_in_place(x: Any, w: Any) -> Any:
    torch.relu_(x)
    return (x * x * w,)


def returned_too(x: Any, w: Any) -> Any:
    x.mul_(w)
    y = x.sin()
    return x, y, (x * y).exp()


def changed_by_what_it_makes(x: Any, w: Any) -> Any:
    x.add_((x + w).tanh())
    return (x.pow(3),)


def changed_through_views(x: Any, w: Any) -> Any:
    part, rows = x[1:], x.t()
    part.mul_(2).add_(w[1:])
    return ((rows * w.t()).sum(1), part.sin().sum() * x)


def computed_before(x: Any, w: Any) -> Any:
    y = x * 2 + w
    x.mul_(0.0)
    return (x + 3 * y,)


def computed_before_each_change(x: Any, w: Any) -> Any:
    first = x.exp()
    x.mul_(2)
    second = (x + w).tanh()[1:].sum()
    x[::2].zero_()
    return first * second, x + first


def computed_before_through_views(x: Any, w: Any) -> Any:
    rows = x.t()
    y = rows.exp() * w.t()
    x.relu_()
    return (rows + y, y.sum() * x)


PROGRAMS = [
    computed_before, computed_before_each_change, computed_before_through_views,
    changed_then_read, changed_twice, read_then_changed, a_part_changed, changed_behind_autograd,
    changed_after_it_was_saved, returned_too, changed_by_what_it_makes,
    changed_through_views, changed_to_a_saved_tensor, rectified_in_place,
]  # fmt: skip


def passes(run: Callable[..., Any], *, weight_needs_grad: bool) -> list[Any]:
    """Return what a user sees of two passes through a call that mutates `x`."""
    torch.manual_seed(0)
    leaf = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 4, dtype=torch.float64, requires_grad=weight_needs_grad)
    x = leaf * 1
    seen: list[Any] = []
    x.register_hook(lambda grad: seen.append("before"))
    results = run(x, w)
    x.register_hook(lambda grad: seen.append("after"))
    wanted = [leaf, w] if weight_needs_grad else [leaf]
    grads = torch.autograd.grad(sum(one.pow(2).sum() for one in results), wanted, create_graph=True)
    seen += [*grads, x.detach().clone()]
    for of in (leaf, x, w):
        if of.requires_grad:
            try:
                seen += torch.autograd.grad(grads[0].sin().sum(), of, retain_graph=True)
            except RuntimeError as error:
                seen.append(str(error).split(".")[0])
    sum(grad.pow(2).sum() for grad in grads).backward()
    return [*seen, *[one.grad for one in wanted]]


@pytest.mark.parametrize("weight_needs_grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_two_passes_are_those_of_eager(program: Callable[..., Any], weight_needs_grad: bool) -> None:
    leaf = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 4, dtype=torch.float64, requires_grad=weight_needs_grad)
    run = compiled(graph_of(program), [leaf * 1, w])
    expected = passes(program, weight_needs_grad=weight_needs_grad)
    for _ in range(2):
        found = passes(run, weight_needs_grad=weight_needs_grad)
        assert len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            if isinstance(two, torch.Tensor):
                torch.testing.assert_close(one, two)
            else:
                assert one == two


def test_memory_with_gaps_that_is_changed() -> None:
    def f(x: Any) -> Any:
        x.mul_(2)
        return (x.t().sin(),)

    def part(leaf: Any) -> Any:
        return (leaf * 1).as_strided((4, 3), (6, 2))

    found = []
    leaf = torch.arange(24.0, dtype=torch.float64, requires_grad=True)
    for run in (f, compiled(graph_of(f), [part(leaf)])):
        [grad] = torch.autograd.grad(run(part(leaf))[0].sum(), leaf, create_graph=True)
        found += torch.autograd.grad(grad.sum(), leaf)
    torch.testing.assert_close(*found)


def test_the_saved_memory_of_a_mutated_input_must_not_be_mutated() -> None:
    def f(x: Any, w: Any) -> Any:
        x.mul_(w)
        return (x.sin(),)

    leaf = torch.randn(4, requires_grad=True)
    w = torch.randn(4)
    for run in (f, compiled(graph_of(f), [leaf * 1, w])):
        x = leaf * 1
        [result] = run(x, w)
        x.data.zero_()  # not noticed, in eager mode either
        result.sum().backward(retain_graph=True)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result.sum(), leaf, create_graph=True)


def test_a_plain_input_that_the_graph_writes_and_eager_saves() -> None:
    def f(x: Any, state: Any) -> Any:
        state.mul_(2)
        return (x * state,)

    leaf = torch.randn(4, requires_grad=True)
    for run in (f, compiled(graph_of(f), [leaf, torch.ones(4)])):
        state = torch.ones(4)
        first = run(leaf, state)[0].sum()
        second = run(leaf, state)[0].sum()
        second.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            first.backward()


def changed_and_returned(x: Any, w: Any) -> Any:
    t = x * 1
    t.mul_(w)
    return t, t.sin()


def saved_and_returned(x: Any, w: Any) -> Any:
    t = x * w
    t.exp_()
    return t, (t * x).cos()


def a_part_set(x: Any, w: Any) -> Any:
    t = x * 1
    t[1:].copy_(w[1:])
    v = t * w
    return v.cos() * t, v


def a_part_scaled(x: Any, w: Any) -> Any:
    t = x * 1
    t[1:].mul_(w[1:])
    v = t * w
    return v, v.cos() * t, t


@pytest.mark.parametrize("program", [changed_and_returned, saved_and_returned, a_part_set, a_part_scaled])
@pytest.mark.parametrize("way", ["leaf", "results", "hook", "retained"])
def test_a_second_pass_leads_through_mutated_results(program: Callable[..., Any], way: str) -> None:
    found: list[list[Any]] = []
    leaves = [torch.linspace(0.5, 1.5, 3, requires_grad=True), torch.linspace(1, 2, 3, requires_grad=True)]
    for run in (program, compiled(graph_of(program), leaves)):
        x, w = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        results = run(x, w)
        if way == "hook":
            results[0].register_hook(lambda grad: grad * 10)
        if way == "retained":
            results[0].retain_grad()
        first = torch.autograd.grad(sum((one**2).sum() for one in results), [x, w], create_graph=True)
        penalty = sum((one**2).sum() for one in first)
        wanted = [x, w, *results] if way == "results" else [x, w]
        found.append([*torch.autograd.grad(penalty, wanted, allow_unused=True, retain_graph=True)])
        penalty.backward()
        found[-1] += [x.grad, w.grad, results[0].grad if way == "retained" else None]
    for one, two in zip(*found, strict=True):
        assert (one is None) is (two is None)
        if one is not None:
            torch.testing.assert_close(one, two)


def test_parts_of_complex_tensors_have_third_derivatives() -> None:
    def f(x: Any, w: Any) -> Any:
        t = x * 1
        t[0].copy_(w[0])
        return (t,)

    leaves = [torch.randn(2, 2, dtype=torch.complex64, requires_grad=True) for _ in range(2)]
    found = []
    for run in (f, compiled(graph_of(f), leaves)):
        [t] = run(*leaves)
        first = torch.autograd.grad((t * t).abs().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(one.abs().sum() for one in first), leaves))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def filled(x: Any, w: Any) -> Any:
    y = (x * w).sin()
    y.fill_(0.25)
    return (y,)


def filled_in_sorted_order(x: Any, w: Any) -> Any:
    ordered, _ = (x * w).sort(0)
    ordered.fill_(0.25)
    return (ordered,)


def replaced_by_another(x: Any, w: Any) -> Any:
    y = x.sin() * w
    y.copy_(w)
    return (y,)


def filled_behind_autograd(x: Any, w: Any) -> Any:
    y = x * w
    y.data.fill_(0.5)
    return (y,)


def read_and_zeroed(x: Any, w: Any) -> Any:
    y = x.exp() * w
    x.zero_()
    y.data.fill_(0.5)
    return (y,)


OVERWRITTEN = [filled, filled_in_sorted_order, replaced_by_another, filled_behind_autograd]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("program", "leaves"), [*itertools.product(OVERWRITTEN, [False, True]), (read_and_zeroed, False)]
)
def test_gradients_depend_on_values_overwritten_in_the_results(
    program: Callable[..., Any], leaves: bool, autocast: bool
) -> None:
    found = []
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        example = [torch.ones(4, requires_grad=True) * 1 for _ in range(2)]
        run = compiled(graph_of(program), [one.detach().requires_grad_() if leaves else one for one in example])
    for call in (program, run):
        x, w = (torch.linspace(low, 2, 4).requires_grad_() for low in (-1, -0.5))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            [result] = call(x, w) if leaves else call(x * 1, w * 1)
        grads = torch.autograd.grad((result * result).sum(), (x, w), create_graph=True)
        recorded = [grad for grad in grads if grad.requires_grad]
        sum((grad.sin() + grad).sum() for grad in recorded).backward()
        found.append([*grads, *[grad.requires_grad for grad in grads], x.grad, w.grad])
    for one, two in zip(*found, strict=True):
        assert (one is None) == (two is None)
        torch.testing.assert_close(one, two)
