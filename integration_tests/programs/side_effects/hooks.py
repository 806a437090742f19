"""Hooks of tensors, registered and removed in compiled code."""

import functools
import weakref

import torch

from integration_tests.harness.differential import Case


def _leaf(*values):
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


def _calls(*others, n=3):
    return [(_leaf(), *others) for _ in range(n)]


def on_an_input() -> Case:
    log: list = []

    def f(x):
        y = x * 2
        x.register_hook(lambda g: log.append(g.sum().item()))
        return y * 3

    return Case(f, _calls(), watch=[log], backward=True)


def on_an_input_before_all() -> Case:
    def f(x):
        x.register_hook(lambda g: g * 10)
        return x * 2

    return Case(f, _calls(), backward=True)


def on_a_result() -> Case:
    log: list = []

    def f(x):
        y = x * 2
        y.register_hook(lambda g: log.append(("y", g.tolist())))
        z = y.sin()
        z.register_hook(lambda g: g * 5)
        return z + 1

    return Case(f, _calls(), watch=[log], backward=True)


def on_what_is_returned() -> Case:
    log: list = []

    def f(x):
        y = x * 2
        y.register_hook(lambda g: log.append(g.tolist()))
        return y

    return Case(f, _calls(), watch=[log], backward=True)


def removed_at_once() -> Case:
    log: list = []

    def f(x):
        y = x * 2
        handle = y.register_hook(lambda g: log.append("never"))
        handle.remove()
        handle.remove()
        return y + 1

    return Case(f, _calls(), watch=[log], backward=True)


def removed_behind_a_graph() -> Case:
    log: list = []

    def f(x):
        first = x.register_hook(lambda g: log.append("never"))
        second = x.register_hook(lambda g: log.append("second"))
        y = (x * 2).sin()
        first.remove()
        return y, second.id > first.id

    return Case(f, [(x,) for (x,) in _calls()], watch=[log], backward=True)


def handle_in_a_block() -> Case:
    log: list = []

    def f(x):
        y = x * 2
        with y.register_hook(lambda g: log.append("never")):
            z = y * 3
        return z

    return Case(f, _calls(), watch=[log], backward=True)


def handle_returned_and_removed_by_the_next_call() -> Case:
    log: list = []
    handles: list = []
    x = _leaf()

    def f(x):
        if handles:
            handles.pop().remove()
        handles.append(x.register_hook(lambda g, n=len(log): log.append(n)))
        return x * 2

    return Case(f, [(x,)] * 3, watch=[log], backward=True)


def of_a_bound_method_and_a_partial() -> Case:
    class Meter:
        def __init__(self):
            self.seen = []

        def note(self, g):
            self.seen.append(g.shape[0])

    meter = Meter()

    def scale(k, g):
        return g * k

    def f(x):
        y = x + 1
        y.register_hook(meter.note)
        y.register_hook(functools.partial(scale, 3))
        return y * 2

    return Case(f, _calls(), watch=[meter], backward=True)


def with_a_closure_over_a_traced_value() -> Case:
    def f(x):
        y = x * 2
        k = (x.detach() * 3).sum()
        y.register_hook(lambda g: g * k)
        return y.sin()

    return Case(f, _calls(), backward=True)


def that_sees_a_cell_change() -> Case:
    log: list = []

    def f(x):
        n = 1

        def hook(g):
            log.append(n)

        y = x * 2
        y.register_hook(hook)
        n = 2
        z = y * 3
        n = 5
        return z

    return Case(f, _calls(), watch=[log], backward=True)


def in_a_helper() -> Case:
    log: list = []

    def note(t, name):
        t.register_hook(lambda g: log.append((name, g.tolist())))
        return t

    def f(x):
        y = note(x * 2, "y")
        z = note(y + 1, "z")
        return note(z * y, "multiplied")

    return Case(f, _calls(), watch=[log], backward=True)


def behind_a_break() -> Case:
    log: list = []

    def f(x):
        y = x * 2
        print("break")
        y.register_hook(lambda g: log.append(g.tolist()))
        z = y * 3
        print("another")
        y.register_hook(lambda g: log.append("later"))
        return z + y

    return Case(f, _calls(), watch=[log], backward=True)


def before_a_graph_that_fails() -> Case:
    log: list = []

    def f(x, index):
        y = x * 2
        y.register_hook(lambda g: log.append(g.tolist()))
        try:
            z = y[index]
        except IndexError:
            log.append("failed")
            z = y
        return z * 2

    return Case(f, [(_leaf(), torch.tensor([i])) for i in (0, 7, 1)], watch=[log], backward=True)


def refused() -> Case:
    def f(x):
        y = x.detach() * 2
        try:
            y.register_hook(lambda g: g)
        except RuntimeError as error:
            return x * 2, str(error)
        return x

    return Case(f, _calls())


def that_raises() -> Case:
    def f(x, log):
        y = x * 2

        def hook(g):
            log.append("hook")
            raise ValueError("in the hook")

        y.register_hook(hook)
        try:
            y.sum().backward()
        except ValueError as error:
            log.append(str(error))
        return x + 1

    return Case(f, _calls([]))


def with_backward_inside() -> Case:
    log: list = []

    def f(x):
        y = x * 2
        y.register_hook(lambda g: log.append(g.tolist()))
        y.retain_grad()
        (y * y).sum().backward()
        log.append(y.grad.tolist())
        grad = x.grad.clone()
        x.grad = None
        return grad * 2, x * 2

    return Case(f, _calls(), watch=[log])


def retained() -> Case:
    def f(x):
        y = x * 2
        y.retain_grad()
        z = y.sin()
        z.sum().backward()
        return y.grad * 1, z.detach() + 1, y.retains_grad

    return Case(f, _calls())


def after_accumulation() -> Case:
    log: list = []
    x = _leaf()

    def f(x):
        y = x * 2
        handle = x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.tolist()))
        z = y * 3
        z.sum().backward()
        handle.remove()
        return z.detach()

    return Case(f, [(x,)] * 3, watch=[log])


def after_accumulation_left() -> Case:
    log: list = []

    def f(x):
        x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.tolist()))
        return x * 2

    return Case(f, _calls(), watch=[log], backward=True)


def gone_with_the_tensor() -> Case:
    refs: list = []

    class Token:
        pass

    def f(x):
        token = Token()
        y = x * 2
        y.register_hook(lambda g: token and None)
        refs.append(weakref.ref(token))
        return x + 1

    return Case(f, _calls(), backward=True)


# Modules
