"""Passes within passes, functions, checkpoints, roots, inputs, and gradients that are there already."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from harness import Doubled, Scaled
from torch.autograd import graph
from torch.autograd.function import once_differentiable
from torch.autograd.variable import Variable
from torch.utils.checkpoint import checkpoint

from hook_programs.registry import leaves, noting, program, seen

# Passes within passes


@program
def a_gradient_asked_for_in_a_hook(log):
    w, v = leaves()

    def hook(grad):
        with torch.enable_grad():
            (inner,) = torch.autograd.grad((v * v).sum(), [v])
        log.append(seen(inner))
        return grad * inner.sum()

    w.register_hook(hook)
    (w * 2).sum().backward()
    return w.grad, v.grad


@program
def a_pass_in_a_hook(log):
    w, v = leaves()

    def hook(grad):
        with torch.enable_grad():
            (v * 2).sum().backward()
        log.append(seen(v.grad))

    w.register_hook(hook)
    (w @ v).sum().backward()
    return w.grad, v.grad


@program
def a_differentiable_pass_in_a_hook(log):
    w, v = leaves()

    def hook(grad):
        with torch.enable_grad():
            (inner,) = torch.autograd.grad((v**3).sum(), [v], create_graph=True)
            inner.sum().backward()

    w.register_hook(hook)
    (w * 2).sum().backward()
    return w.grad, v.grad


@program
def a_callback_at_the_end(log):
    w, v = leaves()

    def hook(grad):
        Variable._execution_engine.queue_callback(lambda: log.append(("end", w.grad is None, v.grad is None)))
        log.append("hook")

    v.register_hook(hook)
    w.register_hook(noting(log, "w"))
    (w @ v).sum().backward()
    return w.grad, v.grad


@program
def hooks_of_several_gradients_at_once(log):
    w, v = leaves()
    graph.register_multi_grad_hook([w, v], lambda grads: log.append(("all", seen(grads))))
    graph.register_multi_grad_hook([w, v], lambda grad: log.append(("any", seen(grad))), mode="any")
    for _ in range(2):
        (w @ v).tanh().sum().backward()
    return w.grad, v.grad


# Functions


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    @once_differentiable
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        return first * y + second, (first * x + second) if ctx.needs_input_grad[1] else None


class Unmaterialized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return (first if second is None else second) * 2


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x, count):
        return x**count

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)
        ctx.count = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return grad * ctx.count * out / x, None


class RunsAutograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (inner,) = torch.autograd.grad(x.sin().sum(), [x])
        return grad * inner


@program
def a_function(log):
    (w,) = leaves((3, 4))
    Scaled.apply(w.sin(), 3.0).exp().sum().backward()
    return (w.grad,)


@program
def a_function_whose_attribute_changes(log):
    (w,) = leaves((4,))
    for factor in (1.0, 2.0, 5.0):
        Scaled.apply(w.sin(), factor).sum().backward()
    return (w.grad,)


@program
def a_function_of_several_results(log):
    w, v = leaves((3, 4), (3, 4))
    one, two = Several.apply(w.sin(), v)
    one.register_hook(noting(log, "one", lambda g: g * 2))
    (one.sum() + (two * two).sum()).backward()
    v.requires_grad_(False)
    one, two = Several.apply(w.sin(), v)
    (one + two).sum().backward()
    return w.grad, v.grad


@program
def a_function_without_materialized_gradients(log):
    (w,) = leaves((3, 4))
    for used in (0, 1):
        Unmaterialized.apply(w.sin())[used].sum().backward()
    return (w.grad,)


@program
def a_function_with_setup_context(log):
    w = (torch.rand(3) + 1).requires_grad_()
    for count in (2, 3):
        WithSetup.apply(w, count).sum().backward()
    return (w.grad,)


@program
def a_function_in_place(log):
    (w,) = leaves((3, 4))
    h = w * 1
    Doubled.apply(h[0])
    Doubled.apply(h)
    h.sin().sum().backward()
    return (w.grad,)


@program
def a_function_that_runs_autograd(log):
    (w,) = leaves((3, 4))
    RunsAutograd.apply(w * 2).sum().backward()
    return (w.grad,)


@program
def a_function_that_notes_and_raises(log):
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            log.append(seen(grad))
            raise KeyError("mine")

    (w,) = leaves((3, 4))
    Raises.apply(w).sum().backward()


# Checkpoints


@program
def a_checkpoint(log):
    w, v = leaves()

    def body(x):
        log.append("body")
        h = x @ v
        h.register_hook(noting(log, "h", lambda g: g * 2))
        return h.tanh()

    checkpoint(body, w, use_reentrant=False).sum().backward()
    return w.grad, v.grad


@program
def a_reentrant_checkpoint(log):
    w, v = leaves()
    v.register_hook(noting(log, "v"))
    checkpoint(lambda x: (log.append("body"), (x @ v).tanh())[1], w, use_reentrant=True).sum().backward()
    return w.grad, v.grad


@program
def checkpoints_with_dropout_within_each_other(log):
    w, v = leaves()

    def inner(x):
        log.append("inner")
        return F.dropout(torch.tanh(x @ v), 0.5)

    def outer(x):
        log.append("outer")
        return checkpoint(inner, x.exp(), use_reentrant=False) * 2

    checkpoint(outer, w, use_reentrant=False).sum().backward()
    return w.grad, v.grad


# Roots, inputs, and gradients that are there already


@program
def several_roots(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h"))
    torch.autograd.backward([h, h.tanh(), w.sum()], [torch.ones(3, 4), torch.full((3, 4), 2.0), None])
    return w.grad, v.grad


@program
def named_inputs(log):
    w, v = leaves()
    h = w @ v
    w.register_hook(noting(log, "w"))
    v.register_hook(noting(log, "v"))
    h.tanh().sum().backward(inputs=[w], retain_graph=True)
    h.tanh().sum().backward(inputs=[v, w])
    return w.grad, v.grad


@program
def gradients_of_intermediates_with_hooks(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: g * 2))
    w.register_post_accumulate_grad_hook(lambda leaf: log.append("never"))
    return torch.autograd.grad(h.tanh().sum(), [h, w, torch.ones(1, requires_grad=True)], allow_unused=True)


@program
def gradients_that_accumulate(log):
    w, v = leaves()
    w.grad = torch.ones(3, 4)
    kept = w.grad
    v.grad = torch.ones(4, 4).t()
    for number in range(3):
        w.register_hook(noting(log, number))
        (w @ v).tanh().sum().backward()
    log.append(kept is w.grad)
    return w.grad, v.grad, kept


@program
def one_gradient_tensor_of_two_leaves(log):
    w, v = leaves((4,), (4,))
    w.grad = v.grad = torch.zeros(4)
    for _ in range(2):
        (w.exp() * v.sin()).sum().backward()
    return w.grad, v.grad


@program
def sparse_gradients(log):
    (table,) = leaves((5, 3))
    table.register_hook(noting(log, "table", lambda g: g * 2))
    for _ in range(2):
        F.embedding(torch.tensor([1, 1, 4]), table, sparse=True).exp().sum().backward()
    return (table.grad.to_dense(),)


@program
def a_differentiable_pass(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: g * 2))
    (first,) = torch.autograd.grad((h**3).sum(), [w], create_graph=True)
    first.pow(2).sum().backward()
    return w.grad, v.grad


@program
def a_second_pass_of_a_freed_graph(log):
    w, v = leaves()
    loss = (w @ v).tanh().sum()
    loss.register_hook(noting(log, "loss"))
    loss.backward()
    loss.backward()


@program
def batched_gradients(log):
    w, v = leaves()
    h = (w @ v).tanh()
    return torch.autograd.grad(h, [w, v], torch.randn(5, 3, 4), is_grads_batched=True)


@program
def a_hook_that_turns_autograd_on(log):
    w, v = leaves()
    h = w @ v

    def hook(grad):
        log.append(torch.is_grad_enabled())
        with torch.enable_grad():
            return (grad * grad).detach()

    h.register_hook(hook)
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def a_view_changed_in_place_among_hooks(log):
    w, v = leaves((3, 4), (4,))
    h = w * 2
    h.register_hook(noting(log, "before"))
    h[0].mul_(v)
    h.register_hook(noting(log, "after"))
    h[:, 1] = v[:3].exp()
    h.sin().sum().backward()
    return w.grad, v.grad
