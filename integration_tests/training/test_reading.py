"""Reading a training step: its parts, the seconds of each, memory saved for backward; nothing of it unless asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from framesmith.reports import steps
from framesmith.reports.logs import logger
from framesmith_aot import Traced
from framesmith_aten.graphs.step_parts import PARTS
from framesmith_aten.operators import op_name

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.set_logs()


def parts_of(fn: Callable[..., Any], *args: Any) -> list[dict[str, set[str]]]:
    """Return, for each ATen graph of a call, the operators of each part; operators of layout and constants left out."""
    explanation = framesmith.explain(framesmith.compile(fn, fullgraph=True), *args)
    beside = {"permute", "view", "expand", "full", "clone", "ones_like", "getitem"}
    graphs = [graph for step in explanation.steps for graph in step.graphs]
    named = [{part: {op_name(node.target) for node in one.calls(part)} - beside for part in PARTS} for one in graphs]
    return [{part: names for part, names in each.items() if names} for each in named]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


X = torch.linspace(-1, 1, 12).reshape(4, 3)


def test_a_whole_step_knows_its_parts() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).tanh().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    [parts] = parts_of(step, X)
    assert parts["forward"] == {"addmm", "tanh", "sum"}
    assert {"tanh_backward", "mm", "sum"} <= parts["backward"] and not parts["backward"] & {
        "linalg_vector_norm",
        "copy_",
    }
    assert {"linalg_vector_norm", "clamp", "copy_"} <= parts["update"]


def test_updates_by_hand_and_by_hooks_are_updates() -> None:
    def by_hand(model: nn.Module, x: Tensor) -> None:
        model(x).sin().sum().backward()
        with torch.no_grad():
            for one in model.parameters():
                one -= 0.1 * one.grad
                one.grad.zero_()

    [parts] = parts_of(by_hand, net(), X)
    assert {"sub", "copy_"} <= parts["update"] and parts["backward"] == {"cos", "mul", "mm", "sum"}

    hooked = net()

    @torch.no_grad()
    def move(one: Tensor) -> None:
        one.sub_(one.grad * 0.1)

    for one in hooked.parameters():
        one.register_post_accumulate_grad_hook(move)
    [parts] = parts_of(lambda model, x: model(x).sin().sum().backward(), hooked, X)
    assert {"sub", "copy_"} <= parts["update"] and "mm" in parts["backward"]


def test_what_no_update_needs_is_forward_though_gradients_are_off() -> None:
    model, average = net(), net().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        model(x).tanh().sum().backward()
        optimizer.step()
        with torch.no_grad():
            for one, other in zip(average.parameters(), model.parameters(), strict=True):
                one.lerp_(other, 0.1)
            return (model(x) > 0).float().mean()

    [parts] = parts_of(step, X)
    assert {"gt", "mean"} <= parts["forward"] and "lerp" in " ".join(parts["update"])

    def cached(memory: Tensor, x: Tensor) -> Tensor:
        memory[1:2] = x[:1]
        return memory.sum()

    assert [*parts_of(torch.no_grad()(cached), torch.zeros(4, 3), X)[0]] == ["forward"]


def test_older_tensors_written_with_gradients_on_are_updated_if_gradients_decide() -> None:
    def step(model: nn.Module, scale: Tensor, seen: Tensor, x: Tensor) -> None:
        loss = model(x).tanh().sum()
        loss.backward()
        scale.mul_(model.weight.grad.isfinite().all())
        seen.add_(loss.detach().ceil())

    [parts] = parts_of(step, net(), torch.ones(()), torch.zeros(()), X)
    assert parts["update"] >= {"all", "mul", "copy_"} and not parts["update"] & {"ceil", "add"}
    assert parts["forward"] >= {"ceil", "add", "copy_"}


def test_statistics_and_hooks_of_gradients_are_no_update() -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(3))
    model[0].weight.register_hook(lambda grad: grad.clamp(max=0.1))
    [parts] = parts_of(lambda model, x: model(x).square().sum().backward(), model, X)
    assert "update" not in parts and "clamp" in parts["backward"]


def test_an_optimizer_by_itself_is_an_update() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(X).sum().backward()
    for _ in range(2):
        assert {*parts_of(optimizer.step)[0]} == {"update"}


def test_forward_and_backward_graphs_have_their_seconds() -> None:
    explanation = framesmith.explain(framesmith.compile(net()), X)
    [step] = explanation.steps
    assert [graph.role for graph in step.graphs] == ["forward", "backward"]
    assert all(graph.seconds > 0 for graph in step.graphs)
    [traced] = step.traces
    assert {*traced.trace_seconds} == {"forward", "backward"} and min(traced.trace_seconds.values()) > 0
    of_stages = sum(traced.trace_seconds.values()) + sum(graph.seconds for graph in step.graphs)
    assert of_stages <= step.seconds <= sum(event.seconds for event in explanation.of_kind("entry"))
    assert "; forward kernels " in str(explanation) and "; backward kernels " in str(explanation)


def test_saved_tensors_have_the_line_that_made_them_and_those_that_need_them() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w)
        return (h @ w).square().sum()

    first = loss.__code__.co_firstlineno
    [step] = framesmith.explain(framesmith.compile(loss), X, torch.ones(3, 3, requires_grad=True)).steps
    [memory] = step.memory()
    [h] = [one for one in memory.saved if one.value.operator == "tanh"]
    assert h.value.line is not None and h.value.line.lineno == first + 1
    assert {reader.line.lineno for reader in h.readers if reader.line is not None} == {first + 1, first + 2}
    names = [one.value.name for one in memory.saved if one.kind == "input"]
    assert sorted(names) == ["w", "x"]


def test_the_backward_part_of_a_whole_step_names_the_lines_it_derives() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w)
        result = h.square().sum()
        result.backward()
        return result.detach()

    first = loss.__code__.co_firstlineno
    [step] = framesmith.explain(framesmith.compile(loss), X, torch.ones(3, 3, requires_grad=True)).steps
    [memory] = step.memory()
    [h] = [one for one in memory.saved if one.value.operator == "tanh"]
    assert {reader.line.lineno for reader in h.readers if reader.line is not None} == {first + 1, first + 2}
    assert h.kind == "intermediate" and h.value.bytes == 4 * 3 * 4


def test_logs_of_parts_memory_and_seconds(caplog: pytest.LogCaptureFixture) -> None:
    for topic in ("aot", "memory", "perf"):
        caplog.set_level(logging.DEBUG, f"framesmith.{topic}")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> None:
        model(x).tanh().sum().backward()
        optimizer.step()

    framesmith.compile(step)(X)
    said = {
        topic: [one.getMessage() for one in caplog.records if one.name == f"framesmith.{topic}"]
        for topic in ("aot", "memory", "perf")
    }
    assert any("forward" in one and "backward" in one and "update calls" in one for one in said["aot"])
    assert any("# update" in line and "copy_" in line for one in said["aot"] for line in one.splitlines())
    assert said["memory"][0].startswith("saved for backward: ") and any(
        "derivative of" in one for one in said["memory"]
    )
    assert any("update" in one and "inference kernels" in one for one in said["perf"])
    assert not logger("kernels").isEnabledFor(logging.INFO)


def test_nothing_is_made_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("made without being asked")

    monkeypatch.setattr(steps.StepReport, "__init__", refuse)
    monkeypatch.setattr(Traced, "__init__", refuse)
    model = net()
    framesmith.compile(model, strict=True)(X).sum().backward()
    assert model.weight.grad is not None


def test_the_backward_pass_is_compiled_once_though_explained() -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        framesmith.disable(model(x).sum().backward)()

    explanation = framesmith.explain(framesmith.compile(step), net(), X)
    made = [graph.role for one in explanation.steps for graph in one.graphs]
    assert made.count("backward") == made.count("forward") > 0


def test_captured_passes_are_explained() -> None:
    model = net()
    model.weight.register_hook(lambda grad: grad * 2)

    def step(x: Tensor) -> None:
        loss = model(x).tanh().sum()
        framesmith.disable(loss.backward)()

    with framesmith.compile_backward() as seen:
        explanation = framesmith.explain(framesmith.compile(step), X)
    assert seen.runs == 0 and explanation.captured is not None and explanation.captured.runs == 1
    lines = [line for line in str(explanation).splitlines() if line.lstrip().startswith("compiled: ")]
    assert any("hook of a tensor test_captured_passes_are_explained.<locals>.<lambda>" in line for line in lines)
    [captured] = [one for one in explanation.steps if one.graphs[0].role == "inference"]
    assert captured.graphs[0].calls("backward") and not captured.graphs[0].calls("forward")
    assert framesmith.explain(framesmith.compile(step), X).captured is None
