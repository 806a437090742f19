"""Derivatives that eager mode chooses by looking at data or sizes, as one formula for all of them.

Autograd cannot look at what a traced tensor holds, and then takes formulas that differ where there are NaNs and
infinities. Where it looks at a size that is a symbol, the symbol becomes the number that it is at present. Each
function here stands for a torch function, and is that one where nothing is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith_aot.trace import functional
from framesmith_aten.symbolic import has_symbols, is_unbacked

Formula = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class _Chosen(torch.autograd.Function):
    """`call(input)`, whose derivative is `formula(gradient, input, result)`."""

    @staticmethod
    def forward(
        ctx: Any, call: Callable[[torch.Tensor], torch.Tensor], formula: Formula, input: torch.Tensor
    ) -> torch.Tensor:
        result = call(input)
        ctx.save_for_backward(input, result)
        ctx.formula = formula
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, torch.Tensor]:
        return None, None, ctx.formula(grads[0], *ctx.saved_tensors)


_chosen: Callable[..., torch.Tensor] = _Chosen.apply


def _is_traced(input: torch.Tensor) -> bool:
    return functional.is_functional(input) and input.requires_grad and torch.is_grad_enabled()


def prod(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.prod`: where no element is zero, eager divides the product by each of them."""
    if not _is_traced(input) or input.dim() == 0 or "out" in kwargs:
        return torch.prod(input, *args, **kwargs)
    dim = args[0] if args else kwargs.get("dim")
    if input.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled(input.device.type):
        input = input.float()  # autocast's own copy, made before autograd: that is kept, and `input` may be changed

    def product(values: torch.Tensor) -> torch.Tensor:
        return torch.prod(values, *args, **kwargs)

    def formula(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        values = input.to(grad.dtype)
        zeros = (values == 0).sum()
        with torch.enable_grad():
            leaf = values.detach().requires_grad_()
            [others] = torch.autograd.grad(product(leaf), leaf, grad)
        if dim is None:
            others = torch.where(zeros > 1, torch.zeros_like(others), others)
        elif result.dim() < values.dim():
            grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
        return torch.where(zeros == 0, grad * (result / values).conj(), others).to(input.dtype)

    return _chosen(product, formula, input)


def one_of_all(of_all: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.max`, `median` and others that give one of all elements: its equals get equal parts of the gradient."""

    def run(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not _is_traced(input) or not input.is_cpu:
            return of_all(input, *args, **kwargs)
        return _chosen(of_all, _equal_parts, input)

    return run


def _equal_parts(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    found = torch.where(result.isnan(), input.isnan(), input == result)
    return torch.zeros_like(input).masked_fill(found, grad / found.sum())


class _Selected(torch.autograd.Function):
    """`torch.masked_select` by places, which keeps what eager mode keeps beside them."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, mask: torch.Tensor, size: tuple[Any, ...]) -> torch.Tensor:
        indices = mask.expand(size).nonzero().unbind(1)
        ctx.save_for_backward(input, mask, *indices)
        ctx.size = size
        return input.expand(size)[indices]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        input, _, *indices = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size).index_put(indices, grads[0]).sum_to_size(input.shape), None, None


def masked_select(input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`torch.masked_select`, of symbolic sizes by places."""
    if not (functional.is_functional(input) and has_symbols(input)):
        return torch.masked_select(input, mask)
    size = torch.broadcast_shapes((1,), input.shape, mask.shape)  # type: ignore[no-untyped-call]
    selected: torch.Tensor = _Selected.apply(input, mask, tuple(size))  # type: ignore[no-untyped-call]
    return selected


class _CumulativeSum(torch.autograd.Function):
    """`torch.cumsum`, whose derivative asks for no size."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
        ctx.dim, ctx.dtype = dim, input.dtype
        return torch.cumsum(input, dim, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grads[0].to(ctx.dtype).flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None, None


def cumsum(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.cumsum`, also of as many elements as data tell: autograd asks whether that is more than one."""
    if not _is_traced(input) or not any(is_unbacked(length) for length in input.shape) or "out" in kwargs:
        return torch.cumsum(input, *args, **kwargs)
    return _summed(*args, input=input, **kwargs)


def _summed(dim: int, *, input: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    summed: torch.Tensor = _CumulativeSum.apply(input, dim, dtype)  # type: ignore[no-untyped-call]
    return summed


def cumprod(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.cumprod`, also of as many elements as data tell: autograd goes through them one by one."""
    if not _is_traced(input) or not any(is_unbacked(length) for length in input.shape) or "out" in kwargs:
        return torch.cumprod(input, *args, **kwargs)
    return _multiplied(*args, input=input, **kwargs)


def _multiplied(dim: int, *, input: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    def product(values: torch.Tensor) -> torch.Tensor:
        return torch.cumprod(values, dim, dtype=dtype)

    def formula(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """Eager mode's: up to the first zero, at it, which what lies up to the second depends on, and beyond."""
        grad, values = grad.to(input.dtype), input.conj()
        zero = input == 0
        zeros = zero.cumsum(dim)
        before, first = zeros == 0, zero & (zeros == 1)
        weighted = torch.where(before, grad * result.to(input.dtype).conj(), 0)
        up_to_first = weighted.flip(dim).cumsum(dim).flip(dim) / values
        beyond = torch.where((zeros == 1) & ~first, values, 1).cumprod(dim)
        of_all = torch.where(zeros == 1, grad * beyond, 0).sum(dim, keepdim=True)
        at_first = of_all * torch.where(before, values, 1).prod(dim, keepdim=True)
        return torch.where(before, up_to_first, torch.where(first, at_first, 0))

    return _chosen(product, formula, input)
