"""Fused and foreach functions of optimizers and gradient scalers, decomposed tensor by tensor.

Torch's functionalisation fails for them: for fused ones with an empty list, and for numbers given as a tensor, whose
memory it reads. Decomposed, a step is elementwise work. As in torch's own kernels, corrections that depend on the step
are computed in float64, the rest in float32 at least, rounded once where it is stored; a step with an infinite gradient
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_aten.tracing.decompositions import scaled_sum
from framesmith_guards.needs import of_torch

Tensors = Sequence[torch.Tensor]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _store(old: torch.Tensor, new: torch.Tensor, found_inf: torch.Tensor | None) -> None:
    """Write `new`, unless an infinite gradient was found."""
    old.copy_(new if found_inf is None else torch.where(found_inf == 1, _wide(old), new))


def _gradient(
    grad: torch.Tensor, maximize: bool, grad_scale: torch.Tensor | None, found_inf: torch.Tensor | None
) -> torch.Tensor:
    """Return the unscaled gradient, and store it; negated where `maximize`."""
    wide = _wide(grad)
    if grad_scale is not None:
        wide = wide / grad_scale
        _store(grad, wide, found_inf)
    return -wide if maximize else wide


def _together(steps: Tensors) -> torch.Tensor:
    """Return the steps in one tensor, so that an operator without a kernel of the backend is one call."""
    return torch.stack([step.reshape(()) for step in steps]).to(torch.float64)


def _adam(
    decoupled: bool,
    self: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: float | torch.Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """Do a step of Adam; `decoupled`: weight decay is decoupled from the gradient, as in AdamW."""
    if not self:
        return
    steps = _together(state_steps)
    sizes, spreads = lr / (1 - beta1**steps), (1 - beta2**steps).sqrt()
    for at, (parameter, grad) in enumerate(zip(self, grads, strict=True)):
        value, gradient = _wide(parameter), _gradient(grad, maximize, grad_scale, found_inf)
        if weight_decay != 0 and decoupled:
            value = value * (1 - lr * weight_decay)
        elif weight_decay != 0:
            gradient = gradient + value * weight_decay
        first = torch.lerp(_wide(exp_avgs[at]), gradient, 1 - beta1)
        second = _wide(exp_avg_sqs[at]) * beta2 + gradient * gradient * (1 - beta2)
        _store(exp_avgs[at], first, found_inf)
        _store(exp_avg_sqs[at], second, found_inf)
        if amsgrad:
            second = torch.maximum(_wide(max_exp_avg_sqs[at]), second)
            _store(max_exp_avg_sqs[at], second, found_inf)
        _store(parameter, value - sizes[at] * first / (second.sqrt() / spreads[at] + eps), found_inf)


def adam_(*args: Any, **kwargs: Any) -> None:
    _adam(False, *args, **kwargs)


def adamw_(*args: Any, **kwargs: Any) -> None:
    _adam(True, *args, **kwargs)


def sgd_(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | torch.Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    for at, (parameter, grad) in enumerate(zip(self, grads, strict=True)):
        value, gradient = _wide(parameter), _gradient(grad, maximize, grad_scale, found_inf)
        if weight_decay != 0:
            gradient = gradient + value * weight_decay
        if momentum != 0:
            buffer = momentum_buffer_list[at]
            moved = gradient if is_first_step else _wide(buffer) * momentum + gradient * (1 - dampening)
            _store(buffer, moved, found_inf)
            gradient = gradient + moved * momentum if nesterov else moved
        _store(parameter, value - lr * gradient, found_inf)


def adagrad_(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: float | torch.Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    if not self:
        return
    rates = lr / (1 + (_together(state_steps) - 1) * lr_decay)
    for at, (parameter, grad, total) in enumerate(zip(self, grads, state_sums, strict=True)):
        value, gradient = _wide(parameter), _gradient(grad, maximize, grad_scale, found_inf)
        if weight_decay != 0:
            gradient = gradient + value * weight_decay
        squares = _wide(total) + gradient * gradient
        _store(total, squares, found_inf)
        _store(parameter, value - rates[at] * gradient / (squares.sqrt() + eps), found_inf)


def unscale_(self: Tensors, found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """Multiply gradients by the inverse of their scale, and set `found_inf` to 1 if one of them is not finite."""
    found: torch.Tensor | None = None
    for grad in self:
        infinite = grad.isfinite().logical_not().any()
        found = infinite if found is None else found.logical_or(infinite)
        grad.copy_(_wide(grad) * inv_scale)
    if found is not None:
        found_inf.copy_(torch.where(found, 1.0, found_inf))


def update_scale_(
    self: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> torch.Tensor:
    """Shrink the scale after an infinite gradient; let it grow, if it stays finite, after enough steps without one."""
    found, steps = found_inf != 0, growth_tracker + 1
    due, grown = steps == growth_interval, self * scale_growth_factor
    held = torch.where(due & grown.isfinite(), grown, self)
    growth_tracker.copy_(torch.where(found | due, 0, steps))
    return self.copy_(torch.where(found, self * scale_backoff_factor, held))


def _through_results(many: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    """Return `change`, an in-place function; with numbers in a tensor it copies the results of `many`."""

    def run(self: Tensors, tensor1: Tensors, tensor2: Tensors, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(numbers, torch.Tensor) for numbers in (*args, *kwargs.values())):
            return change(self, tensor1, tensor2, *args, **kwargs)
        new = many(self, tensor1, tensor2, *args, **kwargs)
        return [old.copy_(value) for old, value in zip(self, new, strict=True)]

    return run


def _by_a_tensor(
    factor: Callable[..., torch.Tensor], function: Callable[..., Any], changes: bool
) -> Callable[..., Any]:
    """Return `function`, which adds `factor(value * tensor1, tensor2)`, also for a tensor `value`.

    The operator takes a number: reading it would be a call between kernels, which waits for a GPU.
    """

    def run(self: torch.Tensor, tensor1: torch.Tensor, tensor2: torch.Tensor, *, value: Any = 1, **more: Any) -> Any:
        tensors = (self, tensor1, tensor2)
        recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        same_dtype = self.is_floating_point() and len({tensor.dtype for tensor in tensors}) == 1
        if recorded or more or not same_dtype or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return function(*tensors, value=value, **more)
        new = scaled_sum(factor, self, value.detach(), tensor1, tensor2)
        return self.copy_(new) if changes else new

    return run


def _by_tensors() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {}
    for name, factor in (("addcdiv", torch.div), ("addcmul", torch.mul)):
        for owner, called in ((torch, name), (torch.Tensor, name), (torch.Tensor, f"{name}_")):
            function = getattr(owner, called)
            found[function] = _by_a_tensor(factor, function, called.endswith("_"))
    return found


REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    **_by_tensors(),
    of_torch("torch._foreach_addcdiv_"): _through_results(
        of_torch("torch._foreach_addcdiv"), of_torch("torch._foreach_addcdiv_")
    ),
    of_torch("torch._foreach_addcmul_"): _through_results(
        of_torch("torch._foreach_addcmul"), of_torch("torch._foreach_addcmul_")
    ),
    of_torch("torch._amp_foreach_non_finite_check_and_unscale_"): unscale_,
    of_torch("torch._amp_update_scale_"): update_scale_,
    of_torch("torch._fused_adam_"): adam_,
    of_torch("torch._fused_adamw_"): adamw_,
    of_torch("torch._fused_sgd_"): sgd_,
    of_torch("torch._fused_adagrad_"): adagrad_,
}
