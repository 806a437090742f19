"""Which operations can fail on their data: known as tables, since fake tensors have none.

What cannot fail once dtypes and shapes are known (pointwise arithmetic, views, matrix products, sums) is in no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

#: Refuse some data whatever its dtype: probabilities, indices, singular matrices, ranges, assertions.
FAIL_ON_VALUES = frozenset({
    "_assert", "_assert_async", "_assert_scalar", "_check", "_functional_assert_async", "_pack_padded_sequence",
    "_pad_packed_sequence", "bernoulli", "bernoulli_", "binary_cross_entropy", "binomial", "cauchy_", "cholesky",
    "cholesky_inverse", "cholesky_solve", "cond", "cross_entropy", "cross_entropy_loss", "ctc_loss", "eig", "eigh",
    "eigvals", "eigvalsh", "embedding", "embedding_bag", "embedding_renorm_", "exponential_", "gather",
    "geometric_", "geqrf", "histc", "histogram", "histogramdd", "householder_product", "index_add", "index_add_",
    "index_copy", "index_copy_", "index_fill", "index_fill_", "index_put", "index_put_", "index_reduce",
    "index_reduce_", "index_select", "inv", "inverse", "ldl_factor", "ldl_factor_ex", "ldl_solve",
    "linear_cross_entropy", "lobpcg", "log_normal_", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve",
    "lu_unpack", "matrix_power", "matrix_rank", "max_unpool1d", "max_unpool2d", "max_unpool3d", "multi_margin_loss",
    "multilabel_margin_loss", "multinomial", "nanquantile", "nll_loss", "nll_loss2d", "nll_loss_nd", "normal",
    "normal_", "one_hot", "orgqr", "ormqr", "pack_padded_sequence", "pad_packed_sequence", "pca_lowrank", "pinv",
    "pinverse", "poisson", "put", "put_", "qr", "quantile", "random_", "scatter", "scatter_", "scatter_add",
    "scatter_add_", "scatter_reduce", "scatter_reduce_", "searchsorted", "segment_reduce", "solve",
    "solve_triangular", "svd", "svd_lowrank", "svdvals", "take", "take_along_dim", "tensorinv", "tensorsolve",
    "triangular_solve", "uniform_", "unravel_index",
})  # fmt: skip

#: Division of integers, which fails by zero.
INTEGER_DIVISIONS = frozenset({
    "__floordiv__", "__ifloordiv__", "__imod__", "__mod__", "__rfloordiv__", "__rmod__", "div", "div_", "divide",
    "divide_", "floor_divide", "floor_divide_", "floordiv", "fmod", "fmod_", "ifloordiv", "imod", "mod",
    "remainder", "remainder_",
})  # fmt: skip

#: Fail when a tensor is what indexes.
INDEXING = frozenset(["getitem", "setitem", "__getitem__", "__setitem__"])

#: Operations that draw random numbers, beside those whose names end in a drawn distribution.
RANDOM = frozenset({
    "alpha_dropout", "bernoulli", "bernoulli_", "binomial", "cauchy_", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "dropout_", "exponential_", "feature_alpha_dropout", "feature_dropout", "fractional_max_pool2d",
    "fractional_max_pool3d", "geometric_", "gru", "gru_cell", "gumbel_softmax", "log_normal_", "lstm",
    "multi_head_attention_forward", "multinomial", "native_dropout", "normal", "normal_", "pca_lowrank", "poisson",
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm", "rnn_relu",
    "rnn_tanh", "rrelu", "rrelu_", "scaled_dot_product_attention", "svd_lowrank", "uniform_",
})  # fmt: skip

#: Change what an input is, not only its elements: nothing puts that back.
RESHAPING = frozenset({
    "as_strided_", "detach_", "requires_grad_", "resize_", "resize_as_", "set_", "squeeze_", "swapaxes_",
    "swapdims_", "t_", "transpose_", "unsqueeze_",
})  # fmt: skip


def name_of(target: Any) -> str:
    """The operation's name, whatever spelling of it the graph calls."""
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return target._opname
    return str(getattr(target, "__name__", target)).removeprefix("linalg_")


def is_custom(target: Any) -> bool:
    """Whether the operation is a user's or another library's, of which nothing is known."""
    if isinstance(target, CustomOpDef):
        return True
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace not in ("aten", "prims", "prim")
    if isinstance(target, torch._ops.OpOverloadPacket):
        return not target._qualified_op_name.startswith(("aten::", "prims::", "prim::"))
    return False


def may_fail(target: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a call of `target` that fake tensors took can raise on real ones. `tensors`: all among its arguments."""
    name = name_of(target)
    if name in FAIL_ON_VALUES or is_custom(target):
        return True
    if name in INTEGER_DIVISIONS:
        return not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
    return name in INDEXING and any(tensor.dtype is not torch.bool for tensor in tensors[1:])


def is_random(target: Any) -> bool:
    """Whether a call of `target` may draw random numbers."""
    return name_of(target) in RANDOM or is_custom(target)
