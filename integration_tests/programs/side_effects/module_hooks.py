"""Hooks of modules, and the tensors that autograd functions save."""

import torch
from torch import nn
from torch.autograd import Function

from integration_tests.harness.differential import Case
from integration_tests.programs.side_effects.hooks import _calls


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x).relu()


def forward_hook_inside() -> Case:
    net, log = Net(), []

    def f(x):
        handle = net.inner.register_forward_hook(lambda m, args, out: log.append(out.shape[0]))
        y = net(x)
        handle.remove()
        return y + net(x), len(net.inner._forward_hooks)

    return Case(f, _calls(), watch=[net, log], backward=True)


def forward_hook_that_changes() -> Case:
    net = Net()

    def f(x):
        handle = net.register_forward_hook(lambda m, args, out: out * 2)
        pre = net.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        y = net(x)
        handle.remove()
        z = net(x)
        pre.remove()
        return y, z, net(x)

    return Case(f, _calls(), watch=[net], backward=True)


def forward_hook_left_behind() -> Case:
    net, log = Net(), []

    def f(x):
        if len(net._forward_hooks) < 2:
            net.register_forward_hook(lambda m, args, out: log.append(len(log)))
        return net(x)

    return Case(f, _calls(), watch=[net, log], backward=True)


def forward_hook_in_a_block() -> Case:
    net, log = Net(), []

    def f(x):
        with net.register_forward_hook(lambda m, args, out: log.append("hook")):
            y = net(x)
        return y * net(x)

    return Case(f, _calls(), watch=[net, log], backward=True)


def forward_hook_removed_by_an_exception() -> Case:
    net, log = Net(), []

    def hook(m, args, out):
        log.append("hook")
        raise KeyError("hook")

    def f(x):
        handle = net.register_forward_hook(hook)
        try:
            y = net(x)
        except KeyError:
            y = x * 2
        finally:
            handle.remove()
        return y + net(x)

    return Case(f, _calls(), watch=[net, log], backward=True)


def forward_hook_around_a_break() -> Case:
    net, log = Net(), []

    def f(x):
        handle = net.register_forward_hook(lambda m, args, out: log.append("hook"), prepend=True)
        print("break")
        y = net(x)
        handle.remove()
        print("another")
        return y + net(x)

    return Case(f, _calls(), watch=[net, log], backward=True)


def backward_hook_inside() -> Case:
    net, log = Net(), []

    def f(x):
        handle = net.inner.register_full_backward_hook(lambda m, gin, gout: log.append(gout[0].shape))
        y = net(x)
        handle.remove()
        return y + net(x)

    return Case(f, _calls(), watch=[log], backward=True)


def backward_pre_hook_inside() -> Case:
    net = Net()

    def f(x):
        with net.register_full_backward_pre_hook(lambda m, gout: (gout[0] * 2,)):
            return net(x) * 2

    return Case(f, _calls(), backward=True)


def hooks_on_parameters() -> Case:
    net, log = Net(), []

    def f(x):
        handles = [p.register_hook(lambda g, n=n: log.append(n)) for n, p in net.named_parameters()]
        y = net(x)
        for handle in handles[1:]:
            handle.remove()
        return y

    return Case(f, _calls(n=2), watch=[log], backward=True)


def state_dict_hooks() -> Case:
    net, log = Net(), []

    def f(x):
        handle = net.register_state_dict_post_hook(lambda m, state, prefix, meta: log.append(sorted(state)))
        y = net(x)
        names = sorted(net.state_dict())
        handle.remove()
        return y, names

    return Case(f, _calls(), watch=[log])


def global_hook_inside() -> Case:
    net, log = Net(), []

    def f(x):
        handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: log.append(type(m).__name__))
        try:
            y = net(x)
        finally:
            handle.remove()
        return y + net(x)

    return Case(f, _calls(), watch=[log], backward=True)


# Autograd functions


class Scale(Function):
    log: list = []

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        ctx.shape = x.shape
        Scale.log.append("forward")
        return x * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        Scale.log.append(("backward", ctx.needs_input_grad, x.shape == ctx.shape))
        return g * ctx.k + x * 0, None


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Pair(Function):
    @staticmethod
    def forward(ctx, x):
        kept = x.exp()
        ctx.save_for_backward(kept)
        index = kept.argmax()
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        return kept, index

    @staticmethod
    def backward(ctx, g, _):
        (kept,) = ctx.saved_tensors
        return None if g is None else g * kept


class SetUp(Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


def saved_for_backward() -> Case:
    def f(x):
        y = Scale.apply(x * 2, 3.0)
        return y + 1, len(Scale.log)

    return Case(f, _calls(), watch=[Scale.log], backward=True)


def saved_without_gradients() -> Case:
    def f(x):
        with torch.no_grad():
            y = Scale.apply(x * 2, 3.0)
        z = Scale.apply(x.detach(), 2.0)
        return y + z, len(Scale.log)

    return Case(f, _calls(), watch=[Scale.log])


def function_in_place() -> Case:
    def f(x):
        y = x * 3
        z = InPlace.apply(y)
        return z is y, z + 1, y * 1

    return Case(f, _calls(), backward=True)


def function_of_several_results() -> Case:
    def f(x):
        y, index = Pair.apply(x)
        return y * 2, index, index.requires_grad

    return Case(f, _calls(), backward=True)


def function_of_several_results_without_gradients() -> Case:
    def f(x):
        y, index = Pair.apply(x.detach())
        return y * 2, index

    return Case(f, _calls())


def function_with_a_context_set_up() -> Case:
    def f(x):
        return SetUp.apply(x, x + 1) * 2

    return Case(f, _calls(), backward=True)


def function_around_a_break() -> Case:
    def f(x):
        y = Scale.apply(x, 2.0)
        print("break")
        return Scale.apply(y, 3.0) * 2

    return Case(f, _calls(), watch=[Scale.log], backward=True)


def saved_tensors_hooks() -> Case:
    log: set = set()  # a graph saves other tensors than the operations would

    def f(x):
        def pack(t):
            log.add("pack")
            return t

        def unpack(t):
            log.add("unpack")
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = x * x
        return y.sin()

    return Case(f, _calls(), watch=[log], backward=True)
