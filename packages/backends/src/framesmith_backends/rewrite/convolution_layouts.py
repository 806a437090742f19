"""The convolutions computed in channels-last, for each device: the preferences of `channels_last`.

oneDNN, on the CPU, computes in channels-last or in blocks of channels. Given contiguous inputs it converts them
before each convolution and back behind it; given inputs with the channels last it takes them as they are, but converts
the weights. So early layers, with large inputs and few weights, gain by channels-last, and late ones lose.

cuDNN's kernels for tensor cores compute in channels-last. Given contiguous inputs it converts inputs, weights and
results around each of them.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from framesmith_aten.operators import arguments
from framesmith_backends.ir.dtypes import is_low_precision
from framesmith_backends.ir.ops import CONVOLUTIONS
from framesmith_backends.reporting import Refusal
from framesmith_backends.rewrite.channels_last import (
    Preference,
    activations_of,
    in_channels_last,
    operand_of,
    operands_of,
    turns_weights,
)
from framesmith_backends.torch_adapter import rounds_float32
from framesmith_guards.torch_adapter import OpOverload, aten

#: On the CPU: elements of input and result for each weight from which channels-last is faster. Measured with two
#: threads of a Zen 4: at 2 (128 channels of 12x12) the two tie, at 16 (64 of 24x24) it gains 6%, at 500 (16 of 96x96)
#: 30%; of convolutions in groups 6 to 77% at 16, of depthwise ones up to 96%, of transposed ones 4% at 5, 66 to 86%
#: from 23.
ELEMENTS_FOR_A_WEIGHT = 4
#: On the CPU: multiplications for an element of a result from which channels-last is faster although the result is
#: normalised by statistics of the batch: a channel that lies together is read from memory once for them, otherwise
#: twice, which costs 0.3 ns an element, forward and backward. What is gained is 0.1 to 0.3 ns of up to 32, 0.5 ns of
#: 576.
MULTIPLICATIONS_FOR_A_NORM = 256


def why_not_on_cpu(node: fx.Node) -> str | None:
    """Why this node is not computed with the channels last, or None."""
    found = input_and_result(node)
    if isinstance(found, Refusal):
        return found.reason
    inputs, result = found
    weights = operand_of(node, CONVOLUTIONS[node.target][1]).meta["val"]
    if inputs.dtype not in (torch.float32, torch.bfloat16) or inputs.device.type != "cpu":
        return f"{inputs.dtype} on {inputs.device}"
    has_few_weights = inputs.numel() + result.numel() >= ELEMENTS_FOR_A_WEIGHT * weights.numel()
    return None if has_few_weights else "more weights than pixels"


def why_not_on_cuda(node: fx.Node) -> str | None:
    """The same where cuDNN computes it. (Who changes its switches later loses time, not numbers: launchers look.)"""
    found = input_and_result(node)
    if isinstance(found, Refusal):
        return found.reason
    inputs, _ = found
    if inputs.device.type != "cuda":
        return f"inputs on {inputs.device}"
    if not tensor_cores_take(inputs.dtype):
        return f"{inputs.dtype}, which tensor cores do not take"
    if in_groups(node):
        return "convolved in groups"
    return None if _gives_channels_last(node) else "ATen's kernel for it gives another layout"


def tensor_cores_take(dtype: torch.dtype) -> bool:
    """Whether cuDNN computes in this type by tensor cores; in float32 where the user lets it round to TF32."""
    return is_low_precision(dtype) or (dtype == torch.float32 and rounds_float32("conv"))


def input_and_result(node: fx.Node) -> tuple[torch.Tensor, torch.Tensor] | Refusal:
    """The input of a convolution, and its result or the gradient of that; or why no device has their channels last."""
    if node.target not in CONVOLUTIONS:
        return Refusal("no convolution")
    _, weights, gradient = CONVOLUTIONS[node.target]
    inputs = activations_of(operands_of(node)[0])
    result = activations_of(node if gradient is None else node.args[gradient])
    if inputs is None or result is None or not isinstance(node.args[weights], fx.Node):
        return Refusal("no inputs of known sizes, or of one pixel")
    if not (inputs.is_contiguous() and result.is_contiguous()):
        return Refusal("laid out otherwise by the program")
    if inputs.shape[1] == result.shape[1] == 1:
        return Refusal("one channel, which has one layout")
    return inputs, result


def in_groups(node: fx.Node) -> bool:
    """Whether the channels are convolved in several groups."""
    assert isinstance(node.target, OpOverload)
    return bool(arguments(node.target, node.args, node.kwargs)["groups"] != 1)


def _gives_channels_last(node: fx.Node) -> bool:
    """Whether the kernel that ATen chooses for inputs in channels-last gives such results: a trial without numbers."""
    last = set(operands_of(node))
    weights = operand_of(node, CONVOLUTIONS[node.target][1])
    if turns_weights(weights.meta["val"]):
        last.add(weights)
    values = fx.node.map_arg(
        node.args, lambda one: in_channels_last(one.meta["val"]) if one in last else one.meta["val"]
    )
    found, wanted = node.target(*values, **node.kwargs), in_channels_last(node.meta["val"])  # type: ignore[operator]
    pairs = zip(found, wanted, strict=True) if isinstance(found, (tuple, list)) else [(found, wanted)]
    return all(one is None or one.dim() != 4 or one.stride() == other.stride() for one, other in pairs)


def _is_lost_to_a_norm(node: fx.Node) -> bool:
    """Whether normalising its result by the batch's statistics costs more than the convolution gains."""
    _, weights, _ = CONVOLUTIONS[node.target]
    multiplications = math.prod(operand_of(node, weights).meta["val"].shape[1:])
    if multiplications >= MULTIPLICATIONS_FOR_A_NORM:
        return False
    return any(user.target is aten._native_batch_norm_legit_functional.default for user in node.users)


ON_CPU = Preference(why_not_on_cpu, _is_lost_to_a_norm, of_weights=False)
ON_CUDA = Preference(why_not_on_cuda, lambda node: False, of_weights=True)
