"""Facts about ATen operators that the passes read: views, pointwise work, randomness, cost."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

#: Views that exist for autograd only; in a functional graph they are the identity.
IDENTITY_VIEWS = frozenset({aten.detach.default, aten.alias.default})

#: Share memory although their schemas do not say so.
UNSAFE_VIEWS = frozenset({aten._unsafe_view.default})

#: Pointwise, but costing tens of instructions an element.
COSTLY_POINTWISE = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "erfinv",
        "gelu",
        "gelu_backward",
        "sigmoid",
        "silu",
        "mish",
        "softplus",
        "logit",
        "pow",
        "lgamma",
        "digamma",
        "i0",
        "logaddexp",
        "logaddexp2",
        "xlogy",
        "special_xlog1py",
        "remainder",
        "fmod",
    ]
)

#: Creates values out of nothing: cheaper to make again than to keep.
FACTORIES = frozenset(
    [
        "full",
        "full_like",
        "zeros",
        "zeros_like",
        "ones",
        "ones_like",
        "empty",
        "empty_like",
        "empty_strided",
        "arange",
        "scalar_tensor",
        "new_full",
        "new_zeros",
        "new_ones",
        "new_empty",
        "eye",
    ]
)

#: Not tagged pointwise by torch, yet each element of the output depends on one element of each input.
ALSO_POINTWISE = frozenset(
    ["clone", "_to_copy", "copy", "masked_fill", "where", "fill", "lerp", "native_dropout_backward"]
)

#: Mutates arguments that its schema does not annotate, when trained with running statistics.
HIDDEN_MUTATION = frozenset(["native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"])

#: Raise on some values of their arguments (indices, singular matrices, divisors): run even where nothing uses them.
#: The names of linear algebra are all of them.
FAIL_ON_VALUES = frozenset({
    "_ctc_loss", "_embedding_bag", "_embedding_bag_forward_only", "_pack_padded_sequence", "_unsafe_index",
    "binary_cross_entropy", "cholesky", "cholesky_inverse", "cholesky_solve", "embedding", "gather", "geqrf",
    "histc", "histogram", "index", "index_add", "index_copy", "index_fill", "index_put", "index_reduce",
    "index_select", "lu_unpack", "max_unpool2d", "max_unpool3d", "multi_margin_loss",
    "multilabel_margin_loss_forward", "nll_loss2d_forward", "nll_loss_forward", "ormqr", "put", "scatter",
    "scatter_add", "scatter_reduce", "segment_reduce", "take", "triangular_solve",
})  # fmt: skip

#: Give nothing; raise on some data.
CHECKS = frozenset({aten._assert_async.default, aten._assert_async.msg, aten._linalg_check_errors.default})

INTEGER_DIVISIONS = frozenset(["div", "floor_divide", "fmod", "remainder"])


def op_name(target: Any) -> str:
    """The operator's name without namespace and overload (`gelu` for `aten.gelu.default`)."""
    if isinstance(target, torch._ops.OpOverload):
        return target._opname
    return getattr(target, "__name__", str(target))


def is_view(target: Any) -> bool:
    """Whether the operator's result shares memory with its first argument."""
    return isinstance(target, torch._ops.OpOverload) and (bool(target.is_view) or target in UNSAFE_VIEWS)


def is_random(target: Any) -> bool:
    """Whether running the operator advances a random generator."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_mutable(target: Any) -> bool:
    """Whether the operator's schema says that it writes to an argument."""
    return isinstance(target, torch._ops.OpOverload) and bool(target._schema.is_mutable)


def is_pointwise(target: Any) -> bool:
    """Whether the operator computes each element of its result independently of the others."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags or target._opname in ALSO_POINTWISE


def is_pure(node: fx.Node) -> bool:
    """Whether the node may be dropped when unused, and merged with an equal one."""
    if node.op == "get_attr" or node.target is operator.getitem:
        return True
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return not (is_random(node.target) or is_mutable(node.target)) and bool(node.target._schema.returns)


def may_fail(node: fx.Node) -> bool:
    """Whether the call can raise though dtypes and shapes are right."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._opname
    if name in INTEGER_DIVISIONS:
        val = node.meta["val"]
        return not (val.is_floating_point() or val.is_complex())
    return name in FAIL_ON_VALUES or name.startswith(("linalg_", "_linalg_"))


def is_removable(node: fx.Node) -> bool:
    """Whether the node may go when nothing uses it: pure, and no call of the forward pass that eager sees fail."""
    return is_pure(node) and not (node.meta.get("phase") != "backward" and may_fail(node))


def view_source(node: fx.Node) -> fx.Node | None:
    """The node whose memory `node` shares by being a view of it, one step up; None for no view."""
    if node.target is operator.getitem:
        parent = node.args[0]
        if isinstance(parent, fx.Node) and is_view(parent.target):
            return view_source(parent)
        return None
    if node.op == "call_function" and is_view(node.target) and isinstance(node.args[0], fx.Node):
        return node.args[0]
    return None


def view_root(node: fx.Node) -> fx.Node:
    """The node that owns the memory `node` shows."""
    while (source := view_source(node)) is not None:
        node = source
    return node


def tensor_bytes(val: Any) -> int:
    """Bytes of a tensor's elements; the sum for a tuple; 0 for anything else."""
    if isinstance(val, torch.Tensor):
        return val.numel() * val.element_size()
    if isinstance(val, (tuple, list)):
        return sum(tensor_bytes(item) for item in val)
    return 0
