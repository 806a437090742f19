"""Hooks, and Functions' backwards, without side effects are parts of a captured pass's graph; others run as they are.

Each kind of hook is run with each body, captured and not: gradients, strides, errors and what bodies see are equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import framesmith
from framesmith_autograd_compiler import Capture, disabled

Body = Callable[[torch.Tensor], Any]
Found = list[Any]

MASK = torch.tensor([1.0, 0.0, 1.0, 1.0])


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


def of_a_result(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    h = w @ v
    h.register_hook(body)
    h.tanh().sum().backward()


def of_leaves(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    w.register_hook(body)
    v.register_hook(body)
    (w @ v).tanh().sum().backward()


def before_a_node(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    h = w @ v
    h.grad_fn.register_prehook(lambda grads: (body(grads[0]),))
    h.tanh().sum().backward()


def behind_a_node(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    h = (w @ v).tanh()
    h.grad_fn.register_hook(lambda outs, ins: (body(outs[0] + ins[0]),))
    h.sum().backward()


def beside_hooks_after_accumulation(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    w.register_post_accumulate_grad_hook(lambda leaf: (leaf.grad.mul_(2), None)[1])
    v.register_post_accumulate_grad_hook(lambda leaf: STATE.update(scale=STATE["scale"] + 1))
    w.register_hook(body)
    h = w @ v
    h.register_hook(body)
    for root in (h.tanh(), w.sin() @ v):
        root.sum().backward(retain_graph=True)


def beside_retained_gradients(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    h = w @ v
    h.retain_grad()
    h.register_hook(body)
    last = h.sin()
    last.register_hook(body)
    last.retain_grad()
    last.sum().backward()
    return h.grad, last.grad


def of_what_is_used_twice(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    h = w.exp()
    h.register_hook(body)
    ((h @ v).sum() + (h * h).sum()).backward(retain_graph=True)
    (h @ v).sum().backward()


def of_a_view_changed_in_place(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    h = (w @ v) * 1
    h.register_hook(body)
    h[1:].mul_(2)
    h.register_hook(body)
    h.tanh().sum().backward()


def beside_unpack_hooks(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        h = (w @ v).tanh()
        h.register_hook(body)
        h = h.exp()
        h.register_hook(body)
    h.sum().backward()


def with_named_inputs(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    h = w @ v
    h.register_hook(body)
    w.register_hook(body)
    return torch.autograd.grad(h.tanh().sum(), [w, v, h])


def of_changing_sizes(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    for rows in (3, 5, 6, 7):
        h = torch.ones(rows, 4) @ v
        h.register_hook(body)
        h.tanh().sum().backward()


class Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, body: Body) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor, ctx.body, ctx.mask = factor, body, MASK
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        result = ctx.body(grad * ctx.factor * ctx.mask + x * 0)
        return grad if result is None else result, None, None


def of_functions(w: torch.Tensor, v: torch.Tensor, body: Body) -> Any:
    h = Applied.apply(w, 3.0, body)
    Applied.apply(h @ v, 2.0, body).tanh().sum().backward()


KINDS = [
    of_a_result,
    of_leaves,
    before_a_node,
    behind_a_node,
    beside_hooks_after_accumulation,
    beside_retained_gradients,
    of_what_is_used_twice,
    of_a_view_changed_in_place,
    beside_unpack_hooks,
    with_named_inputs,
    of_changing_sizes,
    of_functions,
]

#: Read and changed by bodies.
STATE: dict[str, float] = {}
LOG: list[float] = []
ADDED = torch.zeros(4)


def counts(grad: torch.Tensor) -> torch.Tensor:
    STATE["calls"] += 1
    return grad * STATE["calls"]


def adds(grad: torch.Tensor) -> torch.Tensor:
    ADDED.add_(1)
    return grad + ADDED


def raises(grad: torch.Tensor) -> torch.Tensor:
    raise KeyError("mine")


def by(number: float, grad: torch.Tensor) -> torch.Tensor:
    return grad * number


TRACED: dict[str, Body] = {
    "scales": lambda grad: grad * 0.5,
    "clips by norm": lambda grad: grad / (grad.norm() + 1),
    "watches": lambda grad: None,
    "masks": lambda grad: grad * MASK,
    "reads a setting": lambda grad: grad * STATE["scale"],
    "is a partial": functools.partial(by, 3.0),
    "expands": lambda grad: grad.mean().expand_as(grad),
    "divides by its size": lambda grad: grad / grad.shape[0],
}
OPAQUE: dict[str, Body] = {
    "notes": lambda grad: LOG.append(round(float(grad.sum()), 3)),
    "counts": counts,
    "adds to a tensor": adds,
    "writes to its gradient": lambda grad: grad.mul_(2) if grad.is_contiguous() else grad,
    "branches on data": lambda grad: grad * 2 if grad.sum() > 0 else grad * 3,
    "draws": lambda grad: grad + torch.rand_like(grad),
    "raises": raises,
    "gives another size": lambda grad: grad[:1],
}


def run(kind: Callable[..., Any], body: Body) -> tuple[Found, list[float]]:
    """Return what three passes find, between which a setting changes, and what bodies see."""
    torch.manual_seed(0)
    STATE.update(scale=2.0, calls=0)
    LOG.clear()
    ADDED.zero_()
    found: Found = []
    for number in range(3):
        w, v = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        try:
            more = kind(w, v, body) or ()
            found.append([w.grad, v.grad, *more])
        except Exception as error:
            found.append(type(error))
        STATE["scale"] += number
    return [*found, torch.rand(1)], [*LOG]


def assert_equal(kind: Callable[..., Any], body: Body) -> Capture:
    with disabled():
        expected, expected_log = run(kind, body)
    with framesmith.compile_backward(backend="aot_eager", strict=True) as seen:
        found, log = run(kind, body)
    assert log == expected_log
    torch.testing.assert_close(
        [one for one in found if isinstance(one, list)], [one for one in expected if isinstance(one, list)]
    )
    assert [one for one in found if isinstance(one, type)] == [one for one in expected if isinstance(one, type)]
    assert torch.equal(found[-1], expected[-1])
    return seen


def opaque(seen: Capture) -> list[str]:
    """Return the user code that is not traced, but for hooks that never are."""
    steps = [step for program in seen.programs for step in program.explain() if step.kind == "opaque"]
    never = ("hook after accumulation", "hook in C++", "unpack hook", "write to a part")
    return [str(step) for step in steps if not step.calls[0].startswith(never)]


@pytest.mark.parametrize("body", TRACED)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_code_without_side_effects_is_traced(kind: Callable[..., Any], body: str) -> None:
    assert not opaque(assert_equal(kind, TRACED[body]))


@pytest.mark.parametrize("body", OPAQUE)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_code_with_side_effects_runs_as_it_is(kind: Callable[..., Any], body: str) -> None:
    assert_equal(kind, OPAQUE[body])


def test_new_hooks_of_the_same_code_are_one_graph() -> None:
    def step(w: torch.Tensor) -> None:
        w.register_hook(lambda grad: grad * 2).id
        w.sin().sum().backward()

    with framesmith.compile_backward(backend="aot_eager") as seen:
        for _ in range(3):
            step(torch.randn(3, requires_grad=True))
    assert [len(program.modules) for program in seen.programs] == [1]


def test_a_hook_that_is_another_at_each_pass_stays_opaque_in_the_end() -> None:
    w = torch.randn(3, requires_grad=True)
    factor = 0
    w.register_hook(lambda grad: grad * factor)
    with framesmith.compile_backward(backend="aot_eager") as seen:
        for factor in range(10):
            w.grad = None
            w.sin().sum().backward()
            torch.testing.assert_close(w.grad, factor * w.detach().cos())
    [reason] = opaque(seen)
    assert "it differs from pass to pass" in reason
    assert len(seen.programs[0].modules) <= 6


def test_hooks_of_one_model_say_nothing_of_those_of_another() -> None:
    with framesmith.compile_backward(backend="aot_eager") as seen:
        for body in (OPAQUE["counts"], TRACED["scales"]):
            STATE.update(calls=0)
            of_a_result(torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True), body)
    assert len(seen.programs) == 1 and len(opaque(seen)) == 1


def test_a_closure_that_is_changed_by_other_user_code_of_the_pass() -> None:
    w, v = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    factors = {"now": 1.0}

    def step() -> None:
        h = w @ v
        last = h.sin()
        last.register_hook(lambda grad: factors.update(now=factors["now"] * 2))
        h.register_hook(lambda grad: grad * factors["now"])
        last.sum().backward()

    found = []
    for around in (disabled(), framesmith.compile_backward(backend="aot_eager")):
        factors["now"], w.grad, v.grad = 1.0, None, None
        with around:
            for _ in range(3):
                step()
        found.append((w.grad, v.grad))
    torch.testing.assert_close(found[1], found[0])
