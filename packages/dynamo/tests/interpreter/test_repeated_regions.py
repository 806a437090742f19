"""Calls of nested compile regions that repeat an earlier one: which are traced again, and the guards of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driver import compiled
from torch import nn

from framesmith_dynamo.interpreter import repeated_regions
from framesmith_dynamo.trace_state import TraceState

Tensor = torch.Tensor
region = torch.compiler.nested_compile_region
SHARED = nn.Linear(4, 4)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = 2
        self.names = ["a", "b"]
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4))
        self.shared = SHARED
        self.register_buffer("shift", torch.ones(4))

    @region
    def forward(self, x: Tensor, by: float = 1.0) -> Tensor:
        x = self.shared(x) + self.inner(x) * self.scale + self.shift * by
        return x.relu() if self.training and len(self.names) == 2 else x


class Model(nn.Module):
    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count)).eval()

    def forward(self, x: Tensor) -> Tensor:
        for one in self.layers:
            x = one(x)
        return x


def nothing(model: Model) -> None:
    """All layers are equal; the first takes an input of the graph, the second a tensor of the graph."""


def in_training_mode(model: Model) -> None:
    model.layers[3].train()


def of_another_number(model: Model) -> None:
    model.layers[3].scale = 3


def of_a_number_of_another_type(model: Model) -> None:
    model.layers[3].scale = 2.0


def of_a_longer_list(model: Model) -> None:
    model.layers[3].names.append("c")


def with_a_hook(model: Model) -> None:
    model.layers[3].inner[0].register_forward_hook(lambda module, args, result: result + 1)


def with_a_method_of_its_own(model: Model) -> None:
    model.layers[3].inner[0].forward = torch.tanh


def with_a_shared_parameter(model: Model) -> None:
    layer = model.layers[3]
    layer.inner[2].weight = nn.Parameter(layer.shift)
    layer.register_buffer("shift", layer.inner[2].weight)


def with_an_own_linear(model: Model) -> None:
    model.layers[3].shared = nn.Linear(4, 4)


def of_another_dtype(model: Model) -> None:
    model.layers[3].register_buffer("shift", torch.ones(4, dtype=torch.float16))


def of_a_frozen_layer(model: Model) -> None:
    model.layers[3].requires_grad_(False)


def of_another_class(model: Model) -> None:
    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x.cos()

    model.layers[3].inner[0] = Other(4, 4)


def without_an_attribute(model: Model) -> None:
    del model.layers[3].scale
    type(model.layers[3]).scale = 5  # type: ignore[assignment]


#: The change of the fourth of five layers, and how many of their calls are traced.
DONE: list[tuple[Callable[[Model], None], int]] = [
    (nothing, 2),
    (in_training_mode, 3),
    (of_another_number, 3),
    (of_a_number_of_another_type, 3),
    (of_a_longer_list, 2),  # its length is not read in eval mode
    (with_a_hook, 3),
    (with_a_method_of_its_own, 3),
    (with_a_shared_parameter, 3),
    (with_an_own_linear, 3),
    (of_another_dtype, 3),
    (of_a_frozen_layer, 3),
    (of_another_class, 3),
    (without_an_attribute, 3),
]


@pytest.fixture
def layer_class() -> Iterator[None]:
    yield
    if "scale" in vars(Layer):
        del Layer.scale  # type: ignore[misc]


@pytest.mark.usefixtures("layer_class")
@pytest.mark.parametrize(("change", "traced"), DONE, ids=[change.__name__ for change, _ in DONE])
def test_calls_that_may_differ_are_traced_and_guards_are_those_of_a_trace(
    change: Callable[[Model], None], traced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    change(model)
    x = torch.randn(3, 4)
    expected = seeded(model, x)
    counted, guards = [], []
    original, release = repeated_regions._traced, TraceState.release
    monkeypatch.setattr(repeated_regions, "_traced", lambda *args: counted.append(1) or original(*args))
    monkeypatch.setattr(TraceState, "release", lambda state: guards.append({*map(str, state.guards)}) or release(state))
    torch.testing.assert_close(seeded(compiled(model), x), expected)
    assert len(counted) == traced
    monkeypatch.setattr(repeated_regions, "call_region", lambda tr, state, *args: original(tr, *args))
    torch.testing.assert_close(seeded(compiled(model), x), expected)
    assert guards[0] == guards[1]


def seeded(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return function(x)
