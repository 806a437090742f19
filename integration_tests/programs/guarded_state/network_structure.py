"""Networks changed between calls: children, hooks, flags, settings, and the forward pass itself."""

import types

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

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


@family.holder("separate", "shared", "shared_weight")
def children_that_become_one() -> World:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    first, second = net

    def separate():
        net[1] = second
        second.weight = nn.Parameter(torch.eye(3))

    def shared_weight():
        net[1] = second
        second.weight = first.weight

    return _world(net, [separate, lambda: net.__setitem__(1, first), shared_weight])


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
def activation_chosen_by_name() -> Case:
    holder = types.SimpleNamespace(name="relu")

    def f(x):
        return getattr(F, holder.name)(x - 0.2), getattr(torch, holder.name, None) is torch.relu

    steps = [setting(holder, name=name) for name in ("relu", "gelu", "silu", "relu", "softplus")]
    return Case(f, [_rows() for _ in steps], before=steps)
