"""Programs whose launches are captured, by a stand-in for CPU tensors or, on a real device, as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
from framesmith_backends import CudaBackend, reporting
from framesmith_backends.cuda_graphs.captured_graph import CapturedGraph
from integration_tests.harness.captures import Capture
from tools.warm_process import run_program

real = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    framesmith.reset()
    reporting.log_once.cache_clear()
    yield
    framesmith.reset()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 8), nn.LayerNorm(8),
        nn.Linear(8, 4),
    )  # fmt: skip


Loop = Callable[[nn.Module, Callable[..., Any], str, int], list[torch.Tensor]]


def plain_loop(module: nn.Module, call: Callable[..., Any], device: str, steps: int) -> list[torch.Tensor]:
    """A training loop: outputs and losses of a step live until the next one has made its own."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(steps):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step)).to(device)
        optimizer.zero_grad()
        out = call(x)
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().clone())
    return seen


def accumulating_loop(module: nn.Module, call: Callable[..., Any], device: str, steps: int) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    seen = []
    for step in range(steps):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step)).to(device)
        call(x).square().mean().backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
        seen += [p.detach().clone() for p in module.parameters()]
    return seen


def two_forwards_loop(module: nn.Module, call: Callable[..., Any], device: str, steps: int) -> list[torch.Tensor]:
    """Two passes of the same module before one backward pass, whose graph is retained and gone through twice."""
    seen = []
    for step in range(steps):
        module.zero_grad()
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step)).to(device).requires_grad_()
        loss = (call(x) * call(x * 2).sin()).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        assert x.grad is not None
        seen += [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]  # held for good
    return seen


def evaluating_loop(module: nn.Module, call: Callable[..., Any], device: str, steps: int) -> list[torch.Tensor]:
    module.eval()
    with torch.no_grad():
        return [call(torch.full((5, 6), float(step), device=device)) for step in range(steps)]


def pipelined_loop(module: nn.Module, call: Callable[..., Any], device: str, steps: int) -> list[torch.Tensor]:
    """Seven passes before the first backward pass: all activations are held at once."""
    seen = []
    for step in range(steps):
        module.zero_grad()
        made = torch.Generator().manual_seed(step)
        outputs = [call(torch.randn(5, 6, generator=made).to(device)) for _ in range(7)]
        while outputs:
            outputs.pop(0).square().mean().backward()
        seen += [p.grad.clone() for p in module.parameters() if p.grad is not None]
    return seen


LOOPS: list[Loop] = [plain_loop, accumulating_loop, two_forwards_loop, evaluating_loop, pipelined_loop]


def same(loop: Loop, backend: Any, device: str, **options: Any) -> None:
    reference, module = model().to(device), model().to(device)
    torch.manual_seed(5)
    expected = loop(reference, reference, device, 12)
    torch.manual_seed(5)
    found = loop(module, framesmith.compile(module, backend=backend, fullgraph=True, **options), device, 12)
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(dict(module.named_buffers()), dict(reference.named_buffers()), rtol=2e-4, atol=2e-5)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("loop", LOOPS)
def test_training_is_the_same(loop: Loop) -> None:
    backend = Capture()
    same(loop, backend, "cpu")
    assert backend.made and not backend.reasons
    assert all(captured.counts.replayed >= 3 for captured in backend.made)


@pytest.mark.parametrize("loop", [evaluating_loop, pipelined_loop])
def test_loops_that_hold_many_results_come_to_replays(loop: Loop) -> None:
    backend = Capture()
    same(loop, backend, "cpu")
    for captured in backend.made:
        assert captured.counts.plain <= 5 < captured.counts.replayed, captured.counts


def test_a_plain_training_loop_comes_to_replays_that_copy_no_activations() -> None:
    backend = Capture()
    same(plain_loop, backend, "cpu")
    assert len(backend.made) == 2
    for captured in backend.made:
        assert captured.counts.captured <= 4 and captured.counts.plain <= 3, captured.counts
        (variant,) = captured._variants.values()
        assert len(variant.captures) <= 2
        for capture in variant.captures:
            assert len(capture.copies.positions) <= 2  # the batch; in the backward pass also the gradient


def test_dynamic_shapes() -> None:
    backend = Capture()
    module = model().eval()
    compiled = framesmith.compile(module, backend=backend, dynamic=True)
    for _ in range(3):
        for rows in (2, 5, 3, 7):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert sum(captured.counts.replayed for captured in backend.made) >= 4


class Checked(nn.Module):
    """Indirect reads, a table of classes, and checks that a device makes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        rows = self.weight[classes[:, None], torch.arange(4, device=x.device)]
        hot = nn.functional.one_hot(classes, 4).to(x.dtype)
        return nn.functional.binary_cross_entropy((rows + x).sigmoid(), hot)


def checked_loop(module: nn.Module, call: Callable[..., Any], device: str) -> list[torch.Tensor]:
    seen = []
    for step in range(12):
        made = torch.Generator().manual_seed(step)
        x, classes = torch.randn(5, 4, generator=made), torch.randint(0, 4, (5,), generator=made)
        module.zero_grad()
        loss = call(x.to(device), classes.to(device))
        loss.backward()
        seen += [loss.detach().clone(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    return seen


def test_indices_and_checks_of_data_are_captured() -> None:
    backend, module = Capture(), Checked()
    expected = checked_loop(module, module, "cpu")
    found = checked_loop(module, framesmith.compile(module, backend=backend, fullgraph=True), "cpu")
    torch.testing.assert_close(found, expected)
    assert not backend.reasons and backend.made
    # How often depends on the addresses that this process's memory comes at.
    assert all(captured.counts.replayed for captured in backend.made)


@real
def test_indices_and_checks_of_data_are_replayed_on_a_real_device(caplog: pytest.LogCaptureFixture) -> None:
    module = Checked().cuda()
    expected = checked_loop(module, module, "cuda")
    compiled = framesmith.compile(module, backend="cuda", mode="reduce-overhead", fullgraph=True)
    torch.testing.assert_close(checked_loop(module, compiled, "cuda"), expected)
    assert "without CUDA graphs" not in caplog.text


def test_what_a_mode_does_not_do_is_seen_by_who_has_set_up_no_logs() -> None:
    source = "import framesmith\nfrom framesmith_backends.reporting import log_once\nlog_once('runs without')"
    assert "runs without" in run_program(source).stderr


@real
@pytest.mark.parametrize("loop", LOOPS)
def test_training_is_the_same_on_a_real_device(loop: Loop) -> None:
    same(loop, "cuda", "cuda", mode="reduce-overhead")


@real
def test_a_plain_training_loop_replays_on_a_real_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CapturedGraph] = []
    compile_ = CudaBackend.compile

    def noted(self: CudaBackend, *args: Any, **kwargs: Any) -> Any:
        made.append(compile_(self, *args, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(CudaBackend, "compile", noted)
    same(plain_loop, "cuda", "cuda", mode="reduce-overhead")
    assert len(made) == 2 and all(isinstance(one, CapturedGraph) for one in made)
    for captured in made:
        assert captured.counts.captured <= 4 and captured.counts.replayed >= 8, captured.counts
