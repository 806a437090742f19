"""Attributes of tensors, parameters and objects around what interrupts a trace: breaks, errors, aliases, restarts."""

import contextlib

import torch
from torch import nn

from integration_tests.harness.differential import Case


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


class Holder:
    pass


def tagged_around_a_break() -> Case:
    weight = nn.Parameter(torch.ones(3))

    def f(x):
        weight.step = getattr(weight, "step", 0) + 1
        y = x * weight * weight.step
        y.tag = "before"
        print("break")
        weight.step += 10
        z = y + weight.step
        z.tag = y.tag
        del y.tag
        return z, y, z.tag

    return Case(f, _xs(), watch=[weight], backward=True)


def tagged_by_several_names() -> Case:
    holder = Holder()
    holder.t = torch.ones(3)
    table = {"t": holder.t}

    def f(x, alias):
        holder.t.n = 1
        table["t"].n += 1
        y = x * alias
        alias.n *= 10
        return y, holder.t.n, table["t"] is alias

    return Case(f, _xs(holder.t), watch=[holder, table])


def tagged_before_a_graph_that_fails() -> Case:
    weight = torch.ones(3)

    def f(x, index):
        weight.tries = getattr(weight, "tries", 0) + 1
        y = x * 2
        try:
            z = y[index]
        except IndexError:
            weight.failed = weight.tries
            z = y
        weight.last = z
        return z + 1

    return Case(f, [(torch.arange(3.0), torch.tensor([i])) for i in (1, 7, 2)], watch=[weight])


def tagged_and_then_an_error_leaves() -> Case:
    weight = torch.ones(3)

    def f(x, n):
        weight.before = n
        y = x * weight
        weight.during = y
        if n == 1:
            raise ValueError("out")
        weight.after = n
        return y

    return Case(f, [(torch.arange(3.0), n) for n in (0, 1, 2, 1)], watch=[weight])


def tagged_in_a_branch_on_data() -> Case:
    def f(x, w):
        w.sign = "unknown"
        if x.sum() > 0:
            w.sign = "positive"
        else:
            del w.sign
        return x * w, hasattr(w, "sign")

    w = torch.ones(3)
    return Case(f, [(torch.ones(3) * s, w) for s in (1, -1, 1)], watch=[w])


def read_by_the_next_call() -> Case:
    w = torch.ones(3)

    def f(x):
        before = getattr(w, "memory", None)
        w.memory = x * 2 if before is None else before + x
        return w.memory + 1

    return Case(f, _xs(n=4), watch=[w])


def results_carry_what_they_are() -> Case:
    def mark(t, **marks):
        for name, value in marks.items():
            setattr(t, name, value)
        return t

    def f(x):
        a = mark(x * 2, kind="double", of=x)
        b = mark(a + 1, kind="more", of=a)
        c = mark(b.view(-1), of=b)
        return {"b": b, "c": [c, c.of.of.kind]}

    return Case(f, _xs())


def an_input_given_back_with_a_mark() -> Case:
    def f(x):
        x.add_(1)
        x.mark = "changed"
        return x, x * 2

    return Case(f, _xs())


def marks_in_circles() -> Case:
    def f(x):
        a = x * 2
        b = x * 3
        a.other = b
        b.other = a
        a.list = [a, b]
        return a.other.other is a, a

    return Case(f, _xs())


def a_mark_that_is_an_object_with_marks() -> Case:
    def f(x, w):
        w.meta = Holder()
        w.meta.owner = w
        w.meta.value = x + 1
        y = x * w
        y.meta = w.meta
        return y, w.meta.owner is w

    w = torch.ones(3)
    return Case(f, _xs(w), watch=[w])


def marks_of_a_result_without_a_name() -> Case:
    def f(x, out):
        out.append(x * 2)
        out[-1].n = len(out)
        return x + out[-1].n

    out: list = []
    return Case(f, _xs(out), watch=[out])


def grad_scaled() -> Case:
    net = nn.Linear(3, 2)

    def f(x, net):
        for p in net.parameters():
            p.grad = p.grad * 0.5 if p.grad is not None else torch.ones_like(p)
        return x * 2

    def prepare():
        net(torch.ones(3)).sum().backward()

    return Case(f, _xs(net), before=[prepare] * 3)


def grad_cleared_and_kept() -> Case:
    w = nn.Parameter(torch.ones(3))
    kept: list = []

    def f(x):
        kept.append(w.grad)
        w.grad = None
        y = (x * w).sum()
        y.backward()
        kept.append(w.grad)
        w.grad = w.grad * 2
        return y.detach(), w.grad is kept[-1]

    return Case(f, _xs(), watch=[kept])


def grad_clipped() -> Case:
    net = nn.Linear(3, 2)

    def f(x):
        net(x).sum().backward()
        total = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        grads = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        return total, grads, [p.grad for p in net.parameters()]

    return Case(f, _xs())


def grad_of_an_alias() -> Case:
    holder = Holder()
    holder.w = nn.Parameter(torch.ones(3))

    def f(x, w):
        holder.w.grad = x.clone()
        y = w.grad * 2
        w.grad = None
        z = y + (0 if holder.w.grad is None else 1)
        holder.w.grad = y
        return z, w.grad is y

    return Case(f, _xs(holder.w))


def grad_set_behind_a_break() -> Case:
    w = nn.Parameter(torch.ones(3))

    def f(x):
        w.grad = x * 2
        print("break")
        g = w.grad
        w.grad = g + 1
        print("again")
        return w.grad * 1, g

    return Case(f, _xs())


def grad_before_a_graph_that_fails() -> Case:
    w = nn.Parameter(torch.ones(3))

    def f(x, index):
        w.grad = x * 2
        try:
            y = x[index]
        except IndexError:
            w.grad = None
            y = x
        return y * 2

    return Case(f, [(torch.arange(3.0), torch.tensor([i])) for i in (1, 7, 2)], watch=[w])


def requires_grad_around_a_graph() -> Case:
    def f(x, w):
        before = (x * w).requires_grad
        w.requires_grad_(not w.requires_grad)
        y = x * w
        return before, y.requires_grad, y

    w = torch.ones(3)
    return Case(f, _xs(w), watch=[w])


def requires_grad_of_a_module() -> Case:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))

    def f(x):
        net[0].requires_grad_(False)
        y = net(x)
        net[0].weight.requires_grad = True
        return y, [p.requires_grad for p in net.parameters()], net(x) + y

    return Case(f, _xs(), watch=[net], backward=True)


def data_swapped() -> Case:
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def f(x):
        y = x * a
        a.data, b.data = b.data, a.data
        print("break")
        return y + x * a, b * 1

    return Case(f, _xs(), watch=[a, b])


def data_of_a_result() -> Case:
    def f(x):
        y = x * 2
        y.data = torch.zeros(2)
        return y, y.shape, y + 1

    return Case(f, _xs())


def parameters_replaced() -> Case:
    net = nn.Linear(3, 2)

    def f(x):
        y = net(x)
        net.weight = nn.Parameter(net.weight.detach() * 2)
        net.bias = None
        return y + net(x)

    return Case(f, _xs(n=2), watch=[net], backward=True)


def buffers_replaced_and_deleted() -> Case:
    net = nn.BatchNorm1d(3)
    net.register_buffer("extra", torch.ones(3))

    def f(x):
        y = net(x.reshape(1, 3).expand(2, 3))
        net.extra = net.extra + 1
        net.other = net.extra * 2
        del net.other
        return y * net.extra, hasattr(net, "other")

    return Case(f, _xs(), watch=[net])


def attributes_of_modules() -> Case:
    net = nn.Linear(3, 2)

    def f(x):
        net.seen = getattr(net, "seen", 0) + 1
        net.last = x * net.seen
        y = net(x)
        net.weight.uses = net.seen
        if net.seen > 2:
            del net.seen
        return y

    return Case(f, _xs(n=4), watch=[net])


def a_property_around_breaks() -> Case:
    class Meter:
        def __init__(self):
            self.values = []

        @property
        def value(self):
            return self.values[-1]

        @value.setter
        def value(self, new):
            print("set", len(self.values))
            self.values.append(new)

        @value.deleter
        def value(self):
            self.values.pop()

    meter = Meter()

    def f(x):
        meter.value = x * 2
        y = meter.value + 1
        meter.value = y
        del meter.value
        return meter.value * y

    return Case(f, _xs(), watch=[meter])


def a_setter_that_raises_behind_effects() -> Case:
    class Careful:
        def __init__(self):
            self.level = 0
            self.log = []

        def __setattr__(self, name, value):
            if name == "level" and value == 2:
                self.log.append("refused")
                raise ValueError("not 2")
            object.__setattr__(self, name, value)

    careful = Careful()

    def f(x):
        y = x * 2
        try:
            careful.level += 1
            careful.level += 1
        except ValueError as error:
            careful.log.append(str(error))
            careful.level = -1
        return y * careful.level

    return Case(f, _xs(), watch=[careful])


def slots_in_suppressing_blocks() -> Case:
    class Slots:
        __slots__ = ("a", "b")

    slots = Slots()
    slots.a = 1

    def f(x):
        with contextlib.suppress(AttributeError):
            slots.b = x
            del slots.b
            print("break")
            del slots.b
            slots.a = 100
        y = x * slots.a
        with contextlib.suppress(AttributeError):
            del slots.a
            del slots.a
        slots.a = 3
        return y, hasattr(slots, "b")

    return Case(f, _xs(), watch=[slots])


def deleted_and_set_around_breaks() -> Case:
    holder = Holder()
    holder.a, holder.b = 1, 2

    def f(x):
        del holder.a
        y = x * holder.b
        print("break")
        holder.a = y
        del holder.b
        holder.c = 1
        print("again")
        del holder.c
        holder.b = 2
        return holder.a + 1, list(holder.__dict__)

    return Case(f, _xs(), watch=[holder])


def class_attributes_around_breaks() -> Case:
    class Counter:
        n = 0

    def f(x):
        Counter.n += 1
        y = x * Counter.n
        print("break")
        Counter.n += 1
        Counter.last = y
        own = Counter()
        own.n += 100
        return y * Counter.n, own.n, Counter.n, Counter.last

    return Case(f, _xs())


def a_class_made_inside() -> Case:
    def f(x):
        class Named:
            def __set_name__(self, owner, name):
                self.name = name

            def __get__(self, obj, owner=None):
                return self.name

        class Local:
            first = Named()
            value = x.shape[0]

            def __init_subclass__(cls, **kwargs):
                cls.known = kwargs

        class Sub(Local, tag=1):
            pass

        return x * Sub.value, Sub().first, Sub.known

    return Case(f, _xs())
