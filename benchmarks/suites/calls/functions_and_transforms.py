"""Autograd Functions and torch.func programs: graphs in each use, beside torch.compile's, and the time of a step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.autograd import Function
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_leaves

from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.graph_counts import breaks_of, counted, forget, print_graphs
from benchmarks.harness.measuring import ROUNDS, measure_isolated
from benchmarks.harness.registry import matching
from benchmarks.harness.summary import print_summary
from benchmarks.harness.timing import Row, Step
from benchmarks.models.selection import Selection

Tensor = torch.Tensor
Program = Callable[[Tensor], Any]
#: Whether bodies raise.
FAULT = {"raised": False}


def met(x: Tensor) -> Tensor:
    """Return the tensor, in each body; or raise the error inside of it."""
    if FAULT["raised"]:
        raise ValueError("inside a body")
    return x


class Met(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return met(x)


MLP = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), Met(), nn.Linear(32, 16))
NORM = nn.Sequential(Met(), nn.LayerNorm(16))
FUNCTIONS: dict[str, Program] = {}


def saving(name: str, forward: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]) -> None:
    """Enter a Function of one tensor, which it saves."""

    class Saving(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward(met(x))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * derivative(ctx.saved_tensors[0])

    FUNCTIONS[name] = lambda x: Saving.apply(MLP(x)) * 2


saving("straight through", torch.round, torch.ones_like)
saving("swish", F.silu, lambda x: torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))))
saving("clipped", lambda x: x.clamp(-1, 1), lambda x: (x.abs() <= 1).to(x.dtype))
saving("softsign", F.softsign, lambda x: (1 + x.abs()) ** -2)


class Reversed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return met(x).view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -ctx.by * g, None


class Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return met(x) @ w.t() + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w if ctx.needs_input_grad[0] else None, g.t() @ x, g.sum(0)


class SinCos(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return met(x).sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return a * x.cos() - b * x.sin()


class Unmaterialized(SinCos):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return SinCos.forward(ctx, x)

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        (x,) = ctx.saved_tensors
        parts = [None if a is None else a * x.cos(), None if b is None else -b * x.sin()]
        given = [one for one in parts if one is not None]
        return sum(given) if given else None


class Sorted(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        values, indices = met(x).sort()
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        return torch.zeros_like(g).scatter_(-1, ctx.saved_tensors[0], g)


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return met(x).mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class Scaled(Function):
    """With a derived rule for vmap and `jvp`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, k: float) -> Tensor:
        return met(x).tanh() * k

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.k = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.k * (1 - x.tanh() ** 2), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * ctx.k * (1 - x.tanh() ** 2)


class Ruled(Function):
    """With a rule of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return met(x).exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Ruled.apply(x), in_dims[0]


def _sum_of(apply: Callable[..., Any]) -> Program:
    def function(x: Tensor) -> Tensor:
        first, second = apply(MLP(x))
        return first * 2 + second

    return function


FUNCTIONS |= {
    "reversed": lambda x: Reversed.apply(MLP(x), 0.5) * 2,
    "linear": lambda x: Linear.apply(x, MLP[0].weight, MLP[0].bias).tanh(),
    "two results": _sum_of(SinCos.apply),
    "two results, unmaterialized": _sum_of(Unmaterialized.apply),
    "not differentiable": _sum_of(Sorted.apply),
    "in place": lambda x: InPlace.apply(MLP(x)) + x,
    "setup_context": lambda x: Scaled.apply(MLP(x), 2.0),
    "four of them": lambda x: Scaled.apply(Ruled.apply(Scaled.apply(Ruled.apply(x), 0.5) + 1), 0.5),
}


def loss(x: Tensor) -> Tensor:
    return MLP(x).square().sum()


def with_parameters(x: Tensor) -> Any:
    return grad(lambda parameters: functional_call(MLP, parameters, (x,)).square().sum())(dict(MLP.named_parameters()))


def linearized(x: Tensor) -> Any:
    outputs, push = linearize(lambda y: met(y).sin() * y.sum(), x)
    return outputs, push(x.cos()), push(x)


def dual_numbers(x: Tensor) -> Any:
    with fwd.dual_level():
        return tuple(fwd.unpack_dual(MLP(fwd.make_dual(x, x.cos()))))


def chosen(row: Tensor) -> Any:
    return torch.cond(row.sum() > 0, lambda a: met(a).sin(), lambda a: a.cos(), (row,))


def multiplied(row: Tensor) -> Any:
    return associative_scan(lambda a, b: met(a) * b, row, 0, combine_mode="generic")


TRANSFORMS: dict[str, Program] = {
    "grad": lambda x: grad(loss)(x),
    "grad_and_value": lambda x: grad_and_value(loss)(x),
    "second grad": lambda x: grad(lambda y: grad(lambda z: met(z).sin().pow(3).sum())(y).square().sum())(x),
    "grad of parameters": with_parameters,
    "vjp": lambda x: vjp(MLP, x)[1](x),
    "jvp": lambda x: jvp(MLP, (x,), (x.cos(),)),
    "jvp of a norm": lambda x: jvp(NORM, (x,), (x.cos(),)),
    "jacrev": lambda x: jacrev(lambda y: MLP(y))(x[0]),
    "jacfwd": lambda x: jacfwd(lambda y: MLP(y))(x[0]),
    "hessian": lambda x: hessian(loss)(x[0]),
    "hessian of a norm": lambda x: hessian(lambda y: NORM(y).square().sum())(x[0]),
    "forward twice": lambda x: jacfwd(jacfwd(loss))(x[0]),
    "reverse twice": lambda x: jacrev(jacrev(loss))(x[0]),
    "vmap": lambda x: vmap(lambda row: met(row).softmax(0) * row.sum())(x),
    "vmap twice": lambda x: vmap(vmap(lambda one, all: met(one) * all.sin(), (0, None)))(x, x.sum(1)),
    "vmap in chunks": lambda x: vmap(lambda row: met(row).sin().sum(), chunk_size=16)(x),
    "vmap of grad": lambda x: vmap(grad(loss))(x),
    "vmap of jacrev": lambda x: vmap(jacrev(lambda row: MLP(row)))(x[:8]),
    "vmap of hessian": lambda x: vmap(hessian(loss))(x[:8]),
    "grad of vmap": lambda x: grad(lambda y: vmap(loss)(y).sum())(x),
    "gradient penalty": lambda x: loss(x) + grad(loss)(x).square().sum(),
    "vmap of a Function": lambda x: vmap(lambda row: Scaled.apply(row, 2.0))(x),
    "vmap of a Function with a rule": lambda x: vmap(lambda row: Ruled.apply(row * 0.5))(x),
    "grad of a Function": lambda x: grad(lambda y: Scaled.apply(y, 2.0).square().sum())(x),
    "linearize": linearized,
    "dual numbers": dual_numbers,
    "functionalize": lambda x: functionalize(lambda y: met(y).sin().mul_(2))(x),
    "vmap of cond": lambda x: vmap(chosen)(x),
    "vmap of a scan": lambda x: vmap(multiplied)(x),
    "jvp of a Function": lambda x: jvp(lambda y: Scaled.apply(y, 2.0), (x,), (x.cos(),)),
}


@dataclass(frozen=True)
class Case:
    """A program, by its name."""

    name: str
    kind: str


CASES = [Case(name, "function") for name in FUNCTIONS] + [Case(name, "transform") for name in TRANSFORMS]


@dataclass(frozen=True)
class Use:
    """A use of a program: the sizes of its calls, whether gradients are asked for, whether a body first raises."""

    sizes: tuple[int, ...]
    training: bool
    dynamic: bool = False
    fails: bool = False


USES = {
    "inference": Use((64,), False),
    "training": Use((64,), True),
    "dynamic": Use((64, 48, 40), True, True),
    "second call": Use((64, 64), True),
    "error inside a body": Use((64, 64), True, fails=True),
}


def step(function: Program, x: Tensor) -> list[Tensor]:
    """Return the results of a call, and the gradients of `x` and the parameters where there are some."""
    results = [one for one in tree_leaves(function(x)) if isinstance(one, Tensor)]
    led = [one.double().square().sum() for one in results if one.requires_grad]
    if not led:
        return results
    of = [one for one in (x, *MLP.parameters(), *NORM.parameters()) if one.requires_grad]
    return results + [one for one in torch.autograd.grad(sum(led), of, allow_unused=True) if one is not None]


def check_failure(compiled: Program, function: Program, x: Tensor) -> None:
    """Check that an error inside a body reaches the caller as in eager mode, and that no transform is left on."""
    want, found = (failure(one, x) for one in (function, compiled))
    assert want is found
    assert torch._C._functorch.peek_interpreter_stack() is None and torch.is_grad_enabled()


def failure(function: Program, x: Tensor) -> type[Exception]:
    """Return the type of the error that a call raises when bodies raise."""
    FAULT["raised"] = True
    try:
        function(x)
    except Exception as error:
        return type(error)
    finally:
        FAULT["raised"] = False
    raise AssertionError("no error reached the caller")


def graphs_of(candidate: str, name: str, use: Use) -> str:
    """Return how many graphs a candidate makes; or the error that it raises, or that its results raise here.

    One for all sizes, or for each: more are behind breaks; with none, all runs eagerly.
    """
    forget()
    function = (FUNCTIONS | TRANSFORMS)[name]
    compiled, graphs = counted(candidate, function, dynamic=use.dynamic or None)
    torch.manual_seed(0)
    try:
        if use.fails:
            check_failure(compiled, function, torch.randn(use.sizes[0], 16, requires_grad=True))
        for size in use.sizes:
            x = torch.randn(size, 16, requires_grad=use.training)
            for module in (MLP, NORM):
                module.requires_grad_(use.training)
            torch.testing.assert_close(step(compiled, x), step(function, x), rtol=1e-3, atol=1e-4)
    except Exception as error:
        return f"raises {type(error).__name__}"
    return f"{len(graphs)}, {breaks_of(candidate)}"


def prepare(program: str, training: bool, candidate: str) -> Step:
    """A candidate's step of a program."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    for module in (MLP, NORM):
        module.requires_grad_(training)
    x, function = torch.randn(64, 16, requires_grad=training), (FUNCTIONS | TRANSFORMS)[program]
    made = partial(step, wrap(candidate, function), x)
    torch.testing.assert_close(made(), step(function, x), rtol=1e-3, atol=1e-4)
    return made


def run(selection: Selection | None = None) -> list[Row]:
    """Print the table of graphs; return the time of a step of each program."""
    selection = selection or Selection()
    programs, rows = [one.name for one in matching(CASES, selection.only, "program")], list[Row]()
    print_graphs(__name__, programs, USES)
    names, rounds = selection.among(available()), selection.rounds_or(ROUNDS)
    for program in programs:
        for kind in selection.modes:
            training = kind == "training"
            found = measure_isolated(f"{program}, {kind}", names, prepare, program, training, rounds=rounds)
            selection.keep(found)
            rows += found
    print_summary(rows)
    return rows
