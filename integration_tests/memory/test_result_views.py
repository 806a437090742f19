"""Results that are views of memory that nobody else sees: they are views in a compiled function, too."""

import pytest
import torch
import torch.nn.functional as F

import framesmith

CASES = {
    "transposed": lambda x: (x * 2).t(),
    "transposed sum": lambda x: x.nansum(0)[None].t(),
    "with a dimension": lambda x: (x * 2)[None],
    "leading rows": lambda x: (x * 2)[:2],
    "rows in the middle": lambda x: (x * 2)[1:3],
    "one chunk": lambda x: (x * 2).chunk(2)[0],
    "reshaped": lambda x: (x * 2).reshape(-1),
    "reshaped to a copy": lambda x: (x * 2).t().reshape(-1),
    "detached": lambda x: (x * 2).detach(),
    "the same as a new object": lambda x: (x * 2)[...],
    "an input as a new object": lambda x: x.t()[...],
    "detached as a new object": lambda x: (x * 2).detach()[...],
    "beside its base": lambda x: (lambda y: (y, y.t()))(x * 2),
    "what is read, too": lambda x: (lambda y: (y.t(), y.sum()))(x * 2),
    "changed before": lambda x: (lambda y: (y.t(), y.mul_(3))[0])(x * 2),
    "changed as a view": lambda x: (x * 2).t().mul_(3),
    "in no_grad": lambda x: torch.no_grad()(lambda: (x * 2).t())(),
    "scores": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "inner": lambda x: torch.inner(x, x),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, ([1], [1])),
    "bilinear": lambda x: F.bilinear(x, x, x[None]),
    "linear of batches": lambda x: F.linear(x[None], x),
    "matmul of batches": lambda x: x[None].expand(3, -1, -1) @ x.t()[None].expand(3, -1, -1),
    "row times matrix": lambda x: x[0] @ x,
    "batches times column": lambda x: x[None].expand(3, -1, -1) @ x[0],
    "max_pool1d": lambda x: F.max_pool1d(x[None], 1),
    "avg_pool1d": lambda x: F.avg_pool1d(x[None], 1),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "conv1d": lambda x: F.conv1d(x[None], x[None].mT[..., :1]),
}


def outcome(function, size, requires_grad, act):
    """Return a result's kind, and the outcome of acting on it: errors by type and first line, gradients."""
    x = torch.arange(1.0, size * size + 1).view(size, size).sin().requires_grad_(requires_grad)
    results = function(x)
    result = results[0] if isinstance(results, tuple) else results
    seen = [result._is_view(), None if result._base is None else result._base.shape, result.requires_grad]
    try:
        act(result)
        if not result.requires_grad:
            return seen, [result]
        result.sin().sum().backward()
    except RuntimeError as error:
        return [*seen, str(error).split(".")[0]], []
    return seen, [result.detach(), x.grad]


def change_base(result):
    with torch.no_grad():
        (result._base if result._is_view() else result).add_(1)


ACTIONS = {
    "nothing": lambda result: None,
    "detach_": lambda result: result.detach_(),
    "in place": lambda result: result.mul_(2),
    "its base": change_base,
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_results_are_views_as_in_eager_mode(case, dynamic, requires_grad):
    compiled = framesmith.compile(CASES[case], dynamic=dynamic, strict=True)
    for act in ACTIONS.values():
        for size in (4, 6):
            ours, values = outcome(compiled, size, requires_grad, act)
            theirs, expected = outcome(CASES[case], size, requires_grad, act)
            assert ours == theirs
            torch.testing.assert_close(values, expected)
