"""Networks changed between calls: parameters, buffers, children, hooks, flags, and what a forward pass does to them."""

import types

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from integration_tests.differential import Case
from integration_tests.families import Family, World, deleting, setting

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


@family.holder("apart", "view", "same", "swapped")
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


@family.holder("apart", "tied", "view")
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


@family.holder("training", "evaluating", "mixed")
def training_flags() -> World:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.3)))

    def mixed():
        net.train()
        net[1].eval()
        net[3].eval()

    return _world(net, [net.train, net.eval, mixed])


@family.holder("training", "evaluating")
def training_flag_changed_inside() -> World:
    drop = nn.Dropout(0.5)

    def f(x):
        first = drop(x)
        was = drop.training
        drop.eval()
        second = drop(x)
        drop.train(was)
        return first, second, drop.training

    return _world(drop, [drop.train, drop.eval], f)


@family.holder("none", "one", "two", "reordered")
def forward_hooks() -> World:
    net = Net()
    handles: list = []
    log: list = []

    def add(by):
        def hook(module, args, output):
            log.append(by)
            return output * by

        handles.append(net.linear.register_forward_hook(hook))

    def state(*factors):
        def put():
            while handles:
                handles.pop().remove()
            for by in factors:
                add(by)

        return put

    states = state(), state(2.0), state(2.0, 3.0), state(3.0, 2.0)
    return World(net, states, _rows, watch=[log])


@family.holder("none", "changes_input", "with_kwargs", "raises")
def forward_pre_hooks() -> World:
    net = Net()
    handles: list = []

    def state(hook=None, **kwargs):
        def put():
            while handles:
                handles.pop().remove()
            if hook:
                handles.append(net.register_forward_pre_hook(hook, **kwargs))

        return put

    def raises(module, args):
        raise ValueError("refused")

    states = [
        state(),
        state(lambda module, args: (args[0] + 1,)),
        state(lambda module, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True),
        state(raises),
    ]
    return _world(net, states)


@family.holder("none", "doubling", "logging")
def hooks_of_every_module() -> World:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    handles: list = []
    log: list = []

    def state(hook=None):
        def put():
            while handles:
                handles.pop().remove()
            if hook:
                handles.append(nn.modules.module.register_module_forward_hook(hook))

        return put

    states = [
        state(),
        state(lambda module, args, output: output * 2),
        state(lambda module, args, output: log.append(type(module).__name__)),
    ]
    return World(net, states, _rows, watch=[log], undo=states[0])


@family.holder("none", "hooked")
def state_dictionary_hooks() -> World:
    net = Net()
    handles: list = []

    def unhooked():
        while handles:
            handles.pop().remove()

    def drop_weight(module, state, prefix, metadata):
        del state["weight"]

    def hooked():
        unhooked()
        handles.append(net.register_state_dict_post_hook(lambda module, state, prefix, local: state.pop("weight")))

    def f(x):
        return x * len(net.state_dict()), list(net.state_dict())

    return _world(net, [unhooked, hooked], f)


@family.holder("two", "three", "reordered", "none")
def module_list() -> World:
    class Listed(Net):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x * len(self.layers), [type(layer).__name__ for layer in self.layers]

    net = Listed()
    first, second = net.layers

    def state(*layers):
        def put():
            del net.layers[:]
            net.layers.extend(layers)

        return put

    return _world(net, [state(first, second), state(first, second, Doubling()), state(second, first), state()])


@family.holder("made", "replaced", "grown", "key_gone")
def module_dictionary() -> World:
    class Tabled(Net):
        def forward(self, x):
            return self.table["a"](x) * len(self.table), list(self.table.keys()), "b" in self.table

    net = Tabled()
    own = net.table["a"]

    def state(**layers):
        def put():
            net.table.clear()
            net.table.update(layers)

        return put

    relu = net.table["b"]
    return _world(net, [state(a=own, b=relu), state(a=Doubling(), b=relu), state(a=own, b=relu, c=relu), state(b=relu)])


@family.holder("two", "three", "shortened", "item_replaced")
def sequential() -> World:
    first, second = nn.Linear(3, 3), nn.ReLU()
    net = nn.Sequential(first, second)

    def state(*layers):
        def put():
            del net[:]
            net.extend(layers)

        return put

    def replaced():
        state(first, second)()
        net[1] = Doubling()

    return _world(net, [state(first, second), state(first, second, Doubling()), state(first), replaced])


@family.holder("linear", "doubling", "identity", "deleted")
def child_replaced() -> World:
    net = Net()
    own = net.linear

    def deleted():
        if hasattr(net, "linear"):
            del net.linear

    states = [setting(net, linear=own), setting(net, linear=Doubling()), setting(net, linear=nn.Identity()), deleted]
    return _world(net, states)


@family.holder("apart", "shared", "shared_weight")
def children_that_become_one() -> World:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    first, second = net

    def apart():
        net[1] = second
        second.weight = nn.Parameter(torch.eye(3))

    def shared_weight():
        net[1] = second
        second.weight = first.weight

    return _world(net, [apart, lambda: net.__setitem__(1, first), shared_weight])


@family.holder("of_the_class", "on_the_instance", "class_changed")
def forward_replaced() -> World:
    own = Net.forward
    net = Net()

    def state(method, on_instance=None):
        def put():
            Net.forward = method
            deleting(net, "forward")()
            if on_instance:
                net.forward = on_instance

        return put

    states = [state(own), state(own, lambda x: x * 5), state(lambda self, x: x * self.k)]
    return World(net, states, _rows, watch=[net.total])


@family.holder("two", "five", "tensor", "gone")
def plain_attribute() -> World:
    class Scales(Net):
        def forward(self, x):
            return x * self.k

    net = Scales()
    return _world(net, [setting(net, k=2.0), setting(net, k=5.0), setting(net, k=_tensor(2)), deleting(net, "k")])


@family.holder("two", "five", "replaced")
def configuration_held() -> World:
    config = types.SimpleNamespace(k=2.0, sizes=[1, 2])

    class Configured(Net):
        def forward(self, x):
            return x * self.config.k + len(self.config.sizes)

    net = Configured()
    net.config = config

    def own(k):
        net.config = config
        config.k = k

    return World(
        net, [lambda: own(2.0), lambda: own(5.0), setting(net, config=types.SimpleNamespace(k=7.0, sizes=[]))], _rows
    )


@family.holder("plain", "parametrized", "twice")
def parametrization() -> World:
    linear = nn.Linear(3, 3)

    def plain():
        if parametrize.is_parametrized(linear, "weight"):
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)

    def once():
        plain()
        parametrize.register_parametrization(linear, "weight", Doubling())

    def twice():
        once()
        parametrize.register_parametrization(linear, "weight", Doubling())

    return World(linear, [plain, once, twice], _rows)


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


@family.holder("half", "tenth", "none")
def dropout_probability() -> World:
    drop = nn.Dropout(0.5)
    return _world(drop, [setting(drop, p=p) for p in (0.5, 0.1, 0.0)])


@family.holder("absent", "made", "cleared")
def lazily_made_cache() -> World:
    class Caches(Net):
        def forward(self, x):
            if getattr(self, "cache", None) is None:
                self.cache = {}
            key = tuple(x.shape)
            if key not in self.cache:
                self.cache[key] = torch.ones(3) * len(self.cache) + self.k
            return x * self.cache[key]

    net = Caches()

    def made():
        net.cache = {(2, 3): _tensor(9)}

    return _world(net, [deleting(net, "cache"), made, setting(net, cache={})])


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


@family.holder("own", "getattr_", "property_")
def attribute_hooks_of_a_network() -> World:
    class Hooked(Net):
        def forward(self, x):
            return x * self.extra

    net = Hooked()

    def clear():
        for name in ("extra", "__getattr__"):
            if name in vars(Hooked):
                delattr(Hooked, name)
        deleting(net, "extra")()

    def own():
        clear()
        net.extra = 2.0

    def hook():
        clear()

        def __getattr__(self, name):
            return 5.0 if name == "extra" else nn.Module.__getattr__(self, name)

        Hooked.__getattr__ = __getattr__

    def prop():
        clear()
        Hooked.extra = property(lambda self: self.weight.sum())

    return World(net, [own, hook, prop], _rows)


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
def modules_added_while_running() -> Case:
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList()

        def forward(self, x):
            self.layers.append(Doubling())
            self.add_module(f"layer{len(self.layers)}", Doubling())
            for layer in self.layers:
                x = layer(x)
            return x, [name for name, _ in self.named_children()]

    net = Grows()
    return Case(
        net, [_rows() for _ in range(4)], before=[lambda: None, lambda: None, lambda: net.layers.pop(0), lambda: None]
    )


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


@family.program
def activation_chosen_by_name() -> Case:
    holder = types.SimpleNamespace(name="relu")

    def f(x):
        return getattr(F, holder.name)(x - 0.2), getattr(torch, holder.name, None) is torch.relu

    steps = [setting(holder, name=name) for name in ("relu", "gelu", "silu", "relu", "softplus")]
    return Case(f, [_rows() for _ in steps], before=steps)
