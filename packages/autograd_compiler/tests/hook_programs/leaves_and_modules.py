"""Hooks after accumulation, of modules and of saved tensors; retained gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import graph

from hook_programs.registry import leaves, noting, program, seen

# Hooks after accumulation


@program
def a_hook_after_accumulation(log):
    w, v = leaves()
    w.register_post_accumulate_grad_hook(lambda leaf: log.append(("w", seen(leaf.grad))))
    v.register_post_accumulate_grad_hook(lambda leaf: log.append(("v", seen(leaf.grad))))
    (w @ v).tanh().sum().backward()
    return w.grad, v.grad


@program
def a_hook_after_accumulation_and_hooks_on_the_way(log):
    """The hook of a late layer's weight comes before that of an early activation."""
    weights = leaves((4, 4), (4, 4), (4, 4))
    x = torch.randn(3, 4)
    for number, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(lambda leaf, number=number: log.append(("after", number)))
        x = torch.tanh(x @ weight)
        x.register_hook(lambda g, number=number: log.append(("on the way", number)))
    x.sum().backward()
    return [weight.grad for weight in weights]


@program
def an_optimizer_in_the_pass(log):
    weights = leaves((4, 4), (4, 4), (4, 4))
    optimizers = {weight: torch.optim.SGD([weight], 0.1, momentum=0.9) for weight in weights}

    def update(leaf):
        log.append(("update", tuple(leaf.shape)))
        optimizers[leaf].step()
        optimizers[leaf].zero_grad()

    for weight in weights:
        weight.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        x = torch.ones(2, 4)
        for weight in weights:
            x = torch.tanh(x @ weight)
        x.sum().backward()
    return [*weights, *[weight.grad for weight in weights]]


@program
def a_hook_after_accumulation_that_scales(log):
    w, v = leaves()

    def scale(leaf):
        leaf.grad.mul_(0.5)
        log.append(seen(leaf.grad))

    w.register_post_accumulate_grad_hook(scale)
    for _ in range(3):
        (w @ v).tanh().sum().backward()
    return w.grad, v.grad


@program
def a_hook_after_accumulation_that_reads_others(log):
    weights = leaves((4, 4), (4, 4), (4, 4))
    for weight in weights:
        weight.register_post_accumulate_grad_hook(lambda leaf: log.append([other.grad is None for other in weights]))
    x = torch.randn(3, 4)
    for weight in weights:
        x = torch.tanh(x @ weight)
    x.sum().backward()
    return [weight.grad for weight in weights]


@program
def a_hook_after_accumulation_that_raises(log):
    w, v = leaves()
    w.register_post_accumulate_grad_hook(lambda leaf: log.append("w") or {}["missing"])
    (w @ v).sum().backward()


@program
def a_hook_after_accumulation_that_gives_something(log):
    w, v = leaves()
    w.register_post_accumulate_grad_hook(lambda leaf: leaf.grad * 2)
    (w @ v).sum().backward()


@program
def a_tensor_hook_that_reads_accumulated_gradients(log):
    weights = leaves((4, 4), (4, 4))
    x = torch.randn(3, 4)
    for weight in weights:
        x = torch.tanh(x @ weight)
        x.register_hook(lambda g: log.append([other.grad is None for other in weights]))
    for _ in range(2):
        x.sum().backward(retain_graph=True)
    return [weight.grad for weight in weights]


# Hooks of modules


def block():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def results(model, *others):
    return [*(parameter.grad for parameter in model.parameters()), *others]


@program
def a_module_hook_that_watches(log):
    model, x = block(), torch.randn(3, 4, requires_grad=True)
    model[1].register_full_backward_hook(lambda module, ins, outs: log.append((seen(ins), seen(outs))))
    model(x).sum().backward()
    return results(model, x.grad)


@program
def a_module_hook_that_replaces(log):
    model, x = block(), torch.randn(3, 4, requires_grad=True)
    model[0].register_full_backward_hook(lambda module, ins, outs: (ins[0] * 2,))
    model[2].register_full_backward_hook(lambda module, ins, outs: (log.append("2"), (ins[0] + 1,))[1])
    model(x).sum().backward()
    return results(model, x.grad)


@program
def a_module_hook_before(log):
    model, x = block(), torch.randn(3, 4, requires_grad=True)
    model[1].register_full_backward_pre_hook(lambda module, outs: (log.append(seen(outs)), (outs[0] * 3,))[1])
    model(x).sum().backward()
    return results(model, x.grad)


@program
def module_hooks_before_and_after_of_all(log):
    model, x = block(), torch.randn(3, 4, requires_grad=True)
    for name, module in model.named_modules():
        module.register_full_backward_pre_hook(lambda module, outs, name=name: log.append(("pre", name, seen(outs))))
        module.register_full_backward_hook(lambda module, ins, outs, name=name: log.append(("post", name, seen(ins))))
    model(x).sum().backward()
    return results(model, x.grad)


@program
def a_module_hook_of_one_used_twice(log):
    model, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    model.register_full_backward_hook(lambda module, ins, outs: log.append((seen(ins), seen(outs))))
    model(torch.tanh(model(x))).sum().backward()
    return results(model, x.grad)


@program
def a_module_hook_without_an_input_gradient(log):
    model, x = block(), torch.randn(3, 4)
    model.register_full_backward_hook(lambda module, ins, outs: log.append((seen(ins), seen(outs))))
    model(x).sum().backward()
    return results(model)


@program
def a_module_hook_of_several_results(log):
    model, x = nn.GRUCell(4, 4), torch.randn(3, 4, requires_grad=True)

    class Both(nn.Module):
        def forward(self, x):
            return model(x), x.exp()

    both = Both()
    both.register_full_backward_hook(lambda module, ins, outs: log.append((seen(ins), seen(outs))))
    one, two = both(x)
    (one.sum() + two.sum()).backward()
    return results(model, x.grad)


@program
def a_module_hook_that_raises(log):
    model, x = block(), torch.randn(3, 4, requires_grad=True)
    model[1].register_full_backward_hook(lambda module, ins, outs: log.append("raises") or {}["missing"])
    model(x).sum().backward()


@program
def hooks_of_all_modules(log):
    model, x = block(), torch.randn(3, 4, requires_grad=True)
    handle = nn.modules.module.register_module_full_backward_hook(
        lambda module, ins, outs: log.append(type(module).__name__)
    )
    try:
        model(x).sum().backward()
    finally:
        handle.remove()
    return results(model, x.grad)


@program
def a_module_hook_of_the_old_kind(log):
    model, x = block(), torch.randn(3, 4, requires_grad=True)
    model[1].register_backward_hook(lambda module, ins, outs: log.append((len(ins), seen(outs))))
    model(x).sum().backward()
    return results(model, x.grad)


@program
def forward_hooks_that_hook_activations(log):
    model, x = block(), torch.randn(3, 4, requires_grad=True)
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda module, ins, out, name=name: out.register_hook(noting(log, name, lambda g: g.clamp(-1, 1))) and None
        )
    model(x).sum().backward()
    return results(model, x.grad)


# Retained gradients


@program
def a_retained_gradient(log):
    w, v = leaves()
    h = w @ v
    h.retain_grad()
    h.tanh().sum().backward()
    return w.grad, v.grad, h.grad


@program
def a_retained_gradient_among_hooks(log):
    w, v = leaves()
    h = w @ v
    h.register_hook(noting(log, "before", lambda g: g * 2))
    h.retain_grad()
    h.register_hook(noting(log, "after", lambda g: g + 1))
    h.tanh().sum().backward()
    return w.grad, v.grad, h.grad


@program
def several_retained_gradients(log):
    (w,) = leaves((3, 4))
    chain = [w]
    for _ in range(4):
        chain.append(chain[-1].sin())
        chain[-1].retain_grad()
    for _ in range(2):
        chain[-1].sum().backward(retain_graph=True)
    return [one.grad for one in chain]


@program
def a_retained_gradient_of_what_was_changed(log):
    (w,) = leaves((3, 4))
    h = w * 2
    h.retain_grad()
    h.mul_(3)
    h.register_hook(noting(log, "h"))
    h.exp().sum().backward()
    return w.grad, h.grad


# Saved-tensor hooks


@program
def saved_tensors_that_are_packed(log):
    (w,) = leaves((3, 4))

    def pack(tensor):
        log.append(("pack", seen(tensor)))
        return tensor.detach().numpy().copy()

    def unpack(packed):
        log.append(("unpack", packed.shape))
        return torch.from_numpy(packed)

    with graph.saved_tensors_hooks(pack, unpack):
        h = (w.sin() * w).exp()
    h.sum().backward()
    return (w.grad,)


@program
def saved_tensors_among_hooks(log):
    (w,) = leaves((3, 4))
    with graph.saved_tensors_hooks(lambda t: t * 1, lambda t: (log.append("unpack"), t)[1]):
        h = w.exp()
        h.register_hook(noting(log, "h"))
        h.sin().sum().backward()
    return (w.grad,)


@program
def saved_tensors_in_nested_hooks(log):
    (w,) = leaves((3, 4))
    with graph.saved_tensors_hooks(lambda t: t, lambda t: (log.append("outer"), t)[1]):
        h = w.exp()
        with graph.saved_tensors_hooks(lambda t: t, lambda t: (log.append("inner"), t)[1]):
            h = h.sin()
    h.sum().backward()
    return (w.grad,)


@program
def saved_tensors_on_the_cpu(log):
    w, v = leaves()
    with graph.save_on_cpu():
        h = (w @ v).tanh()
    h.sum().backward()
    return w.grad, v.grad


@program
def an_unpack_hook_that_raises(log):
    (w,) = leaves((3, 4))
    with graph.saved_tensors_hooks(lambda t: t, lambda t: log.append("unpack") or {}["missing"]):
        h = w.exp()
    h.sum().backward()


@program
def an_unpack_hook_that_gives_something_else(log):
    (w,) = leaves((3, 4))
    with graph.saved_tensors_hooks(lambda t: t, lambda t: 3):
        h = w.exp()
    h.sum().backward()
