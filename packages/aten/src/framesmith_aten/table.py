"""Facts about ATen operators that schemas and tags lack: one row per operator, in the only table of their names.

A row is found by the operator's name without namespace and overload; in-place variants use the functional name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

#: The namespaces of operators that this package, and the backends, add to torch's own.
OWN_NAMESPACE: Final = "framesmith_aten"
BACKENDS_NAMESPACE: Final = "framesmith_backends"

#: Torch's namespaces whose operators do as schemas, tags and the table say; and those about which nothing is known.
_DECLARED: Final = frozenset({"aten", "prims", "prim", "mkldnn", "quantized"})
_UNDECLARED: Final = frozenset({"sparse", "_quantized", "profiler"})

#: All namespaces of torch's own operators.
OF_TORCH: Final = _DECLARED | _UNDECLARED
#: The namespaces of operators that are trusted to do as declared: every other operator is custom. The twins of custom
#: operators (`functional_forms.NAMESPACE`) are custom as well.
TRUSTED: Final = _DECLARED | {OWN_NAMESPACE, BACKENDS_NAMESPACE}


class MayFail(StrEnum):
    """Why an operator can raise though dtypes and shapes are right."""

    INDEX = "an index may be out of range"
    INDEX_OR_MASK = "an index may be out of range, or a mask may choose another number of elements"
    TARGET = "a class index may be out of range"
    NEGATIVE = "a number may be negative"
    ZERO_POINT = "a zero point may be outside of its range"
    PROBABILITY = "a probability may be outside of its range"
    DEVIATION = "a standard deviation may be negative"
    INTERVAL = "the bounds may be the wrong way round"
    CONVERGENCE = "the algorithm may not converge"
    SINGULAR = "the matrix may be singular, or not positive definite"
    RANGE = "the range of the values may not be finite"
    LENGTHS = "lengths may not fit the data"
    CHECK = "what it checks may be false"
    ZERO = "an integer may be divided by zero"
    ZERO_IF_ROUNDED = "an integer may be divided by zero, the quotient being rounded"
    STORAGE = "the view may go beyond its storage"
    ALIGNMENT = "the elements may not be aligned for a wider dtype"


@dataclass(frozen=True, slots=True)
class Row:
    """The facts about one operator."""

    #: Pointwise, tens of instructions per element.
    costly: bool = False
    #: See Note [Decomposed or kept].
    decomposed: bool = False
    #: Pointwise though torch does not tag it so.
    pointwise: bool = False
    #: Reads only shape and type of its tensors.
    metadata: bool = False
    #: A view of its argument though its schema does not declare it.
    undeclared_view: bool = False
    #: Writes `running_mean` and `running_var` though its schema does not declare it.
    statistics: bool = False
    fails: MayFail | None = None
    #: Drops dimensions of size 1.
    drops_ones: bool = False
    #: Names of its operands that are indices and values to write; none may share memory with the written tensor, not
    #: even the same elements, as in eager mode.
    scatter_operands: tuple[str, ...] = ()
    #: Returns its first argument with some elements replaced, independently of their old values; see
    #: `operators.overwrites`.
    overwrites: bool = False
    #: Its operands have to broadcast, which torch's rule for fakes does not check.
    broadcasts: bool = False
    #: Returns the elements of its first argument, perhaps in another dtype, in new memory.
    copies: bool = False
    #: A view through which functionalisation carries a write back by adding to zeros, which loses elements outside the
    #: view and signs of zeros.
    undone_by_sums: bool = False
    #: A view that may show an element more than once, or more elements than its operand.
    repeats: bool = False


def _rows(names: str, **facts: Any) -> list[tuple[str, Row]]:
    return [(name, Row(**facts)) for name in names.split()]


def _table(*groups: Iterable[tuple[str, Row]]) -> Mapping[str, Row]:
    table: dict[str, Row] = {}
    for name, row in (pair for group in groups for pair in group):
        if name in table:
            raise ValueError(f"{name} has two rows")
        table[name] = row
    return table


TABLE: Mapping[str, Row] = _table(
    _rows(
        """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf
        erfc erfinv gelu sigmoid logit pow lgamma digamma i0 special_i0e special_i1
        special_i1e logaddexp logaddexp2 xlogy special_xlog1py""",
        costly=True,
    ),
    _rows("silu softplus mish gelu_backward", costly=True, decomposed=True),
    _rows(
        """sigmoid_backward tanh_backward threshold_backward silu_backward elu_backward hardsigmoid_backward
        hardswish_backward hardtanh_backward leaky_relu_backward softplus_backward mish_backward log_sigmoid_backward
        native_dropout_backward logit_backward _softmax_backward_data _log_softmax_backward_data
        native_layer_norm_backward addcmul addcdiv hardsigmoid celu frac clamp_min clamp_max lerp
        mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
        binary_cross_entropy_backward select_backward slice_backward stack _safe_softmax""",
        decomposed=True,
    ),
    _rows("hardswish rsub masked_fill", pointwise=True, decomposed=True),
    _rows("log_sigmoid_forward", costly=True, pointwise=True, decomposed=True),
    _rows("copy where fill", pointwise=True),
    _rows("_to_copy", pointwise=True, copies=True),
    _rows("clone _reshape_copy", copies=True),
    _rows(
        "full_like zeros_like ones_like empty_like new_full new_zeros new_ones new_empty new_empty_strided",
        metadata=True,
    ),
    _rows("_unsafe_view", undeclared_view=True),
    _rows("squeeze", drops_ones=True),
    _rows("unfold", repeats=True, undone_by_sums=True),
    _rows(
        """native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm _batch_norm_impl_index instance_norm
        batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats""",
        statistics=True,
    ),
    _rows("remainder fmod", costly=True, fails=MayFail.ZERO),
    _rows("floor_divide", fails=MayFail.ZERO),
    _rows("div", fails=MayFail.ZERO_IF_ROUNDED),
    _rows("as_strided", repeats=True, fails=MayFail.STORAGE),
    _rows("expand _reshape_alias", repeats=True),
    _rows("view view_as_complex", fails=MayFail.ALIGNMENT),
    _rows(
        "gather index_select take embedding embedding_renorm _embedding_bag _embedding_bag_forward_only",
        fails=MayFail.INDEX,
    ),
    _rows("max_unpool2d max_unpool3d searchsorted", fails=MayFail.INDEX),
    _rows("index _unsafe_index _unsafe_index_put", fails=MayFail.INDEX_OR_MASK),
    _rows("_index_put_impl", scatter_operands=("indices", "values"), fails=MayFail.INDEX_OR_MASK),
    _rows("index_put", scatter_operands=("indices", "values"), overwrites=True, fails=MayFail.INDEX_OR_MASK),
    _rows("index_add index_reduce", scatter_operands=("index", "source"), fails=MayFail.INDEX),
    _rows("scatter_add scatter_reduce", scatter_operands=("index", "src"), fails=MayFail.INDEX),
    _rows("index_copy put", scatter_operands=("index", "source"), overwrites=True, fails=MayFail.INDEX),
    _rows("index_fill", scatter_operands=("index",), overwrites=True, fails=MayFail.INDEX),
    _rows("scatter", scatter_operands=("index", "src"), overwrites=True, fails=MayFail.INDEX),
    _rows("masked_select", broadcasts=True),
    _rows("masked_scatter", overwrites=True, fails=MayFail.LENGTHS),
    _rows("repeat_interleave segment_reduce _ctc_loss _pack_padded_sequence", fails=MayFail.LENGTHS),
    _rows(
        "nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward one_hot",
        fails=MayFail.TARGET,
    ),
    _rows("bincount", fails=MayFail.NEGATIVE),
    _rows("fake_quantize_per_channel_affine_cachemask", fails=MayFail.ZERO_POINT),
    _rows("bernoulli multinomial poisson quantile nanquantile", fails=MayFail.PROBABILITY),
    _rows("binary_cross_entropy", decomposed=True, fails=MayFail.PROBABILITY),
    _rows("normal", fails=MayFail.DEVIATION),
    _rows("uniform random", fails=MayFail.INTERVAL),
    _rows("histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts", fails=MayFail.RANGE),
    _rows("_linalg_svd _linalg_eigh linalg_eig _linalg_eigvals linalg_lstsq linalg_pinv", fails=MayFail.CONVERGENCE),
    _rows(
        "cholesky cholesky_inverse lu_unpack linalg_lu_solve linalg_cholesky_ex linalg_inv_ex", fails=MayFail.SINGULAR
    ),
    _rows("linalg_lu_factor_ex linalg_ldl_factor_ex _linalg_solve_ex", fails=MayFail.SINGULAR),
    _rows(
        "_assert_async _functional_assert_async _assert_scalar _functional_assert_scalar _linalg_check_errors",
        fails=MayFail.CHECK,
    ),
)
