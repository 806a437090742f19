"""Operators of ATen that the rewrites, the schedule and the launcher all know by name."""

from __future__ import annotations

from framesmith_guards.torch_adapter import aten

#: Convolutions -> the positions of their inputs, weights, and gradients of results.
CONVOLUTIONS: dict[object, tuple[int, int, int | None]] = {
    aten.convolution.default: (0, 1, None),
    aten.convolution_backward.default: (1, 2, 0),
}
#: Attention on the CPU.
CPU_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
