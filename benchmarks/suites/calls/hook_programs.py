"""Training steps with hooks: of modules, of tensors, of leaves; each program makes its own modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WIDTH = 64

Tensor = torch.Tensor
Step = Callable[[Tensor], Any]
Program = Callable[[], tuple[Step, nn.Module]]

#: The hooks that ran, with what they were asked to note.
RAN: list[Any] = []
PROGRAMS: dict[str, Program] = {}


def program(made: Program) -> Program:
    """Enter a program: a function that returns a step and the module whose parameters it trains."""
    PROGRAMS[made.__name__] = made
    return made


def noting(*name: Any, result: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a hook that notes its name and gives a result of its arguments."""

    def hook(*args: Any) -> Any:
        RAN.append(name)
        return None if result is None else result(*args)

    return hook


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers)


class Pair(nn.Module):
    """Takes two tensors, returns two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(a) * b.tanh(), self.second(b) - a


class OfPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pair = Pair()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.pair(x.sin(), x.cos())
        return (a * b).sum()


class Gathered(nn.Module):
    """Takes a tensor with gradients, one without and a number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, rows: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return self.linear(x)[rows] * scale, rows + 1


def _summed(model: nn.Module) -> tuple[Step, nn.Module]:
    return lambda x: model(x).sum(), model


@program
def forward_pre() -> tuple[Step, nn.Module]:
    model = mlp()
    for at, layer in enumerate(model):
        layer.register_forward_pre_hook(noting("pre", at, result=lambda module, args: (args[0] * 0.5,)))
    return _summed(model)


@program
def forward() -> tuple[Step, nn.Module]:
    model = mlp()
    for at, layer in enumerate(model):
        layer.register_forward_hook(noting("forward", at, result=lambda module, args, out: out + 1))
    return _summed(model)


@program
def forward_with_kwargs() -> tuple[Step, nn.Module]:
    model = mlp()
    change = noting("kwargs", result=lambda module, args, kwargs: ((args[0] + 1,), kwargs))
    model[1].register_forward_pre_hook(change, with_kwargs=True)
    model[2].register_forward_hook(lambda module, args, kwargs, out: out * 2, with_kwargs=True, prepend=True)
    return _summed(model)


@program
def forward_always() -> tuple[Step, nn.Module]:
    model = mlp()
    model[0].register_forward_hook(noting("always", result=lambda module, args, out: out + 1), always_call=True)
    return _summed(model)


@program
def forward_keeps_activations() -> tuple[Step, nn.Module]:
    model, kept = mlp(), {}

    def keep(module: nn.Module, args: Any, out: Tensor) -> None:
        kept[module] = out

    for layer in model:
        layer.register_forward_hook(keep)
    return lambda x: model(x).sum() + sum(one.square().mean() for one in kept.values()), model


@program
def backward() -> tuple[Step, nn.Module]:
    model = mlp()
    for at, layer in enumerate(model):
        layer.register_full_backward_hook(noting("full", at, result=lambda module, grads, outer: (grads[0] * 0.5,)))
    return _summed(model)


@program
def backward_pre() -> tuple[Step, nn.Module]:
    model = mlp()
    for at, layer in enumerate(model):
        layer.register_full_backward_pre_hook(noting("pre", at, result=lambda module, grads: (grads[0] * 3,)))
    return _summed(model)


@program
def backward_both() -> tuple[Step, nn.Module]:
    model = mlp()
    for layer in model:
        layer.register_full_backward_pre_hook(lambda module, gradients: None)
        layer.register_full_backward_hook(lambda module, gradients, outer: (gradients[0] * 0.5,))
    return _summed(model)


@program
def backward_nested() -> tuple[Step, nn.Module]:
    model = mlp()
    for at, module in enumerate([model, *model, model[0][0], model[0][1]]):
        module.register_full_backward_pre_hook(noting("pre", at))
        module.register_full_backward_hook(noting("first", at))
        module.register_full_backward_hook(noting("second", at), prepend=True)
    return _summed(model)


@program
def backward_two_inputs() -> tuple[Step, nn.Module]:
    model = OfPair()
    change = noting("pair", result=lambda module, grads, outer: (grads[0] * 2, grads[1] - 1))
    model.pair.register_full_backward_hook(change)
    return model, model


@program
def backward_tuple_result() -> tuple[Step, nn.Module]:
    model = OfPair()
    model.pair.register_full_backward_pre_hook(noting("pre", result=lambda module, grads: (grads[0] * 2, grads[1])))
    return model, model


@program
def backward_one_result_used() -> tuple[Step, nn.Module]:
    model = OfPair()
    model.pair.register_full_backward_hook(
        noting("pair", result=lambda module, grads, outer: RAN.append([one is None for one in (*grads, *outer)]))
    )
    return lambda x: model.pair(x.sin(), x.cos())[1].sum(), model


@program
def backward_beside_indices() -> tuple[Step, nn.Module]:
    model = Gathered()
    model.register_full_backward_hook(
        noting("gathered", result=lambda module, grads, outer: (grads[0] * 2, *grads[1:]))
    )
    rows = torch.tensor([1, 0, 3, 2])
    return lambda x: model(x, rows, 3.0)[0].sum(), model


@program
def backward_without_input_gradient() -> tuple[Step, nn.Module]:
    model = mlp()
    model[0].register_full_backward_hook(noting("first", result=lambda module, grads, outer: None))
    return lambda x: model(x.detach()).sum() + x.sum(), model


@program
def changed_after_hook() -> tuple[Step, nn.Module]:
    """The output of a hooked module is changed in place, which eager mode refuses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))
    model[0].register_full_backward_hook(noting("linear"))

    def step(x: Tensor) -> Tensor:
        try:
            out: Tensor = model(x).sum()
        except RuntimeError as error:
            RAN.append(str(error)[:40])
            return x.sum()
        return out

    return step, model


@program
def register_in_trace_module() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        handles = [layer.register_forward_hook(lambda module, args, out: out * 0.5) for layer in model]
        out: Tensor = model(x).sum()
        for handle in handles:
            handle.remove()
        return out

    return step, model


@program
def register_backward_in_trace() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        handle = model[1].register_full_backward_hook(noting("inside"))
        out: Tensor = model(x).sum()
        handle.remove()
        return out

    return step, model


@program
def register_and_keep() -> tuple[Step, nn.Module]:
    model, handles = mlp(), []

    def step(x: Tensor) -> Tensor:
        for handle in handles:
            handle.remove()
        handles[:] = [model[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))]
        out: Tensor = model(x).sum()
        return out

    return step, model


@program
def tensor_hooks() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        for layer in model:
            x = layer(x)
            x.register_hook(lambda gradient: gradient.clamp(-1, 1))
        return x.sum()

    return step, model


@program
def tensor_hook_of_input() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(noting("input", result=lambda gradient: gradient * 5))
        out: Tensor = model(y).sum()
        return out

    return step, model


@program
def tensor_hook_removed() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        y = model[0](x)
        handle = y.register_hook(noting("never"))
        z = model[1](y)
        handle.remove()
        return z.sum()

    return step, model


@program
def tensor_hook_kept() -> tuple[Step, nn.Module]:
    model, kept = mlp(), []

    def step(x: Tensor) -> Tensor:
        x = model(x)
        kept[:] = [x.register_hook(noting("kept", result=lambda gradient: gradient * 2))]
        return x.sum()

    return step, model


@program
def tensor_changed_after_hook() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        y = model(x) + 1
        y.register_hook(noting("changed", result=lambda gradient: gradient * 2))
        y.mul_(3)
        return y.sum()

    return step, model


@program
def tensor_hook_of_captured() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        y, scale = model(x), x.detach() * 2
        y.register_hook(lambda gradient: gradient * scale)
        return y.sum()

    return step, model


@program
def retained() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Any:
        y = model[0](x)
        y.retain_grad()
        return model[1](y).sum(), y

    return step, model


@program
def post_accumulate() -> tuple[Step, nn.Module]:
    model = mlp()
    for at, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(noting("accumulated", at))
    return _summed(model)


@program
def parameter_hooks() -> tuple[Step, nn.Module]:
    model = mlp()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return _summed(model)


@program
def leaf_made() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        made = x.detach() * 2
        made.requires_grad_()
        out: Tensor = model(made + x).sum()
        return out

    return step, model


@program
def detached_in_place() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        y = model[0](x)
        y.detach_()
        return (model[1](y) + x).sum()

    return step, model


@program
def parameter_made() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        scale = nn.Parameter(torch.ones(WIDTH))
        return (model(x) * scale).sum()

    return step, model


@program
def data_set_of_made() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        y = x.detach().clone()
        y.data = y.data * 2
        return (model(x) * y).sum()

    return step, model


@program
def data_set_of_parameter() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        weight = model[0][0].bias
        weight.data = weight.data * 0.5
        out: Tensor = model(x).sum()
        return out

    return step, model


@program
def data_set_with_history() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        y = model(x)
        y.data = y.data.clamp(-0.1, 0.1)
        return y.square().sum()

    return step, model


@program
def data_changed() -> tuple[Step, nn.Module]:
    model = mlp()

    def step(x: Tensor) -> Tensor:
        model[0][0].weight.data.mul_(0.99)
        out: Tensor = model(x).sum()
        return out

    return step, model
