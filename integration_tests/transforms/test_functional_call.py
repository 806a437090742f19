"""`torch.func.functional_call` and `stack_module_state` in compiled functions and under transforms, against eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

import framesmith
from integration_tests.transforms.transforms import Programs, Tensor, outcome, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8, bias=False)
        self.b = nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh())


LAYER, TIED = nn.Linear(8, 8), Tied()
NORM = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
PROGRAMS = Programs()
simple = PROGRAMS.simple


def values(module: nn.Module, *, needs: bool = True) -> dict[str, Tensor]:
    return {name: torch.randn_like(one).requires_grad_(needs) for name, one in module.named_parameters()}


def buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in module.named_buffers()}


def stacked(count: int) -> dict[str, Tensor]:
    return stack_module_state([nn.Linear(8, 8) for _ in range(count)])[0]


def layer(p: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(LAYER, p, (x,))


def adapted(p: dict[str, Tensor], x: Tensor) -> Tensor:
    """One step of gradient descent, then the loss of it: MAML's inner loop."""
    gradients = grad(lambda p: layer(p, x).square().mean())(p)
    return layer({name: one - 0.1 * gradients[name] for name, one in p.items()}, x)


def refused(p: dict[str, Tensor], x: Tensor) -> Tensor:
    try:
        return functional_call(LAYER, {"other": x}, (x,), strict=True)
    except RuntimeError as error:
        return x * len(str(error))


simple("layer", lambda p, x: layer(p, x).sin(), lambda: values(LAYER), lambda: t(8))
simple("some of them", lambda w, x: layer({"weight": w}, x), lambda: t(8, 8), lambda: t(8))
simple("keywords", lambda p, x: functional_call(LAYER, p, kwargs={"input": x}), lambda: values(LAYER), lambda: t(8))
simple("no tuple", lambda p, x: functional_call(LAYER, p, x), lambda: values(LAYER), lambda: t(8))
simple(
    "buffers",
    lambda p, b, x: (functional_call(NORM, (p, b), (x,)), b),
    lambda: values(NORM),
    lambda: buffers(NORM),
    lambda: t(4, 8),
)
simple("tied", lambda w, x: functional_call(TIED, {"a.weight": w}, (x,)), lambda: t(8, 8), lambda: t(8))
simple(
    "untied",
    lambda w, x: functional_call(TIED, {"a.weight": w}, (x,), tie_weights=False),
    lambda: t(8, 8),
    lambda: t(8),
)
simple("grad", grad(lambda p, x: layer(p, x).square().sum()), lambda: values(LAYER), lambda: t(8))
simple("grad in a function", adapted, lambda: values(LAYER), lambda: t(4, 8))
simple("models", vmap(layer, in_dims=(0, None)), lambda: stacked(3), lambda: plain(8))
simple(
    "gradients of examples",
    lambda p, x: vmap(grad(lambda p, x: layer(p, x).sum()), in_dims=(None, 0))(p, x),
    lambda: values(LAYER),
    lambda: t(3, 8),
)
simple("refused", refused, lambda: values(LAYER), lambda: t(8))


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str) -> None:
    torch.manual_seed(0)
    run(PROGRAMS[name]())


def test_the_module_stays_as_it_is() -> None:
    before = dict(LAYER.named_parameters())
    x = t(8)
    framesmith.compile(lambda p, x: layer(p, x), fullgraph=True)(values(LAYER), x)
    framesmith.compile(grad(lambda p, x: layer(p, x).sum()), fullgraph=True)(values(LAYER), x)
    assert all(one is before[name] for name, one in LAYER.named_parameters())


def test_a_failing_call_restores_the_module() -> None:
    def function(x: Tensor) -> Tensor:
        return functional_call(LAYER, {"weight": x.outer(x)[:, :3]}, (x,))

    x = plain(8)
    assert outcome(framesmith.compile(function), x) == outcome(function, x)
    assert LAYER.weight.shape == (8, 8)


def test_a_transform_of_a_module_that_is_changed_for_good_breaks() -> None:
    def function(x: Tensor) -> Tensor:
        NORM._buffers["more"] = x
        return (x * 2).sum()

    report = framesmith.explain(grad(function), plain(8))
    assert {event.broken.kind.id for event in report.of_kind("break") if event.broken} == {"body-effect"}
    del NORM._buffers["more"]
