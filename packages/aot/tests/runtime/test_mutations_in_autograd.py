"""Mutations of inputs, results, views and `.data`: gradients, version counters and errors as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of

from framesmith_aot import AotUnsupported


def changed_and_used(x):
    x.mul_(2)
    return x * 3, x


def changed_by_a_weight(x, w):
    x.mul_(w)
    return x * 2, x.sin()


def with_respect_to_the_changed(y, x, leaf):
    return torch.autograd.grad(y.sum(), [x, leaf])


def past_a_hook_on_it(y, x, leaf):
    x.register_hook(lambda g: g * 10)
    y.sum().backward()
    return (leaf.grad,)


@pytest.mark.parametrize("act", [with_respect_to_the_changed, past_a_hook_on_it])
@pytest.mark.parametrize("history", [False, True])
def test_readers_of_a_mutated_input_lead_to_it(act, history):
    fn = changed_and_used if history else changed_by_a_weight
    found = []
    for compiles in (False, True):
        leaf = torch.linspace(1, 2, 3, requires_grad=True)
        inputs = [leaf * 1] if history else [torch.ones(3), leaf]
        run = compiled(graph_of(fn), inputs) if compiles else fn
        found.append(act(run(*inputs)[0], inputs[0], leaf))
    torch.testing.assert_close(*found)


def test_a_change_through_a_view_runs_back_once() -> None:
    def f(b: Any, c: Any) -> Any:
        z = c + 1
        z[0].copy_(b[1])
        return (z,)

    b, c = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3)
    for run in (f, compiled(graph_of(f), [b, c])):
        [result] = run(b, c)
        result.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            result.sum().backward()


@pytest.mark.parametrize("call", [lambda x: x.data.view(-1), lambda x: x.t().data, lambda x: (x * 2).data.t()])
def test_views_by_way_of_data_need_no_gradient(call: Callable[[Any], Any]) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    [result] = compiled(graph_of(lambda x: (call(x),)), [x])(x)
    assert not result.requires_grad and not (result * 2).requires_grad
    assert result.shape == call(x).shape


@pytest.mark.parametrize(
    ("way", "counts"),
    [
        (lambda y: y.view(torch.int32), True),
        (lambda y: y[1:].view(torch.int32), True),
        (lambda y: y.detach().view(torch.int32), True),
        (lambda y: y.data.view(torch.int32), False),
        (lambda y: y.data[1:], False),
    ],
)
def test_changes_by_views_in_another_type_count_as_changes_and_those_by_data_do_not(
    way: Callable[[Any], Any], counts: bool
) -> None:
    def of_a_result(x: Any) -> Any:
        y = x.exp()
        return y, way(y)

    def of_an_input(x: Any) -> Any:
        return x.square(), way(x)

    for f in (of_a_result, of_an_input):
        for compiles in (False, True):
            leaf = torch.linspace(-2, 2, 4, requires_grad=True)
            x = leaf * 1
            result, seen = (compiled(graph_of(f), [x]) if compiles else f)(x)
            assert not seen.requires_grad
            seen.zero_()
            if counts:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    result.sum().backward()
            else:
                result.sum().backward()


def test_a_tensor_saved_for_one_result_may_be_mutated_where_another_does_not_need_it() -> None:
    def f(a: Any, b: Any) -> Any:
        return torch.where(a > b, a, b), b.exp() * b.max()

    found = []
    for compiles in (False, True):
        a, b = torch.linspace(0, 1, 3, requires_grad=True), torch.ones(3, requires_grad=True)
        chosen, _ = (compiled(graph_of(f), [a, b]) if compiles else f)(a, b)
        with torch.no_grad():
            b.sub_(2)
        found.append(torch.autograd.grad(chosen.sum(), [a, b]))
    torch.testing.assert_close(*found)


def test_mutations_through_data_do_not_reach_gradients_of_other_memory() -> None:
    """The user holds the trunk; it is saved for one result's gradient, and not for the other's."""

    def f(x: Any) -> Any:
        grown = (x * 1).view(-1, 1).expand(4, 4)
        return grown, (grown.reshape(1, 16) @ grown.reshape(16, 1)).sum(), F.hardswish(grown)

    found = []
    for compiles in (False, True):
        x = torch.linspace(-2, 2, 4, requires_grad=True)
        *_, result = (compiled(graph_of(f), [x]) if compiles else f)(x)
        x.data.mul_(2)
        found.append(torch.autograd.grad(result.square().sum(), x))
    torch.testing.assert_close(*found)


def test_a_recorded_mutation_of_a_data_alias_is_refused() -> None:
    def f(x: Any) -> Any:
        alias = x.data
        alias.lerp_(x, 0.5)
        return (alias,)

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(AotUnsupported, match=r"made by `\.data`"):
        compiled(graph_of(f), [x])


def a_part_of_split(x: Any, w: Any, b: Any) -> Any:
    return ((x * w).relu().split(1)[0],)


def a_row_unbound(x: Any, w: Any, b: Any) -> Any:
    return ((x * w).exp().unbind()[1],)


def a_part_of_a_part(x: Any, w: Any, b: Any) -> Any:
    return ((x + w).chunk(2)[1][0],)


def a_slice(x: Any, w: Any, b: Any) -> Any:
    return ((x * w).exp()[1:],)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("program", [a_part_of_split, a_row_unbound, a_part_of_a_part, a_slice])
def test_parts_are_changed_where_eager_lets_them(program: Callable[..., Any], needs_grad: bool) -> None:
    seen_by = []
    for run in (
        program,
        compiled(graph_of(program), [torch.ones(2, 3, requires_grad=needs_grad)] * 2 + [torch.ones(3)]),
    ):
        x = torch.ones(2, 3, requires_grad=needs_grad)
        [part] = run(x, x, torch.ones(3))
        try:
            part.mul_(2)
            seen_by.append((part.detach().tolist(), part.requires_grad))
        except RuntimeError as error:
            seen_by.append(("refused", str(error)))
    assert seen_by[0] == seen_by[1]


ALIASES: dict[str, Callable[..., Any]] = {
    "data": lambda t: t.data, "detached": lambda t: t.detach(), "viewed": lambda t: t.view_as(t),
}  # fmt: skip


@pytest.mark.parametrize(
    ("alias", "needs_grad"),
    [("data", False), *((name, grad) for name in ("detached", "viewed") for grad in (False, True))],
)
def test_another_result_of_the_same_part_is_another_object(alias: str, needs_grad: bool) -> None:
    def fn(x: Any) -> Any:
        first, second = x.chunk(2)
        return ALIASES[alias](second), second, first, second

    x = torch.ones(4, requires_grad=needs_grad)
    seen_by = []
    for run in (fn, compiled(graph_of(fn), [x])):
        found = run(x)
        seen_by.append([[one is other for one in found] for other in found])
        assert [one.data_ptr() - x.data_ptr() for one in found] == [8, 8, 0, 8]
    assert seen_by[0] == seen_by[1]
