"""Which operators are taken apart while tracing, by torch's own reference decompositions.

Note [Kept operators]: core ATen (`native_layer_norm`, `_softmax`, `gelu`, `addmm`, `convolution`,
`_scaled_dot_product_*`, ...) stays whole, so that a backend can choose between a library call and a
kernel of its own. Taken apart is what is not core and what fuses well in pieces: derivatives of
pointwise and row-wise operators, compound pointwise operators, simple losses. Whole in spite of not
being core stays what one library call does better: derivatives of convolution, attention, batch and
group norm, pooling, embedding, `nll_loss`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

Decompositions = dict[Any, Callable[..., Any]]
"""From an operator to the function that computes it out of simpler ones, or returns NotImplemented to decline."""

aten = torch.ops.aten

#: Names of ATen operators; every overload with a decomposition is taken.
POINTWISE_BACKWARD = """gelu_backward sigmoid_backward tanh_backward threshold_backward silu_backward
elu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward
softplus_backward mish_backward log_sigmoid_backward native_dropout_backward logit_backward"""
ROW_BACKWARD = "_softmax_backward_data _log_softmax_backward_data native_layer_norm_backward"
POINTWISE = """addcmul addcdiv silu softplus hardswish hardsigmoid mish celu log_sigmoid_forward
frac masked_fill rsub clamp_min clamp_max lerp"""
LOSSES = """mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
binary_cross_entropy binary_cross_entropy_backward"""
SHAPES = "select_backward slice_backward stack"


@functools.cache
def default_decompositions() -> Decompositions:
    """The table used where the caller gives none."""
    names = " ".join((POINTWISE_BACKWARD, ROW_BACKWARD, POINTWISE, LOSSES, SHAPES)).split()
    return dict(_rows(names)) | {aten.binary_cross_entropy.default: binary_cross_entropy}


def binary_cross_entropy(
    input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """torch's decomposition, with the check on probabilities that the operator itself makes (its message is lost)."""
    aten._assert_async.default(((input >= 0) & (input <= 1)).all())
    loss: torch.Tensor = decomposition_table[aten.binary_cross_entropy.default](input, target, weight, reduction)
    return loss


def _rows(names: list[str]) -> list[tuple[Any, Any]]:
    rows = []
    for name in names:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if not op._schema.is_mutable and op in decomposition_table:
                rows.append((op, decomposition_table[op]))
    return rows
