"""The first file to run: facts of operators, a traced graph, and a verdict on whether a call may fail."""

import torch

from framesmith_aten import failures, layouts, operators

aten = torch.ops.aten


def test_operators_say_what_they_do():
    x = torch.ones(4, 4)
    assert operators.is_view(aten.t.default) and not operators.is_view(aten.clone.default)
    assert operators.is_random(aten.rand_like.default)
    assert operators.written(aten.add_.Tensor, (x, 1), {})[0] is x


def test_calls_that_may_fail_say_why():
    x, index = torch.ones(4, 4), torch.tensor([2, 9])
    assert failures.why_may_fail(aten.index_select.default, (x, 0, index), {}) is not None
    assert failures.why_may_fail(aten.floor_divide.default, (index, 2), {}) is None


def test_layouts():
    x = torch.ones(4, 6)
    assert layouts.is_dense(x.t().shape, x.t().stride())
    assert layouts.overlaps_itself(x[:1].expand(3, 6))
