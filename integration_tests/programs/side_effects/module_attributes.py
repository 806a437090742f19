"""Attributes of modules and parameters as programs use them."""

import torch
from torch import nn

from integration_tests.harness.differential import Case
from integration_tests.programs.side_effects.attribute_uses import _xs
from integration_tests.programs.side_effects.operations import attempt


class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self._scale = 1.0
        self.changes = []

    @property
    def scale(self):
        return self._scale

    @scale.setter
    def scale(self, value):
        self.changes.append(value)
        self._scale = value

    def __setattr__(self, name, value):
        if name == "locked":
            raise AttributeError("locked for good")
        super().__setattr__(name, value)

    def forward(self, x):
        self.scale = self.scale + 1
        self.last = x
        return self.lin(x) * self.scale


def module_with_a_property() -> Case:
    net = Guarded()

    def f(x):
        y = net(x)
        return y, attempt(setattr, net, "locked", 1), net.last is x

    return Case(f, _xs(), watch=[net], backward=True)


def module_attribute_that_becomes_a_parameter() -> Case:
    net = nn.Linear(3, 3)

    def f(x, t):
        net.last = t
        return net(x)

    given = [torch.ones(1), torch.zeros(1), nn.Parameter(torch.ones(1)), torch.ones(1), None, torch.ones(1)]
    return Case(f, [(torch.arange(3.0), t) for t in given], watch=[net])


def module_refuses() -> Case:
    net = nn.Linear(3, 3)

    def f(x):
        seen = (
            attempt(setattr, net, "weight", torch.ones(3)),
            attempt(delattr, net, "nothing"),
            attempt(getattr, net, "nothing"),
        )
        return net(x), seen

    return Case(f, _xs(), watch=[net], backward=True)


def module_loses_and_gets_children() -> Case:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def f(x):
        y = net(x)
        relu = net[1]
        del net[1]
        z = net(x)
        net.append(relu)
        net.extra = relu
        del net.extra
        return y, z, len(net)

    return Case(f, _xs(), watch=[net], backward=True)


def module_with_a_lasting_cache() -> Case:
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = None
            self.hits = 0

        def forward(self, x):
            if self.cache is None or self.cache.shape != x.shape:
                self.cache = torch.arange(x.shape[0], dtype=x.dtype)
                self.cache.made_for = x.shape[0]
            else:
                self.hits += 1
            return x * self.cache + self.cache.made_for

    net = Cached()
    return Case(lambda x: net(x), [(torch.ones(n),) for n in (3, 3, 4, 4, 3)], watch=[net])


def parameters_marked_by_a_walk() -> Case:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))

    def f(x):
        for n, (name, p) in enumerate(net.named_parameters()):
            p.label = name
            p.order = n
        y = net(x)
        return y, [p.label for p in net.parameters() if p.order % 2]

    return Case(f, _xs(), watch=[net], backward=True)


def running_average_of_gradients() -> Case:
    w = nn.Parameter(torch.ones(3))

    def f(x):
        (x * w).sum().backward()
        with torch.no_grad():
            if not hasattr(w, "average"):
                w.average = torch.zeros_like(w)
            w.average.mul_(0.5).add_(w.grad)
            w.sub_(w.average * 0.1)
        w.grad = None
        return x * 2

    return Case(f, _xs(), watch=[w])


def gradients_swapped_between_parameters() -> Case:
    a, b = (nn.Parameter(torch.full((3,), v)) for v in (1.0, 2.0))

    def prepare():
        a.grad, b.grad = torch.ones(3), torch.full((3,), 2.0)

    def f(x):
        a.grad, b.grad = b.grad, a.grad
        y = x * a.grad
        a.grad.mul_(10)
        return y, b.grad, a.grad + b.grad

    return Case(f, _xs(), before=[prepare] * 3)


def a_result_that_is_kept_on_an_input_of_the_next_call() -> Case:
    state = torch.zeros(3)

    def f(x):
        previous = getattr(state, "previous", state)
        y = x + previous
        y.turn = getattr(previous, "turn", 0) + 1
        state.previous = y
        return y, y.turn

    return Case(f, _xs(n=4), watch=[state])


def tensors_in_objects_marked_in_a_helper_that_breaks() -> Case:
    class Box:
        def __init__(self, t):
            self.t = t

    def mark(box, n):
        box.t.n = n
        print("marked", n)
        box.t.m = n + 1
        return box.t * n

    box = Box(torch.ones(3))

    def f(x):
        y = mark(box, 2)
        z = mark(Box(x + y), 3)
        return y, z, box.t.m

    return Case(f, _xs(), watch=[box])


def a_mark_in_a_finally() -> Case:
    def f(x, w, n):
        try:
            w.state = "busy"
            if n == 1:
                raise KeyError(n)
            y = x * w
        except KeyError:
            y = x
            w.state = "failed"
        finally:
            w.last = w.state
            del w.state
        return y + 1, w.last

    w = torch.ones(3)
    return Case(f, [(torch.arange(3.0), w, n) for n in (0, 1, 2)], watch=[w])
