"""Functions whose derivatives eager mode chooses by data or sizes, with one formula for all cases.

Autograd cannot read a traced tensor, and then takes formulas that differ for NaNs and infinities. Where it reads a
symbolic size, the symbol is specialised. Each function here replaces a torch function, and calls it where nothing is
traced.
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
    """`torch.prod`: where no element is zero, eager mode divides the result by each of them."""
    if not _is_traced(input) or input.dim() == 0 or "out" in kwargs:
        return torch.prod(input, *args, **kwargs)
    dim = args[0] if args else kwargs.get("dim")
    if input.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled(input.device.type):
        input = input.float()  # autocast's own copy is saved for backward, and `input` may be mutated

    def prod_of(values: torch.Tensor) -> torch.Tensor:
        return torch.prod(values, *args, **kwargs)

    def formula(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        values = input.to(grad.dtype)
        if torch.is_grad_enabled():  # a formula that has derivatives of its own, where elements are zero, too
            leaf = values if values.requires_grad else values.detach().requires_grad_()
            [found] = torch.autograd.grad(prod_of(leaf), leaf, grad, create_graph=True)
            return found.to(input.dtype)
        zeros = (values == 0).sum()
        with torch.enable_grad():
            leaf = values.detach().requires_grad_()
            [others] = torch.autograd.grad(prod_of(leaf), leaf, grad)
        if dim is None:
            others = torch.where(zeros > 1, torch.zeros_like(others), others)
        elif result.dim() < values.dim():
            grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
        return torch.where(zeros == 0, grad * (result / values).conj(), others).to(input.dtype)

    return _chosen(prod_of, formula, input)


def one_of_all(of_all: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `torch.max`, `median` and others that return one of all elements: equal elements share the gradient."""

    def run(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not _is_traced(input) or not input.is_cpu:
            return of_all(input, *args, **kwargs)
        return _chosen(of_all, _equal_parts, input)

    return run


def _equal_parts(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    found = torch.where(result.isnan(), input.isnan(), input == result)
    return torch.zeros_like(input).masked_fill(found, grad / found.sum())


class _Selected(torch.autograd.Function):
    """`torch.masked_select` by indices; saves for backward what eager mode saves, and the indices."""

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
    """`torch.masked_select`, by indices where sizes are symbolic."""
    if not (functional.is_functional(input) and has_symbols(input)):
        return torch.masked_select(input, mask)
    size = torch.broadcast_shapes((1,), input.shape, mask.shape)  # type: ignore[no-untyped-call]
    selected: torch.Tensor = _Selected.apply(input, mask, tuple(size))  # type: ignore[no-untyped-call]
    return selected


class _CumulativeSum(torch.autograd.Function):
    """`torch.cumsum` with a derivative that reads no size."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
        ctx.dim, ctx.dtype = dim, input.dtype
        return torch.cumsum(input, dim, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grads[0].to(ctx.dtype).flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None, None


def cumsum(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.cumsum`, also of unbacked lengths: autograd's derivative asks whether they are more than one."""
    if not _is_traced(input) or not any(is_unbacked(length) for length in input.shape) or "out" in kwargs:
        return torch.cumsum(input, *args, **kwargs)
    return _summed(*args, input=input, **kwargs)


def _summed(dim: int, *, input: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    summed: torch.Tensor = _CumulativeSum.apply(input, dim, dtype)  # type: ignore[no-untyped-call]
    return summed


def cumprod(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.cumprod`, also of unbacked lengths: autograd's derivative loops over the elements."""
    if not _is_traced(input) or not any(is_unbacked(length) for length in input.shape) or "out" in kwargs:
        return torch.cumprod(input, *args, **kwargs)
    return _multiplied(*args, input=input, **kwargs)


def _multiplied(dim: int, *, input: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    def prod_of(values: torch.Tensor) -> torch.Tensor:
        return torch.cumprod(values, dim, dtype=dtype)

    def formula(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """Return eager mode's gradient: before the first zero, at it (which reads up to the second zero), and after."""
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

    return _chosen(prod_of, formula, input)
