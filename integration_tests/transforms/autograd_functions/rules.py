"""Autograd Functions with `setup_context`, as torch's function transforms want them: each with its rules."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

Tensor = torch.Tensor


class Scaled(Function):
    """A derived rule for vmap, `jvp`, and a number. Derivatives are no derivatives, so that each shows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, k: float = 2.0) -> Tensor:
        return x.sin() * k

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.k = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos() * ctx.k * 3, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * x.cos() * ctx.k * 5


class Pair(Function):
    """Two results, one of which is saved, and a size as attribute."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output[1])
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        x, y, total = ctx.saved_tensors
        return g * y + h.expand(ctx.shape) * total, g * x


class Matmul(Function):
    """A rule of its own, which asks for dimensions and the size of the batch, and applies the Function."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 2 * g @ y.mT, x.mT @ g

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        a, b = in_dims
        x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if a is None else x.movedim(a, 0)
        y = y.unsqueeze(0) if b is None else y.movedim(b, 0)
        return Matmul.apply(x, y), 0


class Cosine(Function):
    """A rule of its own; its backward applies another Function."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.cos()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -2 * g * Sine.apply(ctx.saved_tensors[0])

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Cosine.apply(x) * 1, in_dims[0]


class Sine(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g * ctx.saved_tensors[0].cos()


class Ruleless(Function):
    """Torch refuses it under vmap."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class BothRules(Cosine):
    """Torch refuses it under vmap, too."""

    generate_vmap_rule = True


class BackwardWithRule(Function):
    """Its backward applies a Function with a rule of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * Cosine.apply(ctx.saved_tensors[0])
