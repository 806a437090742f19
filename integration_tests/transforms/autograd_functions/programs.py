"""Autograd Functions as programs write them: what each does that others do not."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Tensor = torch.Tensor
#: The notes of methods with side effects.
NOTED: list[str] = []
#: Settings that a backward reads beside its context.
SETTINGS = {"scale": 2.0}
WEIGHT = torch.linspace(0, 1, 8)


class Rounded(Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class Reversed(Function):
    """Gradient reversal: a view of the argument, and a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -ctx.by * g, None


class Doubling(Function):
    """Returns the argument itself; twice the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class Swish(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, s = ctx.saved_tensors
        return g * (s + x * s * (1 - s))


class SwishTwice(Swish):
    """Calls the methods of another Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Swish.forward(ctx, x) * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Swish.backward(ctx, g) * 2


class Around(Function):
    """Applies Functions in both methods."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return Swish.apply(x) * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Swish.apply(g) * ctx.saved_tensors[0].cos()


class Multiply(Function):
    """A matmul that asks which gradients are needed."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        first = g @ b.t() if ctx.needs_input_grad[0] else None
        return first, a.t() @ g if ctx.needs_input_grad[1] else None


class Affine(Function):
    """An optional tensor, saved as None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, w, b)
        return x * w if b is None else x * w + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w, b = ctx.saved_tensors
        return g * w, g * x, None if b is None else g


class SinCos(Function):
    """Two results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return a * x.cos() - b * x.sin()


class Sorted(Function):
    """A result without gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        values, order = x.sort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return values, order

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        return torch.zeros_like(g).scatter_(0, ctx.saved_tensors[0], g)


class Power(Function):
    """The methods of newer Functions, with a default."""

    @staticmethod
    def forward(x: Tensor, k: int = 2) -> Tensor:
        return x**k

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.k = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * ctx.k * y / x, None


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]


class Unmaterialized(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        order = x.argsort()
        ctx.mark_non_differentiable(order)
        return x * 2, order

    @staticmethod
    def backward(ctx: Any, g: Tensor, other: None) -> Any:
        assert other is None
        return g * 2


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class Kept(Function):
    """Attributes of the context: arguments, results, tensors between, in lists, numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x, ctx.y, ctx.parts = x, x.sin(), [x * 2, (x.cos(), 3)]
        ctx.result = ctx.y * 2
        return ctx.result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        cosine, three = ctx.parts[1]
        return g * 2 * cosine + 0 * three * (ctx.parts[0] + ctx.x + ctx.y + ctx.result)


class Captured(Function):
    """A global tensor in both methods, a size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return (x * WEIGHT).sum() * x.shape[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.expand(ctx.shape) * WEIGHT * ctx.shape[0]


class Summed(Function):
    """Sizes that may be symbolic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape, ctx.count = x.shape, x.shape[0]
        return x.sum() * x.shape[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.expand(ctx.shape) * ctx.count


class Clamped(Function):
    """A backward that writes to its own tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        found = g.clone()
        found[x < ctx.low] = 0
        found[x > ctx.high] = 0
        return found, None, None


class Mixed(Function):
    """Arguments and results that are no tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: dict[str, float]) -> Any:
        ctx.settings = settings
        return x * settings["k"], "name", x.shape[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor, *rest: None) -> Any:
        assert rest == (None, None)
        return g * ctx.settings["k"], None


class Cast(Function):
    """Under autocast, in float32."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0].exp()


class Autocast(Function):
    """Under autocast, in its dtype."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


class Dropped(Function):
    """Random numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = torch.rand_like(x) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]


class Scaled(Function):
    """A backward that reads a global setting."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * SETTINGS["scale"]


class Counted(Function):
    """A forward with a side effect."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        NOTED.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class CountedBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        NOTED.append("backward")
        return g * 2


class Refusing(Function):
    """A forward that raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        raise ValueError("refused")

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class Failing(Function):
    """A backward that raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        raise ValueError("failed")


class TooMany(Function):
    """A backward with a gradient too many."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, g


class AsksMode(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * (3 if torch.is_grad_enabled() else 2)


class AsksClass(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.name = type(ctx).__name__
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * len(ctx.name)


class AsksData(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2 if g.sum() > 0 else g


class WritesGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.mul_(2)


class SeveralUnmaterialized(Function):
    """Zeros do not stand for its gradients that are absent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        given = [one * factor for one, factor in ((a, 2), (b, 3)) if one is not None]
        return sum(given) * len(given)


class ManyUnmaterialized(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3, x * 4, x * 5

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return sum(one for one in gradients if one is not None)


class Recomputing(Function):
    """A backward that runs autograd itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = x.sin()
        return torch.autograd.grad(y, x, g)[0]


class Escaping(Function):
    """A forward whose tensors are used outside of it."""

    kept: list[Tensor] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * 2
        Escaping.kept.append(y)
        return y + 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2
