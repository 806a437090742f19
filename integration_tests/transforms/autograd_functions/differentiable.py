"""Twice differentiable functions of float64 tensors, with Functions, checkpoints and transforms in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Tensor = torch.Tensor

torch.manual_seed(11)
MLP = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)).double()
NORM = nn.LayerNorm(4).double()
#: Each of a tensor of 3 by 4 elements.
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {}


def function(made: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    FUNCTIONS[made.__name__] = made
    return made


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Softplus(Function):
    """With a constant, and a derived rule for vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, beta: float = 1.0) -> Tensor:
        return torch.log1p(torch.exp(x * beta)) / beta

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.beta = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * torch.sigmoid(ctx.saved_tensors[0] * ctx.beta), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        return t * torch.sigmoid(ctx.saved_tensors[0] * ctx.beta)


class MatMul(Function):
    """Two operands, and a rule of its own."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return g @ b.mT, a.mT @ g

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor, b: Tensor) -> Any:
        first, second = (
            one.unsqueeze(0).expand(info.batch_size, *one.shape) if dim is None else one.movedim(dim, 0)
            for one, dim in zip((a, b), in_dims, strict=True)
        )
        return MatMul.apply(first, second), 0


class SinCos(Function):
    """Two results, whose gradients are not materialized."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        (x,) = ctx.saved_tensors
        first = None if a is None else a * x.cos()
        if b is None:
            return first
        return -b * x.sin() if first is None else first - b * x.sin()


class Exponential(Function):
    """Saves its result."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]


class Composed(Function):
    """Applies Functions in both methods."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return Cube.apply(x).sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * Cube.apply(x).cos() * 3 * x**2


class Clone(Function):
    """An attribute that holds a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.x, ctx.scale = x, scale
        return x * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.scale, g * ctx.x


class Dirty(Function):
    """Writes to its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 3


def kept(run: Callable[..., Tensor], *args: Any) -> Tensor:
    result: Tensor = checkpoint(run, *args, use_reentrant=False)
    return result


def block(x: Tensor) -> Tensor:
    return (MLP(x) * x.sin()).tanh()


@function
def cube(x: Tensor) -> Any:
    return Cube.apply(x) * 2


@function
def cubes(x: Tensor) -> Any:
    return Cube.apply(Cube.apply(x) * 0.5)


@function
def softplus(x: Tensor) -> Any:
    return Softplus.apply(x, 2.0) * x


@function
def matmul(x: Tensor) -> Any:
    return MatMul.apply(x, x.t()).tanh()


@function
def both_results(x: Tensor) -> Any:
    first, second = SinCos.apply(x)
    return first * second


@function
def one_result(x: Tensor) -> Any:
    return SinCos.apply(x)[0] * x


@function
def separate_results(x: Tensor) -> Any:
    first, second = SinCos.apply(x * 1.5)
    return first * 2, second * 3


@function
def exponential(x: Tensor) -> Any:
    return Exponential.apply(x * 0.5).sum(0)


@function
def composed(x: Tensor) -> Any:
    return Composed.apply(x * 0.7)


@function
def attributes(x: Tensor) -> Any:
    return Clone.apply(x.sin(), x.cos())


@function
def dirty(x: Tensor) -> Any:
    return Dirty.apply(x.sin()) * x


@function
def layers_and_function(x: Tensor) -> Any:
    return MLP(Cube.apply(MLP(x)))


@function
def view_of_result(x: Tensor) -> Any:
    return Cube.apply(x)[1:].reshape(-1) * 2


@function
def checkpointed(x: Tensor) -> Any:
    return kept(block, x)


@function
def checkpointed_twice(x: Tensor) -> Any:
    return kept(block, kept(block, x))


@function
def nested_checkpoints(x: Tensor) -> Any:
    return kept(lambda y: kept(block, y.sin()) * y, x)


@function
def checkpointed_layers(x: Tensor) -> Any:
    return checkpoint_sequential(MLP, 2, x, use_reentrant=False)


@function
def function_in_checkpoint(x: Tensor) -> Any:
    return kept(lambda y: Cube.apply(y.sin()) * y, x)


@function
def checkpoint_of_functions(x: Tensor) -> Any:
    return kept(lambda y: Softplus.apply(MatMul.apply(y, y.t())), x)


@function
def checkpoint_with_mask(x: Tensor) -> Any:
    return kept(lambda y: (y * (y > 0)).square() + NORM(y), x)


@function
def gradient(x: Tensor) -> Any:
    return grad(lambda y: (y.sin() * y).sum())(x)


@function
def gradient_and_value(x: Tensor) -> Any:
    return grad_and_value(lambda y: MLP(y).square().sum())(x)


@function
def second_gradient(x: Tensor) -> Any:
    return grad(lambda y: grad(lambda z: z.sin().pow(3).sum())(y).square().sum())(x)


@function
def gradient_penalty(x: Tensor) -> Any:
    return MLP(x).sum() + grad(lambda y: MLP(y).square().sum())(x).square().sum()


@function
def pulled_back(x: Tensor) -> Any:
    out, pull = vjp(MLP, x)
    return pull(out.cos())[0]


@function
def pushed_forward(x: Tensor) -> Any:
    return jvp(lambda y: y.sin() * y, (x,), (x.cos(),))


@function
def reverse_jacobian(x: Tensor) -> Any:
    return jacrev(lambda y: y.sin() * y.sum())(x[0])


@function
def forward_jacobian(x: Tensor) -> Any:
    return jacfwd(lambda y: y.sin() * y.sum())(x[0])


@function
def hessian_of_layers(x: Tensor) -> Any:
    return hessian(lambda y: MLP(y).square().sum())(x[0])


@function
def mapped(x: Tensor) -> Any:
    return vmap(lambda row: row.softmax(0) * row.sum())(x)


@function
def mapped_twice(x: Tensor) -> Any:
    return vmap(vmap(lambda one, other: one * other.sin(), (0, None)), (0, 0))(x, x.sum(1))


@function
def gradients_of_examples(x: Tensor) -> Any:
    return vmap(grad(lambda row: MLP(row).square().sum()))(x)


@function
def hessians_of_examples(x: Tensor) -> Any:
    return vmap(hessian(lambda row: row.sin().square().sum()))(x)


@function
def called_with_parameters(x: Tensor) -> Any:
    def loss(parameters: dict[str, Tensor]) -> Tensor:
        result: Tensor = functional_call(MLP, parameters, (x,))
        return result.square().sum()

    return grad(loss)(dict(MLP.named_parameters()))["0.weight"]


@function
def mapped_function(x: Tensor) -> Any:
    return vmap(lambda row: Softplus.apply(row, 0.5))(x)


@function
def mapped_function_with_rule(x: Tensor) -> Any:
    return vmap(lambda row: MatMul.apply(row.unsqueeze(1), row.unsqueeze(0)))(x)


@function
def gradient_of_function(x: Tensor) -> Any:
    return grad(lambda y: Softplus.apply(y).square().sum())(x)


@function
def pushed_function(x: Tensor) -> Any:
    return jvp(lambda y: Softplus.apply(y, 2.0), (x,), (x.cos(),))


@function
def jacobian_of_function(x: Tensor) -> Any:
    return jacrev(lambda y: Exponential.apply(y) * y.sum())(x[0])


@function
def gradients_of_examples_of_function(x: Tensor) -> Any:
    return vmap(grad(lambda row: Exponential.apply(row.sin()).sum()))(x)


@function
def cross_entropy_of_function(x: Tensor) -> Any:
    return F.cross_entropy(Softplus.apply(x), torch.tensor([0, 1, 3]))
