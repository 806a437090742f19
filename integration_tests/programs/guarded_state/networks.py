"""Parameters, buffers and what else holds numbers in a network, changed between calls and inside them."""

import torch
from torch import nn

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, World, deleting, setting

family = Family()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.arange(3.0))
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.table = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
        self.k = 2.0

    def forward(self, x):
        return self.linear(x) * self.weight + self.total


class Doubling(nn.Module):
    def forward(self, x):
        return x * 2


def _rows():
    return (torch.arange(6.0).view(2, 3) / 10,)


def _world(net, states, fn=None, **kwargs):
    return World(fn or net, states, _rows, watch=[net], **kwargs)


def _tensor(value):
    return torch.full((3,), float(value))


@family.holder("made", "replaced", "changed_in_place", "none")
def buffer_replaced() -> World:
    net = Net()

    class Sum(Net):
        def forward(self, x):
            return x if self.total is None else x + self.total

    net.__class__ = Sum

    def in_place():
        net.total = _tensor(1)
        net.total.mul_(3)

    return _world(
        net, [setting(net, total=_tensor(0)), setting(net, total=_tensor(2)), in_place, setting(net, total=None)]
    )


@family.holder("buffer", "deleted", "attribute", "registered_again")
def buffer_deleted_and_set() -> World:
    net = Net()

    def buffer(persistent):
        deleted()
        net.register_buffer("total", _tensor(2), persistent=persistent)

    def deleted():
        if hasattr(net, "total"):
            del net.total

    def attribute():
        deleted()
        net.total = _tensor(3)

    return _world(net, [lambda: buffer(True), deleted, attribute, lambda: buffer(False)])


@family.holder("buffer", "attribute")
def buffer_deleted_and_set_inside() -> World:
    class Moves(Net):
        def forward(self, x):
            del self.total
            missing = hasattr(self, "total")
            self.total = x.sum(0) + 1
            return x * 2, missing, "total" in self._buffers, "total" in self.__dict__

    net = Moves()

    def buffer():
        deleting(net, "total")()
        net.register_buffer("total", _tensor(0))

    def attribute():
        net._buffers.pop("total", None)
        net.total = _tensor(0)

    return _world(net, [buffer, attribute])


@family.holder("made", "once_more")
def buffer_registered_inside() -> World:
    class Registers(Net):
        def forward(self, x):
            self.register_buffer("fresh", x.sum(0))
            y = x + self.fresh
            del self.fresh
            self.fresh = y
            return y, list(self._buffers), "fresh" in vars(self)

    net = Registers()

    def reset():
        net._buffers.pop("fresh", None)
        vars(net).pop("fresh", None)

    return _world(net, [reset, lambda: (reset(), net.register_buffer("more", _tensor(1)))])


@family.holder("separate", "view", "same", "swapped")
def buffers_that_become_views() -> World:
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", torch.zeros(4))
            self.register_buffer("b", torch.zeros(2))

        def forward(self, x):
            self.a.add_(1)
            y = self.b * x
            self.b.mul_(2)
            return y, self.a.sum()

    net = Two()

    def state(make):
        def put():
            net.a, net.b = make()

        return put

    def view():
        a = torch.ones(4)
        return a, a[:2]

    def same():
        a = torch.ones(2)
        return a, a

    def swapped():
        a = torch.ones(4)
        return a[1:3], a[:2]

    states = [state(lambda: (torch.ones(4), torch.ones(2))), state(view), state(same), state(swapped)]
    return World(net, states, lambda: (torch.ones(2),), watch=[net])


@family.holder("separate", "tied", "view")
def parameters_that_become_one() -> World:
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.ones(3))
            self.b = nn.Parameter(torch.ones(3))

        @torch.no_grad()
        def forward(self, x):
            self.a.add_(1)
            y = self.b * x
            self.b.sub_(x[0])
            return y, self.a * 1

    net = Two()

    def state(a, b=None):
        def put():
            net.a = nn.Parameter(a())
            net.b = nn.Parameter(b()) if b else net.a

        return put

    def view():
        both = torch.ones(6)
        net.a, net.b = nn.Parameter(both[:3]), nn.Parameter(both[2:5])

    return _world(net, [state(lambda: torch.ones(3), lambda: torch.ones(3)), state(lambda: torch.ones(3)), view])


@family.holder("made", "replaced", "deleted", "attribute")
def parameter_replaced() -> World:
    net = Net()

    def deleted():
        if hasattr(net, "weight"):
            del net.weight

    def parameter(value):
        deleted()
        net.weight = nn.Parameter(_tensor(value))

    def attribute():
        deleted()
        net.weight = _tensor(4)

    return _world(net, [lambda: parameter(1), lambda: parameter(2), deleted, attribute])


@family.holder("made", "swapped", "in_place", "other_strides")
def data_of_a_parameter() -> World:
    net = Net()
    own = net.linear.weight.data.clone()

    def swapped():
        net.linear.weight.data = own * 2

    def in_place():
        net.linear.weight.data = own.clone()
        net.linear.weight.data.add_(1)

    def transposed():
        net.linear.weight.data = own.t().contiguous().t() * 3

    return _world(net, [lambda: setattr(net.linear.weight, "data", own.clone()), swapped, in_place, transposed])


@family.holder("two", "three")
def data_changed_inside() -> World:
    class Moves(Net):
        def forward(self, x):
            self.weight.data.add_(1)
            y = x * self.weight
            self.weight.data = self.weight.data * 2
            self.total.data.copy_(self.weight)
            return y, self.total * 1

    net = Moves()
    return _world(net, [lambda: net.weight.data.fill_(2), lambda: net.weight.data.fill_(3)])


@family.holder("single", "double", "half")
def dtype_of_a_network() -> World:
    net = Net()

    def f(x):
        return net(x.to(net.weight.dtype))

    return World(f, [net.float, net.double, net.bfloat16], _rows, watch=[net])


@family.holder("all_", "none", "some")
def gradients_required() -> World:
    net = Net()

    def some():
        net.requires_grad_(False)
        net.weight.requires_grad_(True)

    def f(x):
        y = net(x)
        return y, y.requires_grad, [p.requires_grad for p in net.parameters()]

    return World(f, [net.requires_grad_, lambda: net.requires_grad_(False), some], _rows, watch=[net])


@family.holder("first", "second", "zeros")
def state_loaded() -> World:
    net = Net()
    first = {key: value.clone() for key, value in net.state_dict().items()}
    second = {key: value + 1 for key, value in first.items()}
    zeros = {key: value * 0 for key, value in first.items()}
    states = [lambda state=state: net.load_state_dict(state) for state in (first, second)]
    return _world(net, [*states, lambda: net.load_state_dict(zeros, assign=True)])


@family.holder("two", "three", "item_replaced")
def parameter_list() -> World:
    net = Net()
    first, second = nn.Parameter(_tensor(1)), nn.Parameter(_tensor(2))

    def state(*parameters):
        return lambda: setattr(net, "items", nn.ParameterList(parameters))

    def replaced():
        state(first, second)()
        net.items[1] = nn.Parameter(_tensor(5))

    def f(x):
        return [x * p for p in net.items], len(net.items)

    return _world(net, [state(first, second), state(first, second, nn.Parameter(_tensor(3))), replaced], f)


@family.holder("tracking", "other_momentum", "cumulative", "without_statistics")
def batch_norm_settings() -> World:
    norm = nn.BatchNorm1d(3)

    def state(momentum, track=True):
        def put():
            norm.momentum, norm.track_running_stats = momentum, track
            norm.running_mean = torch.zeros(3) if track else None
            norm.running_var = torch.ones(3) if track else None
            norm.num_batches_tracked = torch.tensor(0) if track else None

        return put

    return _world(norm, [state(0.1), state(0.5), state(None), state(0.1, False)])


@family.holder("two", "five")
def counters_in_buffers() -> World:
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("step", torch.tensor(0))
            self.count = 0

        def forward(self, x):
            self.step += 1
            self.count += 1
            y = x * self.step
            self.step = self.step.clone()
            self.step.add_(self.count)
            return y

    net = Steps()
    return _world(net, [lambda: net.step.fill_(2), lambda: (net.step.fill_(5), setattr(net, "count", 3))])


@family.program
def names_of_buffers_and_attributes_that_hide_each_other() -> Case:
    net = Net()

    def f(x):
        return x * net.total, "total" in vars(net), "total" in net._buffers

    def hide():
        vars(net)["total"] = _tensor(7)

    def show():
        del vars(net)["total"]

    steps = [lambda: None, hide, lambda: net.total.add_(1), show, hide]
    return Case(f, [_rows() for _ in steps], before=steps, watch=[net])


@family.program
def gradients_set_between() -> Case:
    weight = nn.Parameter(torch.ones(3))

    def f(x):
        return x if weight.grad is None else x + weight.grad

    def grad(make):
        return lambda: setattr(weight, "grad", make())

    steps = [
        grad(lambda: None),
        grad(lambda: _tensor(2)),
        grad(lambda: _tensor(3)),
        grad(lambda: None),
        grad(lambda: _tensor(1)),
    ]
    return Case(f, [_rows() for _ in steps], before=steps)


@family.program
def functional_state_swapped() -> Case:
    net = Net()
    states = [{name: p.detach() * k for name, p in net.named_parameters()} for k in (1, 2, 3)]

    def f(x, state):
        return torch.func.functional_call(net, state, (x,)), net.weight.sum()

    return Case(f, [(*_rows(), state) for state in (*states, states[0])], watch=[net])
