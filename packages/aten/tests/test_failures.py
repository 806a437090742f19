"""Each row that says an operator can fail has a call that does, and that fake tensors take."""

from __future__ import annotations

import contextlib

import pytest
import torch
from op_database import Watch
from torch._subclasses.fake_tensor import DataDependentOutputException

from framesmith_aten import failures, operators
from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_aten.table import TABLE
from framesmith_guards.needs import is_missing
from framesmith_guards.torch_adapter import aten

NAN = float("nan")
SQUARE = torch.rand(3, 3) + torch.eye(3)
FAR = torch.tensor([99, 99, 99])
NEAR = torch.tensor([0, 1, 2])
RANGE = torch.arange(3)
PIVOTS = torch.tensor([9, 9, 9], dtype=torch.int32)
FALSE = torch.tensor(False)
WIDE = torch.full((3, 3), 99)
IMAGE = torch.rand(1, 1, 2, 2)
ODD = torch.rand(5)[1:].view(2, 2)

#: Operator -> a call that raises on real tensors.
FAILING = {
    "remainder": (aten.remainder.Tensor, RANGE, RANGE),
    "fmod": (aten.fmod.Scalar, RANGE, 0),
    "div": (aten.div.Tensor_mode, RANGE, RANGE, {"rounding_mode": "floor"}),
    "floor_divide": (aten.floor_divide.default, RANGE, RANGE),
    "as_strided": (aten.as_strided.default, SQUARE, [9, 9], [9, 1]),
    "view": (aten.view.dtype, ODD, torch.int64),
    "view_as_complex": (aten.view_as_complex.default, ODD),
    "gather": (aten.gather.default, SQUARE, 0, WIDE),
    "index_select": (aten.index_select.default, SQUARE, 0, FAR),
    "take": (aten.take.default, SQUARE, FAR),
    "index": (aten.index.Tensor, SQUARE, [FAR]),
    "_unsafe_index": (aten._unsafe_index.Tensor, SQUARE, [FAR]),
    "index_put": (aten.index_put.default, SQUARE, [WIDE > 0], torch.ones(2)),
    "_unsafe_index_put": (aten._unsafe_index_put.default, SQUARE, [FAR], torch.ones(3, 3)),
    "_index_put_impl": (aten._index_put_impl.default, SQUARE, [FAR], torch.ones(3, 3)),
    "index_add": (aten.index_add.default, SQUARE, 0, FAR, SQUARE),
    "index_copy": (aten.index_copy.default, SQUARE, 0, FAR, SQUARE),
    "index_fill": (aten.index_fill.int_Scalar, SQUARE, 0, FAR, 1),
    "index_reduce": (aten.index_reduce.default, SQUARE, 0, FAR, SQUARE, "mean"),
    "put": (aten.put.default, SQUARE, FAR, SQUARE[0]),
    "scatter": (aten.scatter.value, SQUARE, 0, WIDE, 1.0),
    "scatter_add": (aten.scatter_add.default, SQUARE, 0, WIDE, SQUARE),
    "scatter_reduce": (aten.scatter_reduce.two, SQUARE, 0, WIDE, SQUARE, "sum"),
    "masked_scatter": (aten.masked_scatter.default, SQUARE, WIDE > 0, torch.ones(1)),
    "repeat_interleave": (aten.repeat_interleave.Tensor, torch.tensor([1, -2]), {"output_size": 3}),
    "segment_reduce": (aten.segment_reduce.default, SQUARE, "sum", {"lengths": torch.tensor([5])}),
    "embedding": (aten.embedding.default, SQUARE, FAR),
    "embedding_renorm": (aten.embedding_renorm_.default, SQUARE, FAR, 1.0, 2.0),
    "_embedding_bag": (aten._embedding_bag.default, SQUARE, FAR, NEAR),
    "_embedding_bag_forward_only": (aten._embedding_bag_forward_only.default, SQUARE, FAR, NEAR),
    "max_unpool2d": (aten.max_unpool2d.default, IMAGE, torch.full((1, 1, 2, 2), 999), [4, 4]),
    "max_unpool3d": (
        aten.max_unpool3d.default, IMAGE[None], torch.full((1, 1, 1, 2, 2), 999), [1, 4, 4], [1, 2, 2], [0, 0, 0],
    ),
    "searchsorted": (aten.searchsorted.Tensor, SQUARE, SQUARE, {"sorter": WIDE}),
    "nll_loss_forward": (aten.nll_loss_forward.default, SQUARE, FAR, None, 1, -100),
    "nll_loss2d_forward": (aten.nll_loss2d_forward.default, IMAGE, torch.full((1, 2, 2), 9), None, 1, -100),
    "multi_margin_loss": (aten.multi_margin_loss.default, SQUARE, FAR),
    "multilabel_margin_loss_forward": (aten.multilabel_margin_loss_forward.default, SQUARE, WIDE, 1),
    "one_hot": (aten.one_hot.default, NEAR, 2),
    "fake_quantize_per_channel_affine_cachemask": (
        aten.fake_quantize_per_channel_affine_cachemask.default, SQUARE, torch.ones(3), NEAR.int() + 900, 0, 0, 255
    ),
    "bernoulli": (aten.bernoulli.default, SQUARE + 5),
    "multinomial": (aten.multinomial.default, -SQUARE, 2),
    "poisson": (aten.poisson.default, -SQUARE - 1),
    "normal": (aten.normal.Tensor_Tensor, SQUARE, -SQUARE - 1),
    "binary_cross_entropy": (aten.binary_cross_entropy.default, SQUARE + 5, SQUARE),
    "quantile": (aten.quantile.default, SQUARE, torch.tensor(3.0)),
    "nanquantile": (aten.nanquantile.default, SQUARE, torch.tensor(3.0)),
    "uniform": (aten.uniform_.default, SQUARE, 2.0, 1.0),
    "random": (getattr(aten.random_, "from"), SQUARE, 3, 2),
    "histc": (aten.histc.default, SQUARE * NAN),
    "histogram": (aten.histogram.bin_ct, SQUARE * NAN, 3),
    "_histogramdd_bin_edges": (aten._histogramdd_bin_edges.default, SQUARE * NAN, [3, 3, 3]),
    "_histogramdd_from_bin_cts": (aten._histogramdd_from_bin_cts.default, SQUARE * NAN, [3, 3, 3]),
    "_linalg_svd": (aten._linalg_svd.default, SQUARE * NAN),
    "_linalg_eigh": (aten._linalg_eigh.default, SQUARE * NAN),
    "linalg_eig": (aten.linalg_eig.default, SQUARE * NAN),
    "linalg_pinv": (aten.linalg_pinv.atol_rtol_tensor, SQUARE * NAN),
    "cholesky": (aten.cholesky.default, -SQUARE),
    "cholesky_inverse": (aten.cholesky_inverse.default, SQUARE * 0),
    "lu_unpack": (aten.lu_unpack.default, SQUARE, PIVOTS),
    "linalg_lu_solve": (aten.linalg_lu_solve.default, SQUARE, PIVOTS, SQUARE),
    "linalg_cholesky_ex": (aten.linalg_cholesky_ex.default, -SQUARE, {"check_errors": True}),
    "linalg_inv_ex": (aten.linalg_inv_ex.default, SQUARE * 0, {"check_errors": True}),
    "linalg_lu_factor_ex": (aten.linalg_lu_factor_ex.default, SQUARE * 0, {"check_errors": True}),
    "linalg_ldl_factor_ex": (aten.linalg_ldl_factor_ex.default, SQUARE * 0, {"check_errors": True}),
    "_linalg_solve_ex": (aten._linalg_solve_ex.default, SQUARE * 0, SQUARE, {"check_errors": True}),
    "_assert_async": (aten._assert_async.default, FALSE),
    "_functional_assert_async": (aten._functional_assert_async.msg, FALSE, "no", torch.zeros(())),
    "_assert_scalar": (aten._assert_scalar.default, False, "no"),
    "_functional_assert_scalar": (aten._functional_assert_scalar.default, False, "no", torch.zeros(())),
    "_linalg_check_errors": (aten._linalg_check_errors.default, PIVOTS[0], "f", {"is_matrix": True}),
}  # fmt: skip

#: The rows of operators that this torch does not have (`cholesky`, from 2.15 on).
GONE = {name for name, (op, *_) in FAILING.items() if is_missing(op)}
FAILING = {name: call for name, call in FAILING.items() if name not in GONE}

#: Fail on lengths or shapes that fake tensors refuse to make up, so that no graph of fixed shapes holds them.
NOT_ON_FAKES = {"_ctc_loss", "bincount", "_pack_padded_sequence", "linalg_lstsq"}

#: Have their check in the composite operator above them, and end the process without it.
CHECKED_ABOVE = {"_linalg_eigvals"}


def split(call):
    op, *args = call
    kwargs = args.pop() if isinstance(args[-1], dict) else {}
    return op, [a.clone() if isinstance(a, torch.Tensor) and a is not ODD else a for a in args], kwargs


def test_only_what_torch_has_removed_is_gone():
    assert {"cholesky"} >= GONE


def test_every_row_has_a_failing_call():
    assert {name for name in TABLE if TABLE[name].fails} == FAILING.keys() | GONE | NOT_ON_FAKES | CHECKED_ABOVE


@pytest.mark.parametrize("name", FAILING)
def test_the_call_fails_on_real_tensors_only(name):
    op, args, kwargs = split(FAILING[name])
    assert operators.op_name(op).removesuffix("_") == name
    assert failures.why_may_fail(op, args, kwargs) == TABLE[name].fails
    with pytest.raises((RuntimeError, IndexError)):
        op(*args, **kwargs)
    mode = new_fake_mode()
    fakes = [
        mode.from_tensor(a) if isinstance(a, torch.Tensor) else [mode.from_tensor(i) for i in a]
        if isinstance(a, list) and isinstance(a[0], torch.Tensor) else a
        for a in args
    ]  # fmt: skip
    named = {key: mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for key, a in kwargs.items()}
    assert failures.may_fail(op, fakes, named)
    if not name.endswith("_scalar") and args[0] is not ODD:  # numbers, and where fixed sizes begin, are known
        with mode, contextlib.suppress(DataDependentOutputException):  # as `quantile` of 2.11, it asks for the data
            op(*fakes, **named)


@pytest.mark.parametrize(
    "call",
    [
        (aten.floor_divide.default, RANGE, 2),
        (aten.floor_divide.default, SQUARE, SQUARE),
        (aten.div.Tensor, RANGE, RANGE),
        (aten.div.Tensor_mode, RANGE, RANGE, {"rounding_mode": None}),
        (aten.remainder.Scalar, RANGE, 2.0),
        (aten.index.Tensor, SQUARE, [SQUARE > 0]),
        (aten.index_put.default, SQUARE, [SQUARE > 0], torch.ones(())),
        (aten.bernoulli.p, SQUARE, 0.5),
        (aten.normal_.default, SQUARE, 0.0, 1.0),
        (aten.uniform_.default, SQUARE, 0.0, 1.0),
        (aten.random_.to, SQUARE, 4),
        (aten.linalg_inv_ex.default, SQUARE * 0),
        (aten.as_strided.default, SQUARE, [2, 2], [3, 1], 4),
        (aten.as_strided.default, SQUARE, [0, 9], [9, 1]),
        (aten.view.default, ODD, [4]),
        (aten.view.dtype, ODD, torch.int32),
        (aten.view.dtype, ODD, torch.bfloat16),
        (aten.add.Tensor, SQUARE, 1e30),
        (aten.linalg_vector_norm.default, SQUARE, float("inf")),
        (aten.mm.default, SQUARE, SQUARE),
    ],
    ids=lambda call: str(call[0]),
)
def test_a_call_that_cannot_fail(call):
    op, args, kwargs = split(call)
    assert failures.why_may_fail(op, args, kwargs) is None
    op(*args, **kwargs)


@pytest.mark.parametrize("masks", [[torch.ones(4, 3) > 0], [None, torch.ones(2) > 0], [SQUARE > 0, torch.ones(3) > 0]])
def test_a_mask_that_does_not_fit_fails_though_fakes_take_it(masks):
    call = (aten.index_put.default, SQUARE, masks, torch.ones(()))
    assert failures.why_may_fail(*split(call)) is not None
    with pytest.raises((RuntimeError, IndexError)):
        call[0](*call[1:])


def test_custom_operators_may_fail():
    with torch.library._scoped_library("aten_failures", "DEF") as library:
        library.define("any(Tensor x) -> Tensor")
        assert failures.may_fail(torch.ops.aten_failures.any.default, (SQUARE,), {})


def test_recorded_calls_are_asked_about():
    found = []

    def seen(op, args, kwargs, run):
        found.append(failures.why_may_fail(op, args, kwargs))
        return run()

    with Watch(seen):
        torch.nn.functional.cross_entropy(SQUARE, NEAR)
        torch.linalg.inv(SQUARE)
    assert TABLE["nll_loss_forward"].fails in found and TABLE["_linalg_check_errors"].fails in found
