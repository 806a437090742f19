"""`torch.compiler.nested_compile_region`: equal calls share one body, others stay in place; against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import framesmith
from framesmith_aot import compile_graph
from framesmith_aten.graphs.control_flow import invoke_subgraph
from framesmith_backends.eager import run_eagerly
from integration_tests.transforms.autograd_functions import programs as functions
from integration_tests.transforms.transforms import Tensor, close, m, plain, run

pytestmark = pytest.mark.usefixtures("fresh")

region = torch.compiler.nested_compile_region
WEIGHTS = [torch.randn(3, 3, generator=torch.Generator().manual_seed(n)) for n in range(3)]
SEEN: list[Any] = []


@region
def layer(x: Tensor, weight: Tensor) -> Tensor:
    return x + (x @ weight).tanh()


@region
def two_results(x: Tensor, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return x @ weight, {"of": x.argmax(-1), "by": (x * weight.sum()).sin()}


@region
def random(x: Tensor) -> Tensor:
    return F.dropout(x.sin(), 0.5)


@region
def view(x: Tensor) -> Tensor:
    return x.t()


@region
def written(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


@region
def noted(x: Tensor) -> Tensor:
    SEEN.append(x.cos())
    return x.sin()


@region
def by_number(x: Tensor) -> Tensor:
    return x * x.shape[0]


@region
def inner(x: Tensor) -> Tensor:
    return layer(layer(x, WEIGHTS[0]), WEIGHTS[1]).relu()


@region
def with_bodies(x: Tensor) -> Tensor:
    found: Tensor = torch.vmap(torch.sin)(functions.Swish.apply(x)) * 2
    return found


@region
def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.norm()
    return x / scale


@region
def detached(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp(), x.detach().cos()


def layers(x: Tensor) -> Tensor:
    for weight in WEIGHTS:
        x = layer(x, weight)
    return x


def several_results(x: Tensor) -> Any:
    first, named = two_results(x, WEIGHTS[0])
    return two_results(first.relu(), WEIGHTS[1]), named


def of_random(x: Tensor) -> Tensor:
    return random(random(x) * torch.rand(3)) + torch.rand(3)


def of_views(x: Tensor) -> Any:
    return view(view(x) * 2), view(x)


def of_copies_written(x: Tensor) -> Tensor:
    return written(x.clone()) + written(x * 3)


def of_operands_used_twice(x: Tensor) -> Tensor:
    return layer(x, x[:3]) + layer(x.cos(), x[:3])


def of_numbers(x: Tensor) -> Tensor:
    return by_number(x) + by_number(x[:4]).sum() + by_number(x * 2)


def of_nested(x: Tensor) -> Tensor:
    return inner(inner(x))


def of_bodies(x: Tensor) -> Tensor:
    return with_bodies(with_bodies(x)) + with_bodies(x)


def of_modes(x: Tensor) -> Tensor:
    return without_gradients(x) + without_gradients(x * 2)


def of_detached(x: Tensor) -> Any:
    first, second = detached(x)
    return detached(first.log()), second


def in_no_grad_too(x: Tensor) -> Any:
    with torch.no_grad():
        first = layer(x, WEIGHTS[0])
    return layer(first, WEIGHTS[0]), layer(x, WEIGHTS[0])


def of_other_types(x: Tensor) -> Any:
    return layer(x, WEIGHTS[0]), layer(x.double(), WEIGHTS[0].double()), layer(x[:2], WEIGHTS[1])


def in_checkpoint(x: Tensor) -> Any:
    return checkpoint(lambda one: layer(layer(one, WEIGHTS[0]), WEIGHTS[1]), x, use_reentrant=False)


SHARED: list[Callable[[Tensor], Any]] = [
    layers, several_results, of_random, of_operands_used_twice, of_nested, of_detached, in_no_grad_too, of_other_types,
    of_numbers, of_bodies,
]  # fmt: skip
IN_PLACE: list[Callable[[Tensor], Any]] = [of_views, of_modes, in_checkpoint]


@pytest.mark.parametrize("backend", ["cpu", "aot_eager", "eager"])
@pytest.mark.parametrize("function", [*SHARED, *IN_PLACE], ids=lambda one: one.__name__)
def test_training(function: Callable[[Tensor], Any], backend: str) -> None:
    run((lambda x: function(x), [(m(5, 3)(),), (m(5, 3)(),)]), backend=backend)


@pytest.mark.parametrize("function", [*SHARED, *IN_PLACE, of_copies_written], ids=lambda one: one.__name__)
def test_inference(function: Callable[[Tensor], Any]) -> None:
    run((lambda x: function(x), [(plain(5, 3),), (plain(5, 3),)]))


@pytest.mark.parametrize("function", [layers, several_results, of_random, of_numbers], ids=lambda one: one.__name__)
def test_dynamic_sizes(function: Callable[[Tensor], Any]) -> None:
    run((lambda x: function(x), [(m(5, 3)(),), (m(7, 3)(),), (m(9, 3)(),)]), dynamic=True)


def calls(function: Callable[..., Any], *args: Any) -> int:
    """Return how many calls of shared bodies a program's graph has."""
    found: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(len(gm.graph.find_nodes(op="call_function", target=invoke_subgraph)))
        return gm.forward

    framesmith.compile(function, backend=backend, fullgraph=True)(*args)
    [count] = found
    return count


@pytest.mark.parametrize("function", SHARED, ids=lambda one: one.__name__)
def test_equal_calls_share_a_body(function: Callable[[Tensor], Any]) -> None:
    assert calls(function, m(5, 3)()) >= 2


def test_a_leaf_and_a_result_are_operands_of_one_body() -> None:
    """Each graph of a training step has one body for all layers, the one that reads the input among them."""
    bodies: list[set[Any]] = []

    def compiler(gm: torch.fx.GraphModule, inputs: Any, role: Any) -> Any:
        found = gm.graph.find_nodes(op="call_function", target=invoke_subgraph)
        bodies.append({getattr(gm, str(node.args[0])) for node in found})
        return run_eagerly(gm)

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_graph(gm, inputs, compiler=compiler).function

    weight = WEIGHTS[0].clone().requires_grad_()
    x = m(5, 3)().requires_grad_()
    framesmith.compile(layers_of(weight), backend=backend, fullgraph=True)(x).sum().backward()
    assert [*map(len, bodies)] == [1, 1]
    assert x.grad is not None
    gradient, x.grad = x.grad, None
    layers_of(weight)(x).sum().backward()
    torch.testing.assert_close(gradient, x.grad)


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda one: one.__name__)
def test_what_a_body_cannot_hold_stays_in_place(function: Callable[[Tensor], Any]) -> None:
    assert calls(function, m(5, 3)()) == 0


def test_a_region_called_once_stays_in_place() -> None:
    assert calls(lambda x: layer(x, WEIGHTS[0]), m(5, 3)()) == 0


def test_side_effects_happen_once_and_in_order() -> None:
    SEEN.clear()
    x = m(5, 3)()
    compiled = framesmith.compile(lambda one: noted(noted(one)), fullgraph=True)
    close(compiled(x), x.sin().sin(), [x])
    torch.testing.assert_close(SEEN, [x.cos(), x.sin().cos()])


def test_second_derivatives() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weight = WEIGHTS[0].double()

    def program(one: Tensor) -> Tensor:
        return layer(layer(one, weight), weight).square().sum()

    grads = []
    for function in (program, framesmith.compile(program, fullgraph=True)):
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        grads.append(torch.autograd.grad(first.sin().sum(), x)[0])
    torch.testing.assert_close(*grads)


def test_a_saved_operand_changed_later_raises_as_in_eager_mode() -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(5, 3)
    for function in (layers_of(weight), framesmith.compile(layers_of(weight), fullgraph=True)):
        loss = function(x).sum()
        with torch.no_grad():
            weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def layers_of(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(layer(x, weight), weight)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(4))
        self.normed = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        for one in self.layers:
            x = x + called(one, x)
        return called(self.normed, called(self.normed, x))


@region
def called(one: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = one(x)
    return result


def test_modules_share_a_body_and_statistics_are_updated_in_place() -> None:
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    x = torch.randn(6, 8)
    assert calls(net, x) == 4
    other.load_state_dict(net.state_dict())
    compiled = framesmith.compile(net, fullgraph=True)
    for _ in range(2):
        for one, function in ((net, compiled), (other, other)):
            one.zero_grad()
            function(x).square().sum().backward()
        torch.testing.assert_close(dict(net.named_buffers()), dict(other.named_buffers()))
        grads = ([one.grad for one in each.parameters()] for each in (net, other))
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
