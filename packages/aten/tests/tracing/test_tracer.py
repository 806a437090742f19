"""The tracer's graph holds calls, constants and effects, and no questions about shapes."""

from __future__ import annotations

import pytest
import torch
from traced import targets, trace

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_aten.graphs.tidying.cleanup import eliminate_dead

aten = torch.ops.aten


@pytest.fixture(scope="module")
def library():
    calls = []
    with torch.library._scoped_library("aten_tracer", "FRAGMENT") as made:
        made.define("note(Tensor x) -> ()")
        made.define("count(Tensor x) -> int")
        made.define("both(Tensor x) -> (Tensor, int)")
        made.impl("note", lambda x: calls.append(float(x.sum())), "CPU")
        made.impl("note", lambda x: None, "Meta")
        made.impl("count", lambda x: 0, "Meta")
        made.impl("both", lambda x: (torch.empty_like(x), 0), "Meta")
        made.define("twins(Tensor x) -> (Tensor, Tensor)")
        made.impl("twins", lambda x: (x + 1, x + 2), "CPU")
        made.impl("twins", lambda x: (torch.empty_like(x),) * 2, "Meta")
        yield torch.ops.aten_tracer, calls


def test_the_graph_computes_what_ran():
    x, y = torch.randn(2, 3), torch.randn(3)

    def run(a, b):
        return torch.addmm(a.sum(0), a, torch.ones(3, 3)).t(), torch.split(b, 2)[1]

    for found, wanted in zip(trace(run, x, y)(x, y), run(x, y)):
        torch.testing.assert_close(found, wanted)


def test_every_node_has_its_value():
    gm = trace(lambda x: (x.max(0)[1] + torch.tensor(3),), torch.randn(2, 3))
    assert all("val" in node.meta for node in gm.graph.nodes if node.op != "output")


def test_constants_are_attributes_and_lifted_ones_are_copied():
    constant = torch.tensor([1.0, 2.0])
    gm = trace(lambda x: (aten.lift_fresh(constant).add_(x),), torch.ones(2))
    assert gm._constant0 is constant and targets(gm)[0] is aten.clone.default
    for _ in range(2):
        assert gm(torch.ones(2))[0].tolist() == [2.0, 3.0]
    assert constant.tolist() == [1.0, 2.0]


def test_numbers_that_torch_converts_are_tensors():
    """Of a batch of numbers, vmap converts a Python number to the batch's type by an operator of tensors."""
    for number in (2, 0.1, True):
        x = torch.arange(1.0, 5.0, dtype=torch.float64)
        gm = trace(lambda a: (torch.vmap(lambda b: b * number)(a),), x)
        copies = [node for node in gm.graph.nodes if node.target is aten._to_copy.default]
        assert all(isinstance(copy.args[0], torch.fx.Node) for copy in copies)
        assert torch.equal(gm(x)[0], x * number)


def test_questions_are_answered_and_not_recorded():
    gm = trace(lambda x: (x + x.device.index if x.is_cuda else x + len(x),), torch.ones(2))
    assert targets(gm) == [aten.add.Tensor]


def test_composites_are_decomposed_in_inference_mode():
    with torch.inference_mode():
        gm = trace(lambda x, w: (torch.nn.functional.linear(x, w),), torch.ones(2, 3), torch.ones(4, 3))
    assert aten.linear.default not in targets(gm) and aten.mm.default in targets(gm)


def test_rules_apply_and_may_decline():

    def halve(x):
        return x * 0.5 if x.dim() == 1 else NotImplemented

    rules = {aten.sin.default: halve}
    assert targets(trace(lambda x: (x.sin(),), torch.ones(2), rules=rules)) == [aten.mul.Tensor]
    assert targets(trace(lambda x: (x.sin(),), torch.ones(2, 2), rules=rules)) == [aten.sin.default]


def test_operators_that_return_nothing_are_recorded_and_kept_in_order(library):
    ops, calls = library

    def run(x):
        ops.note(x)
        torch._assert_async(x.sum() > 0)
        y = x + 1
        ops.note(y)
        return (y,)

    gm = trace(run, torch.ones(2))
    eliminate_dead(gm.graph)
    gm.recompile()
    noted = [t for t in targets(gm) if t in (ops.note.default, aten._assert_async.default)]
    assert noted == [ops.note.default, aten._assert_async.default, ops.note.default]
    calls.clear()
    gm(torch.ones(2))
    assert calls == [2.0, 4.0]


@pytest.mark.parametrize("name", ["count", "both"])
def test_values_of_custom_operators_are_not_baked_in(library, name):
    with pytest.raises(TraceUnsupported, match="unknown-value"):
        trace(lambda x: (x + 0 * (getattr(library[0], name)(x) is None),), torch.ones(2))


def test_what_cannot_be_recorded_is_refused():
    x, stat = torch.ones(2, 3), torch.ones(3)
    with pytest.raises(TraceUnsupported, match="hidden-mutation"):
        trace(lambda x, m, v: aten.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5)[:1], x, stat, stat + 0)
    with pytest.raises(TraceUnsupported, match="generator"):
        trace(lambda x: (torch.rand(2, generator=torch.Generator()) + x,), stat[:2])
    with pytest.raises(TraceUnsupported, match="outside-storage"):
        trace(lambda x: (x.as_strided((9, 9), (9, 1)),), x)
    other = new_fake_mode().from_tensor(x)
    with pytest.raises(TraceUnsupported, match="unknown-tensor"):
        trace(lambda x: (other,), x)


def test_in_place_calls_are_recorded_as_they_are():
    gm = trace(lambda x: (x.clone().add_(1).mul(2),), torch.ones(2))
    assert targets(gm) == [aten.clone.default, aten.add_.Tensor, aten.mul.Tensor]
    assert gm(torch.ones(2))[0].tolist() == [4.0, 4.0]


def test_a_rule_that_gives_one_result_twice_stands_for_two(library):
    """torch's rule for the derivative of oneDNN's LSTM does: gradients of two biases were one tensor."""
    operators, _ = library
    gm = trace(lambda x: operators.twins(x), torch.ones(2))
    first, second = gm(torch.ones(2))
    assert (first.tolist(), second.tolist()) == ([2.0, 2.0], [3.0, 3.0])
