"""`fx.GraphModule`, which has a class of its own for each: compiled as a view, and called in compiled functions."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import framesmith


@pytest.fixture(autouse=True)
def fresh() -> None:
    framesmith.reset()


def function(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4)), nn.Linear(4, 3))


def traced(what: str) -> tuple[fx.GraphModule, Callable[..., Any]]:
    """A graph, and the same as a Python function."""
    model = function if what == "function" else network()
    return fx.symbolic_trace(model), copy.deepcopy(model)


def negate(module: fx.GraphModule) -> None:
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(torch.neg, (output.args[0],)),)


@pytest.mark.parametrize("what", ["function", "module"])
def test_a_compiled_one_is_one_graph(what: str) -> None:
    module, plain = traced(what)
    compiled = framesmith.compile(module, strict=True, fullgraph=True)
    leaves = [torch.linspace(-1, 1, 6).view(2, 3).requires_grad_() for _ in range(2)]
    found = [run(x) for run, x in zip((compiled, plain), leaves, strict=True)]
    torch.testing.assert_close(*found)
    for result in found:
        result.square().sum().backward()
    torch.testing.assert_close(*(x.grad for x in leaves))
    assert framesmith.stats()["graphs"] == 1
    assert isinstance(compiled, fx.GraphModule) and compiled.code == module.code
    torch.testing.assert_close(copy.deepcopy(compiled).eval()(leaves[0]), copy.deepcopy(module).eval()(leaves[1]))


@pytest.mark.parametrize("what", ["function", "module"])
def test_within_a_compiled_function(what: str) -> None:
    module, plain = traced(what)
    x = torch.randn(2, 3)
    compiled = framesmith.compile(lambda x: module(x * 2).cos(), strict=True, fullgraph=True)
    torch.testing.assert_close(compiled(x), plain(x * 2).cos())
    negate(module)
    module.recompile()
    torch.testing.assert_close(compiled(x), plain(x * 2).neg().cos())


@pytest.mark.parametrize("through", ["original", "view", "a graph that is set"])
def test_a_graph_that_is_changed(through: str) -> None:
    module, plain = traced("function")
    compiled = framesmith.compile(module, strict=True)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), plain(x))
    changed = module if through == "original" else compiled
    negate(changed)
    if through == "a graph that is set":
        changed.graph = changed.graph
    else:
        changed.recompile()
    for run in (compiled, module, compiled.forward):
        torch.testing.assert_close(run(x), -plain(x))


def test_hooks_run(capsys: pytest.CaptureFixture[str]) -> None:
    module, plain = traced("function")
    module.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    module.register_forward_hook(lambda module, args, result: result - args[0])
    x = torch.randn(2, 3)
    for compiled in (framesmith.compile(module, strict=True), framesmith.compile(lambda x: module(x), strict=True)):
        torch.testing.assert_close(compiled(x), plain(x * 3) - x * 3)


def test_errors_are_those_of_eager_mode(capsys: pytest.CaptureFixture[str]) -> None:
    module, _ = traced("module")
    messages = []
    for run in (module, framesmith.compile(module), framesmith.compile(lambda x: module(x))):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
            run(torch.randn(2, 5))
        messages.append((str(caught.value), "HERE" in capsys.readouterr().err))
    assert len(set(messages)) == 1


class Exported(nn.Module):
    """Buffers, a result of several parts, and operators that are run through others when they are traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, *, scale: int = 2) -> dict[str, Any]:
        self.calls.add_(1)
        kept = F.max_pool1d(self.norm(self.linear(x)), 2)
        return {"kept": kept.relu() * scale, "sums": (x.cumsum(1) + self.calls, x.max(1).values)}


def exported(training: bool) -> nn.Module:
    torch.manual_seed(0)
    batch = {"x": {0: torch.export.Dim("batch")}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Exported().train(training), (torch.randn(3, 4),), dynamic_shapes=batch).module()


@pytest.mark.parametrize("training", [True, False])
def test_an_exported_one_is_compiled(training: bool) -> None:
    plain, module = exported(training), exported(training)
    compiled = framesmith.compile(module, strict=True)
    for count in (3, 5, 8, 3):
        leaves = [torch.linspace(-1, 1, 4 * count).view(count, 4).requires_grad_() for _ in range(2)]
        found = [run(x) for run, x in zip((compiled, plain), leaves, strict=True)]
        torch.testing.assert_close(*found)
        for result in found:
            (result["kept"].square().sum() + result["sums"][0].sum()).backward()
        torch.testing.assert_close(*(x.grad for x in leaves))
    for one, other in zip(module.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert framesmith.stats()["graphs"] >= 1


def test_an_exported_one_refuses_what_it_was_not_exported_for() -> None:
    plain, module = exported(False), exported(False)
    errors = []
    for run in (framesmith.compile(module), plain):
        with pytest.raises(AssertionError) as caught:
            run(torch.randn(3, 5))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
