"""Conditions of CUDA graph capture, and reports of the `cuda` backend's mode."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from torch.fx.experimental.proxy_tensor import make_fx

from framesmith_backends import CudaBackend, reporting
from framesmith_backends.cuda_graphs.capturable import launches_anything, parameters, why_not_captured

CPU = torch.device("cpu")
aten = torch.ops.aten


@torch.library.custom_op("framesmith_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@noted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_plain_graphs_and_random_numbers_are_captured() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(torch.softmax(x @ y, -1), 0.5, True) + torch.rand_like(x)

    gm = trace(function, [torch.randn(4, 4), torch.randn(4, 4)])
    assert why_not_captured(gm, CPU) is None and launches_anything(gm)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[None, (x * 2).long()],
        lambda x: x.clone().index_put_(((x * 2).long(),), x),
        lambda x: x.repeat_interleave((x > -1).long(), 0, output_size=3),
        lambda x: aten._assert_async.msg((x >= 0).all(), "no probabilities"),
    ],
    ids=["indirect reads", "indirect writes", "so many", "checked"],
)
def test_graphs_that_need_no_host_work_are_captured(function: Callable[..., Any]) -> None:
    gm = make_fx(function, tracing_mode="symbolic")(torch.rand(3, 4)[:, 0])
    assert why_not_captured(gm, CPU) is None


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.nonzero(), "reads from the device how many elements there are"),
        (lambda x: x[x > 0], "reads from the device how many elements there are"),
        (lambda x: x.clone().index_put_((x > 0,), x[0]), "reads from the device how many elements there are"),
        (lambda x: x.repeat_interleave((x > 0).long(), 0), "reads from the device how many elements there are"),
        (lambda x: torch.linalg.inv(x[None] * x[:, None]), "has an effect on the host"),
        (lambda x: x * x.sum().item(), "reads a number from the device"),
        (lambda x: noted(x), "is not torch's own"),
        (lambda x: x.as_strided((2,), (1,), 1) + 1, "sees memory around its operand"),
        (lambda x: x + torch.ones(3, device="meta").to("cpu", copy=True), "all that is captured lies on cpu"),
    ],
)
def test_effects_that_a_replay_would_leave_out_are_not_captured(function: Callable[..., Any], why: str) -> None:
    gm = make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(torch.rand(3))
    found = why_not_captured(gm, CPU)
    assert found is not None and why in found


def test_draws_from_another_generator_are_not_captured() -> None:
    gm = make_fx(lambda x: aten.bernoulli.default(x))(torch.rand(3))
    [node] = gm.graph.find_nodes(op="call_function", target=aten.bernoulli.default)
    assert why_not_captured(gm, CPU) is None
    node.kwargs = {"generator": torch.Generator()}  # torch 2.11's tracer takes none
    assert "draws from a generator of its own" in str(why_not_captured(gm, CPU))


def test_other_devices_are_not_captured() -> None:
    gm = trace(lambda x: x + 1, [torch.ones(3)])
    found = why_not_captured(gm, torch.device("cuda", 0))
    assert found is not None and "on cpu, and all that is captured lies on cuda:0" in found


def test_graphs_of_views_launch_nothing() -> None:
    assert not launches_anything(trace(lambda x: (x.t(), x[0]), [torch.ones(3, 3)]))


def test_parameters_and_mutated_inputs_of_graphs() -> None:
    def function(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.batch_norm(x, mean, var, training=True)
        part[0].copy_(y[0])
        return y

    gm = make_fx(function)(torch.randn(4, 3), torch.zeros(3), torch.ones(3), torch.zeros(2, 3))
    found = parameters(gm)
    assert found.tensors == (0, 1, 2, 3) and found.written == {1, 2, 3}
    assert found.numbers == () and found.varying == ()
    symbolic = parameters(trace_symbolic(lambda x, y: x * 2 + y, [torch.ones(5, 3), torch.ones(3)]))
    assert 0 in {*symbolic.varying} and not symbolic.written


def test_explain_says_whether_launches_are_captured() -> None:
    gm, cuda = trace(lambda x: x + 1, [torch.ones(3)]), CudaBackend()
    assert "# CUDA graph\nnone: mode is 'default'" in cuda.explain(gm).text()
    stages = cuda.explain(gm, {"mode": "reduce-overhead"})
    assert stages.capture.endswith("is on cpu, and all that is captured lies on cuda")


def test_a_mode_is_checked() -> None:
    gm = trace(lambda x: x + 1, [torch.ones(3)])
    with pytest.raises(ValueError, match="did you mean 'reduce-overhead'"):
        CudaBackend().explain(gm, {"mode": "reduce-overheads"})


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_a_mode_without_effect_is_reported_once(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from framesmith_backends import cuda

    monkeypatch.setattr(CudaBackend, "why_not_here", lambda self: None)
    monkeypatch.setattr(cuda, "launcher", lambda stages, *_: lambda args: [args[0] + 1])
    monkeypatch.setattr(cuda, "interpreting", lambda: True)  # else kernels of tensors on the CPU do not run at all
    reporting.log_once.cache_clear()
    gm = trace(lambda x: x + 1, [torch.ones(3)])
    with caplog.at_level(logging.WARNING, "framesmith.plan"):
        for _ in range(2):
            run = CudaBackend().compile(gm, [], options={"mode": mode})
            assert torch.equal(run([torch.ones(3)])[0], torch.full((3,), 2.0))
    reported = [record.getMessage() for record in caplog.records]
    capture = [one for one in reported if "runs without CUDA graphs" in one]
    assert len(reported) == len(capture) == int("no-cudagraphs" not in mode)


def test_graphs_of_the_cpu_alone_run_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from framesmith_backends import cuda

    def launched(stages: object) -> object:
        raise AssertionError("kernels of a device on tensors that it does not have")

    monkeypatch.setattr(CudaBackend, "why_not_here", lambda self: None)
    monkeypatch.setattr(cuda, "launcher", launched)
    reporting.log_once.cache_clear()
    gm = trace(lambda x: x + 1, [torch.ones(3)])
    with caplog.at_level(logging.WARNING, "framesmith.plan"):
        for _ in range(2):
            assert torch.equal(CudaBackend().compile(gm, [])([torch.ones(3)])[0], torch.full((3,), 2.0))
    assert ["'auto' compiles them for it" in record.getMessage() for record in caplog.records] == [True]
