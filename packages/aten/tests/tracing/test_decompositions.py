"""Decompositions give the operators' values; a backend's own operators stay undecomposed; checks are restored."""

from __future__ import annotations

import pytest
import torch
from overloads import ROWS, overloads
from traced import targets, trace

from framesmith_aten import operators
from framesmith_aten.table import TABLE
from framesmith_aten.tracing.decompositions import decomposition_of, lowers_nothing

aten = torch.ops.aten
F = torch.nn.functional

DECOMPOSED = [name for name in ROWS if TABLE[name].decomposed]


@pytest.mark.parametrize("name", DECOMPOSED)
def test_operators_marked_decomposed_have_a_rule_unless_a_backend_lowers_them(name):
    found = [op for op in overloads(name) if decomposition_of(op, lowers_nothing) is not None]
    assert found
    assert all(decomposition_of(op, lambda op: True) is None for op in found)


def test_writing_forms_are_left_to_functionalisation():
    assert decomposition_of(aten.masked_fill_.Scalar, lowers_nothing) is None


@pytest.mark.parametrize(
    "run",
    [
        F.silu, F.mish, F.hardswish, F.celu, F.logsigmoid, torch.frac, lambda x: x.masked_fill(x > 0, 2.0),
        lambda x: torch.lerp(x, x.exp(), 0.3), lambda x: F.huber_loss(x, x * 2), lambda x: torch.stack([x, x], 1),
        lambda x: torch.addcdiv(x, x, x.exp()), lambda x: aten.gelu_backward(x, x),
    ],
)  # fmt: skip
def test_values_do_not_depend_on_it(run):
    x = torch.randn(5, 3)
    decomposed, whole = (trace(lambda v: (run(v),), x, lowers=which) for which in (lowers_nothing, lambda op: True))
    assert len(targets(decomposed)) > len(targets(whole))
    torch.testing.assert_close(decomposed(x)[0], run(x))
    torch.testing.assert_close(whole(x)[0], run(x))


def test_composites_are_always_decomposed():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    with torch.inference_mode():
        gm = trace(lambda x, w: (F.linear(x, w),), x, w, lowers=lambda op: True)
    assert aten.mm.default in targets(gm)


def test_a_network_in_inference_mode_keeps_its_dropout():
    """torch's decomposition of `lstm` in Python has none."""
    lstm = torch.nn.LSTM(3, 3, num_layers=2, dropout=0.5)

    def run(x, state, *weights):
        return torch.lstm(x, (state, state), weights, True, 2, 0.5, True, False, False)[:1]

    with torch.inference_mode():
        weights = [weight.detach() for weight in lstm.parameters()]
        gm = trace(run, torch.randn(4, 2, 3), torch.zeros(2, 2, 3), *weights)
    assert any(operators.is_random(target) for target in targets(gm))


@pytest.mark.parametrize("lowers", [lowers_nothing, lambda op: True])
def test_the_check_of_eigenvalues_is_put_back(lowers):
    gm = trace(lambda x: (torch.linalg.eigvals(x),), torch.eye(2), lowers=lowers)
    assert gm(torch.eye(2))[0].tolist() == [1, 1]
    with pytest.raises(RuntimeError):
        gm(torch.eye(2) * float("nan"))


def test_the_check_of_probabilities_is_put_back():
    gm = trace(lambda p: (F.binary_cross_entropy(p, p),), torch.full((3,), 0.5))
    with pytest.raises(RuntimeError):
        gm(torch.full((3,), 2.0))


POINTWISE = {
    "silu": F.silu, "mish": F.mish, "hardswish": F.hardswish, "celu": F.celu, "logsigmoid": F.logsigmoid,
    "frac": torch.frac, "softplus": F.softplus, "clamp": lambda x: x.clamp_min(0.1),
    "lerp": lambda x: torch.lerp(x, x.exp(), 0.3), "addcmul": lambda x: torch.addcmul(x, x, x.exp()),
    "loss": lambda x: F.huber_loss(x, x * 2, reduction="none"), "gelu": lambda x: aten.gelu_backward(x, x),
    "entropy": lambda x: F.binary_cross_entropy(x, x, reduction="none"), "fill": lambda x: x.masked_fill(x > 0, 2.0),
}  # fmt: skip
LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 1),
    "permuted": lambda x: x.permute(2, 0, 1),
    "channels last": lambda x: x[None].to(memory_format=torch.channels_last),
    "expanded": lambda x: x[:1].expand(x.shape),
    "with gaps": lambda x: x[..., ::2],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", POINTWISE)
def test_results_lie_as_the_operators_lie(name, layout):
    for size in ((3, 4, 6), (30, 20, 10)):
        x = LAYOUTS[layout](torch.rand(size))
        for lowers in (lowers_nothing, lambda op: True):
            gm = trace(lambda v: (POINTWISE[name](v),), x, lowers=lowers)
            eager = POINTWISE[name](x)
            assert gm(x)[0].stride() == eager.stride()
            assert gm.graph.output_node().args[0][0].meta["val"].stride() == eager.stride()


MANY = {
    "add": lambda xs: torch._foreach_add(xs, xs, alpha=3),
    "numbers": lambda xs: torch._foreach_mul(xs, [2.0, 3.0]),
    "named": lambda xs: torch._foreach_addcdiv(xs, xs, xs, value=0.5),
    "lerp": lambda xs: torch._foreach_lerp(xs, torch._foreach_exp(xs), 0.3),
    "base": lambda xs: torch._foreach_pow(2.0, xs),
    "tensor": lambda xs: torch._foreach_mul(xs, torch.tensor(1.5)),
    "greatest": lambda xs: torch._foreach_maximum(torch._foreach_neg(xs), 0.1),
    "least": lambda xs: torch._foreach_minimum(xs, [0.7, 0.8]),
    "copies": lambda xs: aten._foreach_copy([x * 2 for x in xs], xs),
    "clones": lambda xs: torch._foreach_clone(xs),
    "norms": lambda xs: torch._foreach_norm(xs, 1),
    "integers": lambda xs: torch._foreach_div([x.long() for x in xs], 2),
}


@pytest.mark.parametrize("name", MANY)
def test_many_tensors_are_taken_one_by_one(name):
    x, y = torch.rand(3) + 0.5, torch.rand(2, 2) + 0.5
    decomposed, whole = (
        trace(lambda v, w: tuple(MANY[name]([v, w])), x, y, lowers=choice)
        for choice in (lowers_nothing, lambda op: True)
    )
    for found, kept, wanted in zip(decomposed(x, y), whole(x, y), MANY[name]([x, y]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-7, atol=0)  # lerp of one tensor may round another way
        torch.testing.assert_close(kept, wanted, rtol=0, atol=0)
    assert not any("_foreach_" in str(node.target) for node in decomposed.graph.nodes)
    assert any("_foreach_" in str(node.target) for node in whole.graph.nodes)


def test_lists_of_other_lengths_are_refused_by_the_operator_itself():
    with pytest.raises(RuntimeError, match="same number of tensors"):
        trace(lambda v: tuple(torch._foreach_add([v, v], [v])), torch.rand(3), lowers=lowers_nothing)
