"""Hooks, custom functions and in-place changes inside a captured backward pass."""

from __future__ import annotations

import pytest
import torch
from harness import Doubled, Scaled, identity, same_gradients
from torch.autograd.variable import Variable

from framesmith_autograd_compiler import capture


class Traceable(Scaled):
    @staticmethod
    def evaluate_backward(saved, grads):
        return 2 * saved[0] * grads[0] * 3.0, None


class Choosy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, grad):
        return None, grad.expand(3, 4)


def weights(*sizes):
    return [torch.randn(*size, requires_grad=True) for size in sizes]


def test_tensor_hooks():
    def make():
        w, v = weights((3, 4), (4, 4))
        w.register_hook(lambda g: g * 2)
        v.register_hook(lambda g: None)

        def step():
            h = w @ v
            h.register_hook(lambda g: g + 1)
            h.register_hook(lambda g: g * 3)
            h.tanh().sum().backward()

        return [w, v], step

    same_gradients(make)


def test_order_of_hooks():
    def events(captured):
        w = torch.ones(2, requires_grad=True)
        seen = []
        w.register_hook(lambda g: seen.append(("leaf", g.tolist())))
        w.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.grad.tolist())))
        h = w * 3
        h.register_hook(lambda g: seen.append(("middle", g.tolist())))
        h.grad_fn.register_prehook(lambda gs: seen.append(("pre", [g.tolist() for g in gs])))
        h.grad_fn.register_hook(lambda outs, ins: seen.append(("post", len(outs), len(ins))))
        if captured:
            with capture(identity) as found:
                h.sum().backward()
            assert found.runs == 1 and not found.fallbacks
        else:
            h.sum().backward()
        return seen

    assert events(True) == events(False) and len(events(False)) == 5


def test_node_hooks_change_gradients():
    def make():
        (w,) = weights((3, 4))

        def step():
            h = w.exp()
            h.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
            h.grad_fn.register_hook(lambda outs, ins: (outs[0] + ins[0],))
            h.sum().backward()

        return [w], step

    same_gradients(make)


def test_optimiser_in_the_backward_pass():
    def make():
        w, v = weights((3, 4), (4, 4))

        def update(p):
            with torch.no_grad():
                p.sub_(p.grad, alpha=0.1)
            p.grad = None

        for p in (w, v):
            p.register_post_accumulate_grad_hook(update)
        shadow = [w, v]

        def step():
            (w @ v).tanh().sum().backward()
            for p in shadow:
                p.grad = None

        make.values = shadow
        return shadow, step

    same_gradients(make)
    ours = [p.detach().clone() for p in make.values]
    torch.manual_seed(0)
    _, step = make()
    for number in range(3):
        torch.manual_seed(number)
        step()
    for a, b in zip(ours, make.values):
        torch.testing.assert_close(a, b.detach())


@pytest.mark.parametrize("function", [Scaled, Traceable], ids=["opaque", "traceable"])
def test_custom_function(function):
    def make():
        (w,) = weights((3, 4))

        def step():
            function.apply(w.sin(), 3.0).exp().sum().backward()

        return [w], step

    seen = same_gradients(make)
    modules = len(seen.programs[0].modules)
    assert modules == (1 if function is Traceable else 2)


def test_context_attributes_are_read_each_time():
    def make():
        (w,) = weights((4,))
        factors = iter([1.0, 2.0, 5.0])
        return [w], lambda: Scaled.apply(w, next(factors)).sum().backward()

    same_gradients(make)


def test_custom_function_with_absent_and_broadcast_gradients():
    def make():
        w, v = weights((3, 4), (3, 4))

        def step():
            Choosy.apply(w * 2, v * 3).sum(0, keepdim=True).sum().backward()

        return [w, v], step

    same_gradients(make)


def test_view_changed_in_place():
    def make():
        w, v = weights((3, 4), (4,))

        def step():
            h = w * 2
            h[0].mul_(v)
            h[:, 1] = v[:3].exp()
            h.sin().sum().backward()

        return [w, v], step

    same_gradients(make)


def test_custom_function_changed_in_place_through_a_view():
    def make():
        (w,) = weights((3, 4))

        def step():
            h = w * 1
            Doubled.apply(h[0])
            h.sin().sum().backward()

        return [w], step

    same_gradients(make)


def test_saved_tensor_hooks():
    def make():
        (w,) = weights((3, 4))

        def step():
            with torch.autograd.graph.saved_tensors_hooks(lambda t: (t * 2,), lambda p: p[0] / 2):
                h = (w * w).exp()
            h.sum().backward()

        return [w], step

    same_gradients(make)


def test_gradients_by_name():
    w, v = weights((3, 4), (4, 4))

    def ask():
        h = w @ v
        loss = h.tanh().sum()
        return torch.autograd.grad(loss, [w, h, v])

    expected = ask()
    with capture(identity) as seen:
        found, again = ask(), ask()
    assert seen.runs == 2 and not seen.fallbacks
    for one, two, three in zip(expected, found, again):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, three)
    assert w.grad is None


def test_inputs_argument_and_retained_graph():
    w, v = weights((3, 4), (4, 4))
    loss = (w @ v).tanh().sum()
    with capture(identity) as seen:
        loss.backward(inputs=[w], retain_graph=True)
        loss.backward(inputs=[w])
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert v.grad is None and seen.runs == 2
    torch.testing.assert_close(w.grad, 2 * ((1 - (w @ v).tanh() ** 2) @ v.t()).detach())


def test_retained_gradient():
    def run(captured):
        torch.manual_seed(0)
        (w,) = weights((3,))
        h = w * 2
        h.retain_grad()
        if captured:
            with capture(identity) as seen:
                h.exp().sum().backward()
            assert not seen.fallbacks
        else:
            h.exp().sum().backward()
        return h.grad, w.grad

    for one, two in zip(run(True), run(False)):
        torch.testing.assert_close(one, two)


def test_callbacks_at_the_end():
    (w,) = weights((3,))
    order = []

    def hook(grad):
        Variable._execution_engine.queue_callback(lambda: order.append("callback"))
        order.append("hook")

    w.register_hook(hook)
    w.register_post_accumulate_grad_hook(lambda p: order.append("accumulated"))
    with capture(identity) as seen:
        (w * 2).sum().backward()
    assert not seen.fallbacks and order == ["hook", "accumulated", "callback"]


def test_backward_inside_a_hook():
    v, w = weights((3,), (3,))

    @torch.enable_grad()
    def hook(grad):
        (v * 2).sum().backward()

    w.register_hook(hook)
    with capture(identity):
        (w * 2).sum().backward()
    assert v.grad.tolist() == w.grad.tolist() == [2.0, 2.0, 2.0]


def test_error_in_a_hook_arrives():
    (w,) = weights((3,))

    def hook(grad):
        raise KeyError("mine")

    w.register_hook(hook)
    with capture(identity) as seen, pytest.raises(KeyError, match="mine"):
        (w * 2).sum().backward()
    assert seen.fallbacks == []
    (w.detach().requires_grad_() * 2).sum().backward()
