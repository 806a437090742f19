"""Facts about operators against what the operators do."""

from __future__ import annotations

import pytest
import torch
from op_database import run_samples

from framesmith_aten import operators
from framesmith_aten.nested import tensors_in

aten = torch.ops.aten


@pytest.fixture(scope="module")
def library():
    with torch.library._scoped_library("aten_facts", "DEF") as made:
        made.define("pure(Tensor x) -> Tensor")
        made.define("note(Tensor x) -> ()")
        made.define("count(Tensor x) -> int")
        made.define("write(Tensor(a!) x, Tensor y) -> ()")
        made.define("index(Tensor x) -> Tensor")
        yield torch.ops.aten_facts


def snapshot(tensors):
    return [t.clone() if t.layout is torch.strided and not t.is_quantized else None for t in tensors]


def changed(tensor, before):
    if before is None or tensor.shape != before.shape:
        return before is not None
    return not torch.equal(tensor.view(-1).nan_to_num(), before.view(-1).nan_to_num())


def test_the_operator_database_agrees():
    wrong, calls = [], 0

    def seen(op, args, kwargs, run):
        nonlocal calls
        calls += 1
        inputs = list(tensors_in([*args, *kwargs.values()]))
        before, generator = snapshot(inputs), torch.get_rng_state()
        out = run()
        allowed = [id(tensor) for tensor in operators.written(op, args, kwargs)]
        uninitialised = op._opname.startswith(("empty", "new_empty", "resize"))
        for tensor, copy in zip(inputs, before):
            if (
                id(tensor) not in allowed
                and not uninitialised
                and copy is not None
                and copy.numel()
                and changed(tensor.contiguous(), copy.contiguous())
            ):
                wrong.append(f"{op} writes")
        if not torch.equal(generator, torch.get_rng_state()) and not operators.is_random(op):
            wrong.append(f"{op} draws random numbers")
        storages = {t.untyped_storage()._cdata for t in inputs if t.layout is torch.strided and t.numel()}
        for result in tensors_in(out):
            shares = result.layout is torch.strided and result.untyped_storage()._cdata in storages
            treated_as_fresh = op._opname == "unsafe_split"  # by torch itself, which is what is unsafe
            if shares and not treated_as_fresh and not operators.is_view(op) and not operators.is_mutable(op):
                wrong.append(f"{op} shows its argument's memory")
        if any(True for _ in tensors_in(out)) and not operators.returns_tensors(op):
            wrong.append(f"{op} returns tensors")
        return out

    run_samples(seen, 4)
    assert not wrong, sorted(set(wrong))
    assert calls > 5000


def test_declared_writes():
    x, y = torch.zeros(2), torch.ones(2)
    assert operators.written(aten.add_.Tensor, (x, y), {}) == [x]
    assert operators.written(aten.add.out, (x, y), {"out": x})[0] is x
    assert operators.written(aten._foreach_add_.Scalar, ([x, y], 1), {}) == [x, y]
    assert operators.written(aten.add.Tensor, (x, y), {}) == []
    assert operators.written_arguments(aten.sort.values) == ("values", "indices")


@pytest.mark.parametrize("name", ["native_batch_norm", "batch_norm", "instance_norm", "_batch_norm_impl_index"])
def test_running_statistics_are_written_in_training(name):
    op = getattr(aten, name).default
    for training in (True, False):
        x, mean, var = torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3)
        args = [x, None, None, mean, var, training, 0.1, 1e-5] + ([False] * (len(op._schema.arguments) - 8))
        op(*args)
        said = operators.written(op, args, {})
        assert bool(said) == bool(mean.any())
        assert not said or (said[0] is mean and said[1] is var)


def test_update_of_statistics_is_written():
    x, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    assert len(operators.written(aten.batch_norm_update_stats.default, (x, mean, var, 0.1), {})) == 2
    aten.batch_norm_update_stats(x, mean, var, 0.1)
    assert mean.any()


def test_effects():
    assert not operators.is_effect(aten.add.Tensor)
    assert not operators.is_effect(aten.equal.default)
    for op in (aten.rand_like.default, aten.add_.Tensor, aten._assert_async.msg, aten.native_batch_norm.default):
        assert operators.is_effect(op)
    assert operators.is_effect(print)


def test_custom_operators_are_effects(library):
    for op in (library.pure.default, library.note.default, library.count.default, library.write.default):
        assert operators.is_custom(op) and operators.is_effect(op)
    assert operators.returns_tensors(library.pure.default)
    assert not operators.returns_tensors(library.note.default)
    assert not operators.returns_tensors(library.count.default)
    x = torch.zeros(1)
    assert operators.written(library.write.default, (x, x + 1), {}) == [x]


def test_the_table_is_not_about_a_namesake(library):
    assert operators.row(library.index.default).fails is None


def test_sizes_are_read_where_masks_choose_or_no_number_is_given():
    x, mask, indices = torch.zeros(3, 4), torch.ones(3, dtype=torch.bool), torch.arange(3)
    for op, args, kwargs in (
        (aten.nonzero.default, (x,), {}),
        (aten.index.Tensor, (x, [None, torch.ones(4, dtype=torch.uint8)]), {}),
        (aten.index.Tensor, (x, [indices, mask]), {}),
        (aten.index_put.default, (x, [mask], x[0]), {}),
        (aten.repeat_interleave.Tensor, (indices,), {}),
    ):
        assert operators.reads_sizes(op, args, kwargs)
    for op, args, kwargs in (
        (aten.index.Tensor, (x, [None, indices]), {}),
        (aten.index_put.default, (x, [indices], x[0]), {}),
        (aten.repeat_interleave.Tensor, (indices,), {"output_size": 3}),
        (aten.mul.Tensor, (x, x), {}),
    ):
        assert not operators.reads_sizes(op, args, kwargs)


def test_checks_by_kernels_of_a_device_and_checks_on_the_host(library):
    assert operators.is_check_by_device(aten._assert_async.default)
    assert operators.is_check_by_device(aten._assert_async.msg)
    for op in (aten._linalg_check_errors.default, aten._assert_scalar.default, aten.add_.Tensor, library.note.default):
        assert not operators.is_check_by_device(op)


def test_factories():
    for op in (aten.full.default, aten.zeros_like.default, aten.arange.start_step, aten.new_full.default):
        assert operators.is_factory(op)
    for op in (aten.rand.default, aten.clone.default, aten.add.Tensor, aten.randn_like.default):
        assert not operators.is_factory(op)


def test_composites_are_recognised():
    assert operators.is_composite(aten.linear.default) and operators.is_composite(aten.matmul.default)
    assert not operators.is_composite(aten.mm.default)


def test_changes_of_metadata():
    assert operators.changes_metadata(aten.squeeze_.dim) and operators.changes_metadata(aten.resize_.default)
    assert not operators.changes_metadata(aten.add_.Tensor)


def test_the_view_that_a_scatter_writes_to() -> None:
    tensor, aten = torch.arange(6.0).view(2, 3), torch.ops.aten
    calls = [
        (aten.select_scatter.default, torch.zeros(2), (1, 2)),
        (aten.slice_scatter.default, torch.zeros(2, 2), (1, 0, 3, 2)),
        (aten.diagonal_scatter.default, torch.zeros(2), (1,)),
        (aten.as_strided_scatter.default, torch.zeros(2), ((2,), (3,), 1)),
    ]
    for scatter, values, where in calls:
        view, copy = operators.view_written(scatter), tensor.clone()
        assert view is not None
        view(copy, *where).copy_(values)
        assert torch.equal(copy, scatter(tensor, values, *where))
    for other in (aten.masked_scatter.default, aten.scatter.src, aten.add.Tensor, torch.add):
        assert operators.view_written(other) is None
