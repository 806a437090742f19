"""Modules and optimizers changed, parametrized, hooked and copied in what is compiled, around breaks and errors."""

import collections
import contextlib
import contextvars
import enum
import functools
import sys
import traceback

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from integration_tests.harness.differential import Case


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


def children_come_and_go() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(3))])

        def forward(self, x, n):
            for layer in self.layers:
                x = layer(x)
            print("layers", len(self.layers))
            if n == 1:
                self.layers.append(nn.ReLU())
            elif n == 2:
                last = self.layers.pop(-1)
                self.extra = last
            return x * sum(self.scales), hasattr(self, "extra")

    model = Model()
    return Case(model, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[model])


def a_parametrized_weight() -> Case:
    class Symmetric(nn.Module):
        calls = 0

        def forward(self, w):
            Symmetric.calls += 1
            return w.triu() + w.triu(1).T

    model = nn.Linear(3, 3)
    parametrize.register_parametrization(model, "weight", Symmetric())

    def f(x):
        y = model(x)
        with parametrize.cached():
            z = model(y)
        print(Symmetric.calls > 0)
        return z, model.weight.sum()

    return Case(f, _xs(), watch=[model], backward=True)


def normed_weights() -> Case:
    model = parametrizations.spectral_norm(nn.Linear(3, 3))
    other = parametrizations.weight_norm(nn.Linear(3, 2))

    def f(x):
        y = model(x)
        print("break")
        return other(y), model.weight.norm()

    return Case(f, _xs(), watch=[model, other], backward=True)


def a_training_loop_with_clipping() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    log = []

    def f(x, n):
        for _ in range(n):
            optimizer.zero_grad(set_to_none=n % 2 == 0)
            loss = model(x).pow(2).sum()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            log.append((round(loss.item(), 3), round(float(norm), 3)))
        schedule.step()
        return loss.detach(), optimizer.param_groups[0]["lr"]

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[model, log])


def a_state_dict_goes_round() -> Case:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def f(x):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        y = model(x)
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.mul_(0.5)
        z = model(x)
        print(len(state))
        loaded = model.load_state_dict(state)
        return y + z + model(x), loaded.missing_keys

    return Case(f, [(torch.rand(4, 3),) for _ in range(3)], watch=[model])


def a_forward_replaced_on_the_instance() -> Case:
    model = nn.Linear(3, 3)
    original = model.forward
    calls = []

    def wrapped(x):
        calls.append(len(calls))
        return original(x) * len(calls)

    def f(x, n):
        if n == 1:
            model.forward = wrapped
        elif n == 3:
            del model.forward
        return model(x)

    return Case(f, [(torch.ones(3), n) for n in (0, 1, 2, 3, 4)], watch=[calls])


def a_hook_that_removes_itself() -> Case:
    model = nn.Linear(3, 3)
    seen = []

    def f(x, n):
        handles = []

        def once(module, args):
            seen.append(n)
            handles.pop().remove()
            return (args[0] * 2,)

        handles.append(model.register_forward_pre_hook(once))
        y = model(x)
        z = model(x)
        print("hooks", len(model._forward_pre_hooks))
        return y, z

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[seen])


def post_accumulate_steps() -> Case:
    model = nn.Linear(3, 1)
    steps = []

    def step(p):
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None
        steps.append(tuple(p.shape))

    handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]

    def f(x):
        loss = model(x).sum()
        loss.backward()
        print(len(steps))
        return model(x).detach(), all(p.grad is None for p in model.parameters())

    return Case(f, _xs(), watch=[model, steps], undo=lambda: [handle.remove() for handle in handles])


def a_functional_call() -> Case:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def f(x, n):
        other = {name: p * n for name, p in model.named_parameters()}
        y = torch.func.functional_call(model, other, (x,))
        print("break")
        return y + model(x), model[0].weight is dict(model.named_parameters())["0.weight"]

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[model], backward=True)


def a_buffer_that_is_a_running_state() -> Case:
    class Meter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3), persistent=False)
            self.count = 0
            self.recent = collections.deque(maxlen=2)

        def forward(self, x):
            self.total += x
            self.count += 1
            self.recent.append(x.detach())
            if self.count > 2:
                self.total = self.total / self.count
                print("reset")
            return self.total / self.count + sum(self.recent)

    model = Meter()
    return Case(model, _xs(n=5), watch=[model])


def a_module_with_an_enum_and_a_property() -> Case:
    class Mode(enum.Enum):
        FAST = enum.auto()
        SLOW = enum.auto()

        def scale(self):
            return 1.0 if self is Mode.FAST else 0.5

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self._mode = Mode.FAST
            self.weight = nn.Parameter(torch.ones(3))

        @property
        def mode(self):
            return self._mode

        @mode.setter
        def mode(self, mode):
            print("set", mode.name)
            self._mode = Mode[mode.name]

        def forward(self, x, mode):
            y = x * self.weight * self.mode.scale()
            self.mode = mode
            return y * self.mode.scale(), self.mode

    model = Model()
    return Case(
        model, [(torch.ones(3), m) for m in (Mode.SLOW, Mode.FAST, Mode.SLOW)], watch=[lambda: model._mode.name]
    )


def context_variables() -> Case:
    var = contextvars.ContextVar("var", default=1)

    def f(x, n):
        token = var.set(n)
        try:
            y = x * var.get()
            print(var.get())
            return y + contextvars.copy_context().run(lambda: var.get() + 1)
        finally:
            var.reset(token)

    return Case(f, [(torch.ones(3), n) for n in (2, 3, 4)], watch=[var.get])


def the_exception_that_is_handled() -> Case:
    def f(x, n):
        try:
            try:
                y = x * (1 // n)
            except ZeroDivisionError as first:
                print(sys.exc_info()[0].__name__)
                raise KeyError("second") from first
        except KeyError as error:
            lines = traceback.format_exception_only(error)
            y = x + len(lines) + (error.__cause__ is error.__context__)
        return y, sys.exc_info()

    return Case(f, [(torch.ones(3), n) for n in (1, 0, 2)])


def dispatch_by_type() -> Case:
    @functools.singledispatch
    def scaled(by, x):
        return x * by

    @scaled.register
    def _(by: str, x):
        print(by)
        return x * len(by)

    @scaled.register(list)
    def _(by, x):
        by.append(len(by))
        return sum(scaled(item, x) for item in by)

    items = [1, "two"]

    def f(x, by):
        return scaled(by, x)

    return Case(f, [(torch.ones(3), by) for by in (2, "abc", items, items)], watch=[items])


def attributes_watched_by_the_class() -> Case:
    class Watched:
        log = []

        def __init__(self):
            object.__setattr__(self, "values", {})

        def __setattr__(self, name, value):
            Watched.log.append(f"set {name}")
            self.values[name] = value

        def __getattr__(self, name):
            Watched.log.append(f"get {name}")
            try:
                return self.values[name]
            except KeyError:
                raise AttributeError(name) from None

        def __delattr__(self, name):
            print("delete", name)
            del self.values[name]

    obj = Watched()

    def f(x):
        obj.t = x * 2
        y = obj.t + getattr(obj, "n", 1)
        obj.n = getattr(obj, "n", 1) + 1
        del obj.t
        return y, hasattr(obj, "t"), obj.n

    return Case(f, _xs(), watch=[Watched.log, lambda: obj.values])


def views_read_behind_breaks() -> Case:
    def f(x, buffer):
        view = buffer.view(3, 2)
        view[0] = x[:2]
        flat = buffer[::2]
        print("break")
        flat.add_(1)
        view.T[0, 1] = 9
        first, *rest = view.unbind()
        buffer.resize_(6)
        return view, flat, first + rest[0], view._base is buffer

    buffer = torch.zeros(6)
    return Case(f, _xs(buffer), watch=[buffer])


def a_result_changed_between_calls() -> Case:
    kept = []

    def f(x, n):
        y = x.view(-1)
        z = y * 2
        kept.append((y, z))
        if n:
            kept[0][1].add_(kept[-1][0])
        return y, z

    def change():
        if kept:
            kept[-1][0].mul_(3)
            kept[-1][1].zero_()

    return Case(f, [(torch.ones(3), n) for n in (0, 1, 2)], watch=[kept], before=[change] * 3)


def names_deleted_and_unbound() -> Case:
    def f(x, n):
        y = x + 1
        if n == 1:
            del y
        try:
            print("y" if n else "none")
            z = y * 2
        except UnboundLocalError as error:
            z = x - len(error.name or "y") if hasattr(error, "name") else x
        del x
        return z

    return Case(f, [(torch.ones(3), n) for n in (0, 1, 2)])


def autocast_with_hooks_and_breaks() -> Case:
    model = nn.Linear(3, 3)
    dtypes = []

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
            y.register_hook(lambda grad: dtypes.append(str(grad.dtype)))
            print(y.dtype)
            with torch.autocast("cpu", enabled=False):
                z = model(y.float())
            loss = F.mse_loss(z, y.float().detach())
        return loss

    return Case(f, _xs(), watch=[dtypes, model], backward=True, rtol=2e-2, atol=2e-2)


def stacks_unwound_by_an_error_behind_a_break() -> Case:
    log = []

    @contextlib.contextmanager
    def noted(name):
        log.append(f"in {name}")
        try:
            yield
        except ValueError:
            log.append(f"error in {name}")
            raise
        finally:
            log.append(f"out of {name}")

    def f(x, n):
        with contextlib.ExitStack() as stack:
            for i in range(n):
                stack.enter_context(noted(i))
                x = x * 2
            print("entered", n)
            if n == 2:
                raise ValueError(n)
            kept = stack.pop_all() if n == 3 else None
        if kept is not None:
            log.append("kept")
            kept.close()
        return x

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[log])
