"""Marks of sizes, and the configuration of torch's compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo import config, decorators

import framesmith
from benchmarks.harness.tensors_made import peak_bytes
from framesmith_dynamo import StanceForbids
from framesmith_dynamo.torch_switches import settings
from integration_tests.api.switches import (
    X,
    asks,
    call_with_strings,
    check_reported,
    compiled,
    graphs,
    lengths,
    row,
    run_python,
    sized,
)


@row("torch._dynamo.mark_dynamic")
def _() -> None:
    call = compiled(lambda x: x * 2)
    x = torch.ones(4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    for size in (x, *sized(5, 8)):
        call(size)
    assert graphs() == 1
    framesmith.reset()

    def hinted() -> None:
        x = torch.ones(4)
        torch._dynamo.mark_dynamic(x, 0, specialize_on=[lambda size: size == 4])
        compiled(lambda x: x * 3)(x)

    check_reported(hinted, "specialize_on")


@row("torch._dynamo.maybe_mark_dynamic")
def _() -> None:
    call = compiled(lambda x: x * 2)
    x = torch.ones(4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    for size in (x, *sized(5)):
        call(size)
    assert graphs() == 1


@row("torch._dynamo.mark_static")
def _() -> None:
    call = compiled(lambda x: x * 2, dynamic=True)
    for x in sized(4, 5):
        torch._dynamo.mark_static(x, 0)
        call(x)
    assert graphs() == 2

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    torch._dynamo.mark_static(Model)
    check_reported(lambda: compiled(Model())(X), "mark_static of a module class")


@row("torch._dynamo.decorators.mark_unbacked")
def _() -> None:
    call = compiled(lambda x: x * 2)
    x = torch.ones(4)
    decorators.mark_unbacked(x, 0)
    for size in (x, *sized(1, 0, 7)):
        call(size)
    assert graphs() == 1


@row("torch._dynamo.decorators.mark_static_address")
def _() -> None:
    call = compiled(lambda x: x * 2)
    for _ in range(2):
        x = X.clone()
        decorators.mark_static_address(x)
        assert torch.equal(call(x), X * 2)
    assert graphs() == 1


# Configuration


@row("recompile_limit")
def _() -> None:
    for setting in ("recompile_limit", "cache_size_limit"):
        with config.patch({setting: 2}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            framesmith.reset()
            call_with_strings(framesmith.compile(lengths, backend="eager"))
            assert graphs() == 2
            call_with_strings(framesmith.compile(lengths, backend="eager", recompile_limit=4))
            assert graphs() == 6


@row("accumulated_recompile_limit")
def _() -> None:
    with config.patch(accumulated_recompile_limit=3), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call_with_strings(framesmith.compile(lengths, backend="eager"))
    assert graphs() == 3


@row("fail_on_recompile_limit_hit")
def _() -> None:
    with (
        config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True),
        pytest.raises(RuntimeError, match="the limit"),
    ):
        call_with_strings(framesmith.compile(lengths, backend="eager"))


@row("error_on_recompile")
def _() -> None:
    with config.patch(error_on_recompile=True):
        call = compiled(lengths)
        call(X, "a")
        with pytest.raises(StanceForbids, match="error_on_recompile"):
            call(X, "ab")


def graphs_of_sizes(fn: Callable[..., Any], calls: list[tuple[Any, ...]], **options: Any) -> int:
    """Return the number of graphs that the calls need."""
    framesmith.reset()
    call = compiled(fn, **options)
    for arguments in calls:
        torch.testing.assert_close(call(*arguments), fn(*arguments))
    return graphs()


SIZES = [(x,) for x in sized(3, 4, 5, 6)]


@row("dynamic_shapes")
def _() -> None:
    with config.patch(dynamic_shapes=False):
        assert graphs_of_sizes(lambda x: x * 2, SIZES) == 4


@row("assume_static_by_default")
def _() -> None:
    with config.patch(assume_static_by_default=False):
        assert graphs_of_sizes(lambda x: x * 2, SIZES) == 1
        assert graphs_of_sizes(lambda x: x * 2, SIZES, dynamic=False) == 4


@row("automatic_dynamic_shapes")
def _() -> None:
    with config.patch(automatic_dynamic_shapes=False):
        assert graphs_of_sizes(lambda x: x * 2, SIZES) == 4
        marked = torch.ones(3)
        torch._dynamo.mark_dynamic(marked, 0)
        assert graphs_of_sizes(lambda x: x * 2, [(marked,), *SIZES]) == 1
    assert graphs_of_sizes(lambda x: x * 2, SIZES) == 2


@row("specialize_int")
def _() -> None:
    for setting, numbers in (("specialize_int", (3, 4, 5, 6)), ("specialize_float", (3.5, 4.5, 5.5, 6.5))):
        calls = [(X, number) for number in numbers]
        assert graphs_of_sizes(lambda x, n: x * n, calls) == 2
        with config.patch({setting: True}):
            assert graphs_of_sizes(lambda x, n: x * n, calls) == 4


@row("capture_scalar_outputs")
def _() -> None:
    for value in (False, True):
        with config.patch(capture_scalar_outputs=value, capture_dynamic_output_shape_ops=value):
            compiled(lambda x: (x * x.sum().item(), x.nonzero()), fullgraph=True)(X)


@row("suppress_errors")
def _() -> None:
    def fails(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        raise AssertionError("planted")

    for value in (False, True):
        framesmith.reset()
        with config.patch(suppress_errors=value), pytest.warns(framesmith.FramesmithWarning, match="planted"):
            assert torch.equal(framesmith.compile(lambda x: x * 2, backend=fails)(X), X * 2)


@row("disable")
def _() -> None:
    with config.patch(disable=True):
        assert compiled(asks) is asks
        assert framesmith.compile()(asks) is asks
    for name in settings.OFF:
        assert run_python("import framesmith; print(framesmith.compile(print) is print)", **{name: "1"}) == "True"


@row("activation_memory_budget")
def _() -> None:
    layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(9)])

    def peak(**settings: Any) -> int:
        framesmith.reset()
        call = framesmith.compile(layers, **settings)
        x = torch.randn(512, 64)
        call(x).sum().backward()
        return peak_bytes(lambda: call(x).sum().backward())

    usual, asked = peak(), peak(options={"memory_budget": 0.0})
    assert asked < 0.8 * usual
    with torch._functorch.config.patch(activation_memory_budget=0.0):
        assert abs(peak() - asked) < 0.1 * usual
        assert peak(options={"memory_budget": 1.0}) > 0.9 * usual


@row("any other name")
def _() -> None:
    for module, name, value in (
        (config, "verbose", not config.verbose),
        (torch.compiler.config, "dynamic_sources", "L['x']"),
        (torch._inductor.config, "max_autotune", True),
        (torch._functorch.config, "treat_parameters_as_free_to_save", False),
    ):
        framesmith.reset()
        with module.patch({name: value}):
            check_reported(lambda: compiled(lambda x: x + 1)(X), f"{module.__name__}.{name} was set")
