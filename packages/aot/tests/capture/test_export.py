"""`export_joint`: forward and backward as one graph."""

from __future__ import annotations

import pytest
import torch

from framesmith_aot import AotUnsupported, export_joint


def layers(x, w, b):
    hidden = torch.relu(x @ w + b)
    return hidden.sum(0), (hidden * hidden).mean()


def of_groups(x):
    first = x.sin()
    second = first * 2
    return first, second.exp(), torch.complex(first, second).abs().cumsum(0)


def partly(x, w):
    with torch.no_grad():
        scale = w.abs().max()
    return x / scale, (x * w).sum()


@pytest.mark.parametrize(
    ("fn", "shapes", "wanted"),
    [(layers, [(4, 3), (3, 5), (5,)], (1, 2)), (of_groups, [(6,)], (0,)), (partly, [(3,), (3,)], (0, 1))],
)
def test_joint_graph_computes_results_and_gradients(fn, shapes, wanted):
    torch.manual_seed(0)
    inputs = [torch.randn(shape, requires_grad=at in wanted) for at, shape in enumerate(shapes)]
    graph = export_joint(fn, inputs)
    results = fn(*inputs)
    with_gradient = [one for one in results if one.requires_grad]
    tangents = [torch.randn_like(one) for one in with_gradient]
    expected = torch.autograd.grad(with_gradient, [inputs[at] for at in wanted], tangents)
    found = graph(*(one.detach() for one in inputs), *tangents)
    torch.testing.assert_close(found[: len(results)], tuple(one.detach() for one in results))
    gradients = found[len(results) :]
    assert [at for at, one in enumerate(gradients) if one is not None] == list(wanted)
    torch.testing.assert_close(tuple(gradients[at] for at in wanted), expected)


def test_without_gradients_it_is_the_forward_graph():
    graph = export_joint(lambda x: {"a": x + 1}, (torch.ones(3),))
    assert torch.equal(graph(torch.zeros(3))[0], torch.ones(3))


def test_dynamic_sizes():
    graph = export_joint(lambda x: x.reshape(-1).cumsum(0), (torch.ones(2, 3, requires_grad=True),), dynamic=True)
    found, gradient = graph(torch.ones(4, 5), torch.ones(20))
    assert torch.equal(found, torch.arange(1.0, 21)) and gradient.shape == (4, 5)


@pytest.mark.parametrize(
    ("fn", "id"),
    [(lambda x: x.add_(1), "joint-mutation"), (lambda x: x[1:], "joint-alias"), (lambda x: x, "joint-alias")],
)
def test_effects_and_views_are_refused(fn, id):
    with pytest.raises(AotUnsupported) as caught:
        export_joint(fn, (torch.ones(3),))
    assert caught.value.id == id
