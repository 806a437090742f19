"""Programs in which much runs that is not the user's: torch's compiler beside ours, exporters, tracers, loaders."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.utils.data import DataLoader, TensorDataset

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
X = torch.linspace(-2, 2, 8).reshape(2, 4)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))


def own_helper(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).cos()


def beside(backend: Any, compile: Compile) -> Any:
    """A function compiled by torch, called by one compiled by us, with a break around it; with gradients."""
    inner = torch.compile(lambda x: x.sin() * x.cos() + own_helper(x), backend=backend)

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print(end="")
        z = inner(y)
        print(end="")
        return own_helper(z).sum()

    torch.compiler.reset()
    x = X.clone().requires_grad_()
    found = []
    compiled = compile(run)
    for _ in range(3):
        x.grad = None
        compiled(x).backward()
        found.append(x.grad)
    return found


def broken_beside(compile: Compile) -> Any:
    """A function that torch has compiled: it breaks its graph, and goes on after it."""

    def torn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return own_helper(y) + 1

    inner = torch.compile(torn, backend="eager")
    run = compile(lambda x: inner(x + 1) * 2)
    return [run(X) for _ in range(3)]


def module_beside(compile: Compile) -> Any:
    inner = torch.compile(network(), backend="aot_eager")
    run = compile(lambda x: inner(x).softmax(-1))
    return [run(X), run(X[:1])]


def backend_of_the_users(compile: Compile) -> Any:
    """A backend is the user's: what it returns is called by torch's compiler."""
    seen = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        seen.append(len(gm.graph.nodes))
        return gm.forward

    inner = torch.compile(lambda x: x.sin() + 1, backend=backend)
    return [compile(lambda x: inner(x) * 2)(X) for _ in range(2)], seen


def exported(compile: Compile) -> Any:
    model = network().eval()

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        program = torch.export.export(model, (x,))
        return own_helper(program.module()(y))

    return compile(run)(X)


def traced_by_fx(compile: Compile) -> Any:
    model = network()

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        traced = fx.symbolic_trace(model)
        return own_helper(traced(y))

    return compile(run)(X)


def traced_by_make_fx(compile: Compile) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(x: torch.Tensor) -> torch.Tensor:
        graph = make_fx(lambda a: a.sin() * 2)(x)
        return own_helper(graph(x + 1))

    return compile(run)(X)


def loaded(compile: Compile) -> Any:
    model = network()
    data = TensorDataset(torch.linspace(-1, 1, 32).reshape(8, 4), torch.arange(8) % 2)

    def epoch() -> torch.Tensor:
        total = torch.zeros(())
        for x, y in DataLoader(data, batch_size=3):
            total = total + nn.functional.cross_entropy(model(x), y)
        return total

    return [compile(epoch)() for _ in range(2)]


def trained(name: str, compile: Compile) -> Any:
    model = network()
    kinds: dict[str, Any] = {
        "Adam": functools.partial(torch.optim.Adam, foreach=True),
        "RAdam": torch.optim.RAdam,
        "Adagrad": torch.optim.Adagrad,
        "RMSprop": torch.optim.RMSprop,
        "LBFGS": functools.partial(torch.optim.LBFGS, lr=0.1, max_iter=3),
    }
    optimizer = kinds[name](model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return torch.as_tensor(optimizer.step(closure)).detach()

    compiled = compile(step)
    return [compiled(X) for _ in range(3)]


def compiled_hook(compile: Compile) -> Any:
    """A compiled function is called by the autograd engine."""
    x = X.clone().requires_grad_()
    hook = compile(own_helper)

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(hook)
        loss = y.square().sum()
        loss.backward()
        return loss.detach()

    compiled = compile(run)
    return [compiled(x) for _ in range(2)], x.grad


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return own_helper(grad) + x


def custom_function(compile: Compile) -> Any:
    x = X.clone().requires_grad_()

    def run(x: torch.Tensor) -> torch.Tensor:
        loss = Doubled.apply(x.sin()).sum()
        loss.backward()
        return loss.detach()

    compiled = compile(run)
    return [compiled(x) for _ in range(2)], x.grad


def functional_transforms(compile: Compile) -> Any:
    def run(x: torch.Tensor) -> Any:
        y = x + 1
        print(end="")
        return torch.func.grad(lambda a: own_helper(a).sum())(y), torch.func.vmap(own_helper)(y)

    return compile(run)(X)


def scripted(compile: Compile) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        traced = torch.jit.trace(own_helper, (x,))
        return own_helper(traced(y))

    return compile(run)(X)


PROGRAMS: dict[str, Callable[[Compile], Any]] = {
    "torch.compile, eager": functools.partial(beside, "eager"),
    "torch.compile, aot_eager": functools.partial(beside, "aot_eager"),
    "torch.compile, broken": broken_beside,
    "torch.compile of a module": module_beside,
    "torch.compile, a user's backend": backend_of_the_users,
    "torch.export": exported,
    "fx.symbolic_trace": traced_by_fx,
    "make_fx": traced_by_make_fx,
    "DataLoader": loaded,
    **{
        f"trained by {name}": functools.partial(trained, name)
        for name in ("Adam", "RAdam", "Adagrad", "RMSprop", "LBFGS")
    },
    "compiled hook": compiled_hook,
    "autograd.Function": custom_function,
    "torch.func": functional_transforms,
    "torch.jit.trace": scripted,
}
for _name in ("Adam", "RAdam", "Adagrad", "RMSprop", "LBFGS"):
    PROGRAMS[f"trained by {_name}"] = functools.partial(trained, _name)
if shutil.which("g++") or shutil.which("clang++"):
    PROGRAMS["torch.compile, inductor"] = functools.partial(beside, "inductor")
