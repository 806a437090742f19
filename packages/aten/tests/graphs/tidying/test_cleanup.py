"""Tidying keeps effects, their number and their order."""

from __future__ import annotations

import pytest
import torch
from traced import targets, trace

from framesmith_aten.graphs.tidying.cleanup import canonicalise, eliminate_dead, merge_equal
from framesmith_aten.meta import PHASE

aten = torch.ops.aten


@pytest.fixture(scope="module")
def ops():
    with torch.library._scoped_library("aten_cleanup", "FRAGMENT") as made:
        for name in ("first", "second"):
            made.define(f"{name}(Tensor x) -> Tensor")
            made.impl(name, torch.empty_like, "Meta")
        yield torch.ops.aten_cleanup


def tidied(run, *inputs):
    gm = trace(run, *inputs)
    canonicalise(gm.graph)
    merge_equal(gm.graph)
    eliminate_dead(gm.graph)
    return targets(gm)


def test_unused_and_equal_pure_calls_go():
    assert tidied(lambda x: (x.exp(), x.sin() + x.sin())[1:], torch.ones(2)) == [aten.sin.default, aten.add.Tensor]


def test_effects_are_neither_dropped_nor_merged_nor_moved(ops):

    def run(x):
        ops.first(x)
        ops.second(x)
        torch.rand(2)
        ops.first(x)
        torch.rand(2)
        torch._assert_async(x.sum())
        torch._assert_async(x.sum())
        return (x.neg(),)

    effects = [t for t in tidied(run, torch.ones(2)) if t not in (aten.sum.default, aten.neg.default)]
    draw, check = aten.rand.default, aten._assert_async.default
    assert effects == [ops.first.default, ops.second.default, draw, ops.first.default, draw, check, check]


def test_what_may_raise_stays_in_the_forward_pass_only():
    gm = trace(lambda x: (x[torch.tensor([0])], x + 1)[1:], torch.ones(2))
    eliminate_dead(gm.graph)
    assert aten.index.Tensor in targets(gm)
    for node in gm.graph.nodes:
        PHASE.set(node, "backward")
    eliminate_dead(gm.graph)
    assert targets(gm) == [aten.add.Tensor]


def test_views_are_one_spelling():
    assert tidied(lambda x: (x.t().transpose(0, 1).t() + 1,), torch.ones(2, 3)) == [
        aten.permute.default,
        aten.add.Tensor,
    ]


def test_views_that_show_all_of_their_operand_go():
    def run(x):
        y = x.exp()
        same = y.expand(3, 4), y.view(3, 4), y[:], y.narrow(1, 0, 4), y.transpose(0, 0), y.as_strided((3, 4), (4, 1))
        return *[one + 1 for one in same], y[1:] + 1, y.expand(2, 3, 4) + 1, y.view(torch.int32) + 1, y.T.T + 1

    kept = [t for t in tidied(run, torch.ones(3, 4)) if t not in (aten.exp.default, aten.add.Tensor)]
    assert kept == [aten.slice.Tensor, aten.expand.default, aten.view.dtype]


def test_what_is_returned_is_the_operand_of_a_view_that_goes():
    gm = trace(lambda x: (lambda y: (y.view(3, 4).expand(3, 4), y[:], y + 1, y[1:]))(x.exp()), torch.ones(3, 4))
    canonicalise(gm.graph)
    gm.graph.lint()
    first, second, added, part = gm.graph.output_node().args[0]
    assert first is second is added.args[0] is part.args[0] and first.target is aten.exp.default


def test_what_is_taken_out_of_a_stack_is_what_was_stacked():
    def run(x, y):
        scalars, rows = torch.stack([x.sum(), y.sum()]), torch.stack([x, y], 1)
        first, second = scalars.unbind()
        return first + 1, second + 2, scalars[1] + 3, rows.select(1, -1) + 4

    gm = trace(run, torch.ones(3), torch.ones(3), lowers=lambda op: True)
    canonicalise(gm.graph)
    eliminate_dead(gm.graph)
    added = [aten.add.Tensor] * 3
    assert targets(gm) == [*[aten.sum.default] * 2, aten.stack.default, *added, aten.select.int, aten.add.Tensor]


def test_a_part_of_a_stack_with_other_strides_types_or_in_another_dimension_stays():
    def run(x, y):
        return torch.stack([x, y], 1)[1] + 1, torch.stack([x, y.double()])[0] + 1, torch.stack([x, y])[0]

    gm = trace(run, torch.ones(3), torch.ones(3), lowers=lambda op: True)
    canonicalise(gm.graph)
    eliminate_dead(gm.graph)
    assert targets(gm).count(aten.stack.default) == targets(gm).count(aten.select.int) == 3


def test_lazy_conjugates_are_no_identities():
    assert aten._conj.default in tidied(lambda x: (x.exp().conj() + 1,), torch.ones(2, dtype=torch.complex64))


def test_complex_numbers_with_zeros_of_other_signs_are_others():
    numbers = [complex(0.0, 0.0), complex(-0.0, 0.0), complex(0.0, -0.0), complex(0.0, 0.0)]
    assert tidied(lambda x: [x * number for number in numbers], torch.ones(2)) == [aten.mul.Tensor] * 3
