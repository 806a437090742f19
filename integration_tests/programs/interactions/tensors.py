"""Tensors' attributes, gradients, hooks and modes, met with breaks, errors, generators and each other."""

import contextlib

import torch
from torch import nn

from integration_tests.harness.differential import Case


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


def accumulated_by_hand() -> Case:
    weight = nn.Parameter(torch.ones(3))

    def f(x):
        loss = (weight * x).sum()
        loss.backward()
        weight.total = getattr(weight, "total", 0) + weight.grad
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None
        y = weight * x
        weight.n = getattr(weight, "n", 0) + 1
        return y.detach(), weight.total * weight.n

    return Case(f, _xs(), watch=[weight])


def a_hook_that_marks_its_tensor() -> Case:
    weight = nn.Parameter(torch.ones(3))

    def f(x, scale):
        def hook(grad):
            weight.seen = getattr(weight, "seen", 0) + 1
            return grad * scale

        handle = weight.register_hook(hook)
        y = (weight * x).sum()
        print("break")
        z = y * 2
        if scale > 2:
            handle.remove()
        else:
            handles.append(handle)
        return z

    handles = []
    return Case(f, [(torch.ones(3), s) for s in (2, 3, 1)], watch=[weight], backward=True)


def hooks_in_order_around_an_error() -> Case:
    order = []

    def f(x, w, fail):
        h = w * 1
        h.register_hook(lambda grad: order.append("first"))
        try:
            with contextlib.ExitStack() as stack:
                handle = h.register_hook(lambda grad: order.append("second"))
                stack.callback(handle.remove)
                y = h * x
                if fail:
                    raise ValueError
                y = y + 1
        except ValueError:
            y = h - x
        h.register_hook(lambda grad: grad * 3)
        return y.sum()

    w = torch.ones(3, requires_grad=True)
    return Case(f, [(torch.ones(3), w, fail) for fail in (False, True, False)], watch=[order, w], backward=True)


def a_marked_view_written_through() -> Case:
    def f(x):
        view = x[1:]
        view.kind = "view"
        base = view._base
        base.kind = "base" if base is x else "other"
        view.mul_(2)
        again = x[1:]
        print(hasattr(again, "kind"))
        x.add_(again.sum())
        return view, view.kind, getattr(x, "kind", None), view._base is x

    return Case(f, _xs())


def inference_inside_and_out() -> Case:
    kept = []

    def f(x):
        with torch.inference_mode():
            y = x * 2
            print("inside", y.is_inference())
            y.add_(1)
            y.mark = "made inside"
        kept.append(y)
        try:
            z = y * torch.ones(3, requires_grad=True)
        except RuntimeError as error:
            z = str(error)[:20]
        return z, y.mark, y.is_inference(), torch.is_inference_mode_enabled()

    return Case(f, _xs(), watch=[kept])


def modes_left_by_errors() -> Case:
    def risky(x, n):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=n != 2):
            y = x @ x
            if n == 1:
                raise ValueError("inside")
            print(y.dtype)
            return y @ x

    def f(x, n):
        try:
            y = risky(x, n)
        except ValueError:
            y = x * 3
        return y + 1, y.requires_grad, torch.is_grad_enabled()

    return Case(f, [(torch.eye(3).requires_grad_(), n) for n in (0, 1, 2, 1)])


def a_mode_held_by_a_generator() -> Case:
    def source(x):
        with torch.no_grad():
            yield x * 2
            print("never" if x.sum() > 100 else "later")
            yield x * 3

    def f(x, w, n):
        numbers = source(w)
        y = next(numbers)
        flag = torch.is_grad_enabled()
        if n:
            y = y + next(numbers)
        numbers.close()
        return (y + w).sum() + x.sum(), flag, torch.is_grad_enabled()

    w = torch.ones(3, requires_grad=True)
    return Case(f, [(torch.ones(3), w, n) for n in (0, 1, 0)], watch=[w], backward=True)


def a_lock_in_a_generator_behind_a_break() -> Case:
    import threading

    lock = threading.Lock()

    def held(x):
        with lock:
            yield x + 1
            yield x + 2

    def f(x):
        for y in held(x):
            break
        first = lock.locked()
        print(first)
        numbers = held(y)
        z = next(numbers)
        second = lock.locked()
        del numbers
        return z, first, second, lock.locked()

    return Case(f, _xs())


def an_autograd_function_with_marks() -> Case:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n):
            ctx.save_for_backward(x)
            ctx.n = n
            ctx.notes = {"n": n}
            return x * n

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * ctx.n + x * 0 + ctx.notes["n"], None

    def f(x, n):
        y = Scale.apply(x, n)
        y.n = n
        print("break")
        return Scale.apply(y, y.n + 1).sum()

    x = torch.ones(3, requires_grad=True)
    return Case(f, [(x, n) for n in (1, 2, 3)], watch=[x], backward=True)


def parameters_frozen_between_calls() -> Case:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))

    def f(x):
        out = model(x).sum()
        out.trained = sum(p.requires_grad for p in model.parameters())
        return out, out.trained

    def freeze():
        model[0].requires_grad_(False)

    def swap():
        model[2].bias = nn.Parameter(torch.ones(1))

    return Case(f, _xs(), watch=[model], backward=True, before=[lambda: None, freeze, swap])


def forward_hooks_that_come_and_go() -> Case:
    model = nn.Linear(3, 3)
    seen = []

    def f(x, n):
        def note(module, args, out):
            seen.append(n)
            return out * n

        handle = model.register_forward_hook(note)
        y = model(x)
        if n == 2:
            handle.remove()
        print(len(model._forward_hooks))
        z = model(y)
        handle.remove()
        return z

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[seen])


def grad_of_a_grad_behind_a_break() -> Case:
    def f(x, w):
        y = (w * x).pow(3).sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        print("break")
        g.kind = "first"
        penalty = g.pow(2).sum()
        return y + penalty, g.kind

    w = torch.ones(3, requires_grad=True)
    return Case(f, _xs(w), watch=[w], backward=True)


def no_grad_as_a_decorator_of_a_method() -> Case:
    class Meter:
        total = 0.0

        @torch.no_grad()
        def update(self, value, *, n=1):
            self.total = self.total + value * n
            self.last = value
            return self

    meter = Meter()

    def f(x, w):
        y = (x * w).sum()
        meter.update(y, n=2).last.mark = "m"
        print("break")
        meter.update(y.detach())
        return y + meter.total, meter.total.requires_grad, meter.last is y

    w = torch.ones(3, requires_grad=True)
    return Case(f, _xs(w), watch=[meter, w], backward=True)


def numbers_of_a_generator_object() -> Case:
    generator = torch.Generator().manual_seed(3)

    def f(x, n):
        y = x + torch.rand(3, generator=generator)
        state = generator.get_state()
        print("break")
        z = y + torch.rand(3, generator=generator) * n
        if n == 2:
            generator.set_state(state)
        return z + torch.rand(3), torch.rand(2, generator=generator)

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)])


def requires_grad_in_a_loop_with_marks() -> Case:
    def f(x, ws):
        for i, w in enumerate(ws):
            w.requires_grad_(i % 2 == 0)
            w.index = i
        y = sum(w * x * w.index for w in ws)
        for w in ws:
            del w.index
        return y.sum(), [w.requires_grad for w in ws]

    ws = [torch.ones(3, requires_grad=True) for _ in range(3)]
    return Case(f, _xs(ws), watch=[ws], backward=False)


def data_changed_then_marked() -> Case:
    def f(x, w):
        w.data = w.data + 1
        w.version = "new"
        y = (w * x).sum()
        w.data.mul_(2)
        alias = w.data
        alias[0] = 7
        return y, (w * x).sum(), alias.requires_grad, w.version

    w = torch.ones(3, requires_grad=True)
    return Case(f, _xs(w), watch=[w])


def a_subclass_with_state() -> Case:
    class Named(torch.Tensor):
        pass

    def f(x):
        t.name = getattr(t, "name", "") + "n"
        y = t * x
        kind = type(y).__name__
        plain = y.as_subclass(torch.Tensor)
        print(kind)
        return plain + len(t.name), kind

    t = torch.ones(3).as_subclass(Named)
    return Case(f, _xs())


def saved_tensors_packed_with_an_effect() -> Case:
    packed = []

    def pack(t):
        packed.append(tuple(t.shape))
        return t

    def f(x, w):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = (w * x).sin()
        print(len(packed) > 0)
        return y.sum()

    w = torch.ones(3, requires_grad=True)
    return Case(f, _xs(w), watch=[w], backward=True)


def warnings_name_their_line() -> Case:
    import warnings

    reported = []
    expected = (UserWarning, DeprecationWarning)

    @contextlib.contextmanager
    def caught():
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            yield
        reported.extend((str(r.message), r.lineno, r.category.__name__) for r in records if r.category in expected)

    def helper(x, n):
        y = x * 2
        warnings.warn(f"careful {n}", stacklevel=2)
        return y + 1

    def f(x, n):
        y = helper(x, n)
        if n > 1:
            warnings.warn("much", DeprecationWarning, stacklevel=1)
        return y.sum()

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 2)], watch=[reported], around=[caught] * 3)
