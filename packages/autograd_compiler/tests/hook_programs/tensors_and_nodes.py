"""Hooks of tensors and of nodes."""

from __future__ import annotations

import torch

from hook_programs.registry import leaves, noting, program, seen

# Hooks of tensors


@program
def a_hook_that_watches(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h"))
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def a_hook_that_replaces(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: g * 3 + 1))
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def several_hooks_of_a_tensor(log):
    w, v = leaves()
    h = w @ v
    for number in range(3):
        h.register_hook(noting(log, number, lambda g, number=number: g + number if number != 1 else None))
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def hooks_of_leaves(log):
    w, v = leaves()
    w.register_hook(noting(log, "w", lambda g: g * 2))
    v.register_hook(noting(log, "v"))
    (w @ v).tanh().sum().backward()
    return w.grad, v.grad


@program
def a_hook_of_what_is_used_twice(log):
    w, v = leaves()
    h = w.exp()
    h.register_hook(noting(log, "h", lambda g: g / 2))
    ((h @ v).sum() + (h * h).sum()).backward()
    return w.grad, v.grad


@program
def a_hook_of_the_root(log):
    w, v = leaves()
    loss = (w @ v).tanh().sum()
    loss.register_hook(noting(log, "loss", lambda g: g * 5))
    loss.backward()
    return w.grad, v.grad


@program
def hooks_of_a_tensor_and_its_view(log):
    (w,) = leaves((3, 4))
    h = w * 2
    part = h[1:]
    h.register_hook(noting(log, "h", lambda g: g + 1))
    part.register_hook(noting(log, "part", lambda g: g * 3))
    (part.exp().sum() + h.sum()).backward()
    return (w.grad,)


@program
def a_hook_that_was_removed(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "gone")).remove()
    h.register_hook(noting(log, "here", lambda g: g * 2))
    h.sum().backward()
    return w.grad, v.grad


@program
def a_hook_that_removes_itself(log):
    w, v = leaves()

    def once(grad):
        log.append("once")
        handle.remove()
        return grad * 7

    handle = w.register_hook(once)
    for _ in range(3):
        (w @ v).sum().backward()
    return w.grad, v.grad


@program
def a_hook_that_registers_another(log):
    w, v = leaves()

    def first(grad):
        log.append("first")
        w.register_hook(noting(log, "later", lambda g: g + 1))
        return grad * 2

    w.register_hook(first)
    for _ in range(3):
        (w @ v).sum().backward()
    return w.grad, v.grad


@program
def a_hook_that_writes_to_its_gradient(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: g.mul_(2) if g.is_contiguous() else g * 2))
    h.exp().sum().backward()
    return w.grad, v.grad


@program
def hooks_that_change_with_each_pass(log):
    w, v = leaves()
    for number in range(4):
        handle = w.register_hook(noting(log, number, lambda g, number=number: g * number))
        (w @ v).tanh().sum().backward()
        handle.remove()
    return w.grad, v.grad


@program
def a_hook_with_state(log):
    w, v = leaves()
    state = {"calls": 0, "norm": torch.zeros(())}

    def hook(grad):
        state["calls"] += 1
        state["norm"] = state["norm"] + grad.norm()
        return grad / state["calls"]

    w.register_hook(hook)
    for _ in range(3):
        (w @ v).tanh().sum().backward()
    log.append(state["calls"])
    return w.grad, v.grad, state["norm"]


@program
def a_hook_that_reads_a_setting(log):
    w, v = leaves()
    settings = {"scale": 1.0}
    w.register_hook(noting(log, "w", lambda g: g * settings["scale"]))
    for scale in (1.0, 0.5, 4.0):
        settings["scale"] = scale
        (w @ v).tanh().sum().backward()
    return w.grad, v.grad


@program
def a_hook_that_branches_on_data(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: g * 2 if bool(g.sum() > 0) else -g))
    (h.tanh().sum() - 3 * h.sum()).backward()
    return w.grad, v.grad


@program
def a_hook_that_draws_random_numbers(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: g + torch.randn_like(g)))
    w.register_hook(noting(log, "w", lambda g: g * torch.rand(())))
    h.tanh().sum().backward()
    return w.grad, v.grad, torch.rand(2)


@program
def a_hook_that_raises(log):
    w, v = leaves()
    h = w.exp()

    def hook(grad):
        log.append("raises")
        raise KeyError("mine")

    h.register_hook(hook)
    (h @ v).sum().backward()


@program
def a_hook_that_raises_after_gradients(log):
    """Gradients that are accumulated before stay."""
    w, v = leaves()
    v.register_post_accumulate_grad_hook(noting(log, "v"))
    h = w.exp()
    h.register_hook(lambda g: log.append("h") or next(iter(())))
    try:
        (h @ v).sum().backward()
    except StopIteration as error:
        log.append(str(error))
    return w.grad, v.grad


@program
def a_hook_with_a_wrong_shape(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: g[:2]))
    h.sum().backward()


@program
def a_hook_with_another_dtype(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: g.double() * 2))
    h.sum().backward()
    return w.grad, v.grad


@program
def a_hook_that_gives_no_tensor(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "h", lambda g: 3.0))
    h.sum().backward()


# Hooks of nodes, before and after


@program
def a_node_hook_before_that_watches(log):
    w, v = leaves()
    h = w @ v
    h.grad_fn.register_prehook(noting(log, "pre"))
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def a_node_hook_before_that_replaces(log):
    w, v = leaves()
    h = w @ v
    h.grad_fn.register_prehook(noting(log, "pre", lambda grads: (grads[0] * 2,)))
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def tensor_hooks_and_node_hooks_before(log):
    w, v = leaves()
    h = w @ v
    h.grad_fn.register_prehook(noting(log, "node", lambda grads: (grads[0] + 1,)))
    h.register_hook(noting(log, "tensor", lambda g: g * 2))
    h.grad_fn.register_prehook(noting(log, "node again"))
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def a_node_hook_before_of_several_results(log):
    (w,) = leaves((3, 4))
    one, _, three = w.exp().unbind(0)
    one.grad_fn.register_prehook(noting(log, "pre", lambda grads: tuple(None if g is None else g * 2 for g in grads)))
    (one * three).sum().backward()
    return (w.grad,)


@program
def a_node_hook_before_that_raises(log):
    w, v = leaves()
    h = w @ v
    h.grad_fn.register_prehook(lambda grads: log.append("pre") or {}["missing"])
    h.sum().backward()


@program
def a_node_hook_before_that_removes_itself(log):
    w, v = leaves()
    h = w @ v
    handle = h.grad_fn.register_prehook(lambda grads: (log.append("pre"), handle.remove())[1])
    for _ in range(2):
        h.sum().backward(retain_graph=True)
    return w.grad, v.grad


@program
def a_node_hook_after_that_watches(log):
    w, v = leaves()
    h = w @ v
    h.grad_fn.register_hook(noting(log, "post"))
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def a_node_hook_after_that_replaces(log):
    w, v = leaves()
    h = w @ v
    h.grad_fn.register_hook(noting(log, "post", lambda outs, ins: (outs[0] * 2, outs[1] + 1)))
    h.tanh().sum().backward()
    return w.grad, v.grad


@program
def several_node_hooks_after(log):
    (w,) = leaves((3, 4))
    h = w.sin()
    h.grad_fn.register_hook(noting(log, 0, lambda outs, ins: (outs[0] + ins[0],)))
    h.grad_fn.register_hook(noting(log, 1))
    h.grad_fn.register_hook(noting(log, 2, lambda outs, ins: (outs[0] * 2,)))
    h.exp().sum().backward()
    return (w.grad,)


@program
def a_node_hook_after_with_absent_gradients(log):
    (w,) = leaves((3, 4))
    h = w * torch.randn(3, 4)
    h.grad_fn.register_hook(noting(log, "post"))
    h.sum().backward()
    return (w.grad,)


@program
def a_node_hook_after_that_raises(log):
    w, v = leaves()
    h = w @ v
    h.grad_fn.register_hook(lambda outs, ins: log.append("post") or 1 / 0)
    h.sum().backward()


@program
def hooks_of_an_accumulation_node(log):
    w, v = leaves()
    node = w.view_as(w).grad_fn.next_functions[0][0]
    node.register_prehook(noting(log, "pre", lambda grads: (grads[0] * 2,)))
    node.register_hook(lambda outs, ins: log.append(("post", seen(outs), len(ins), w.grad is not None)))
    (w @ v).tanh().sum().backward()
    return w.grad, v.grad


@program
def every_hook_of_one_node(log):
    w, v = leaves()
    h = w @ v
    h.retain_grad()
    h.register_hook(noting(log, "tensor", lambda g: g * 2))
    h.grad_fn.register_prehook(noting(log, "pre"))
    h.grad_fn.register_hook(noting(log, "post"))
    w.register_hook(noting(log, "leaf"))
    w.register_post_accumulate_grad_hook(lambda leaf: log.append(("after", seen(leaf.grad))))
    h.tanh().sum().backward()
    return w.grad, v.grad, h.grad
