"""CUDA's own features around compiled functions: the user's captures, pinned memory, tensors created on the device.

Nothing here runs without a GPU, as in `test_on_a_gpu.py`.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

import framesmith
from framesmith_backends.cuda import CudaBackend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DEVICE = "cuda"

R = torch.randn


def chained(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + y) * torch.sigmoid(y) - x.softmax(-1)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_first_called_while_the_user_captures_on_a_gpu(mode: str) -> None:
    """The graph holds the function's own launches, and the next call compiles."""
    framesmith.reset()
    compiled = framesmith.compile(chained, mode=mode)
    x, w = R(16, 32, device=DEVICE), R(32, device=DEVICE)
    with torch.no_grad():
        chained(x, w)
        graph = torch.cuda.CUDAGraph()
        with pytest.warns(framesmith.FramesmithWarning, match="a CUDA graph is being captured"):
            with torch.cuda.graph(graph):
                y = compiled(x, w)
        assert framesmith.stats()["graphs"] == 0
        for _ in range(2):
            x.mul_(0.5)
            graph.replay()
            torch.testing.assert_close(y, chained(x, w))
        torch.testing.assert_close(compiled(x, w), chained(x, w))
    assert framesmith.stats()["graphs"] == 1


def test_a_backward_pass_compiled_while_the_user_captures_on_a_gpu() -> None:
    """The forward pass has been compiled before; code is loaded beside the capture."""
    framesmith.reset()
    compiled = framesmith.compile(chained)
    x, w = R(16, 32, device=DEVICE, requires_grad=True), R(32, device=DEVICE)
    compiled(x, w)
    torch.autograd.grad(chained(x, w).sum(), x)
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(), torch.cuda.graph(graph):
        warnings.simplefilter("error", framesmith.FramesmithWarning)  # it would run eagerly, and be captured so
        (found,) = torch.autograd.grad(compiled(x, w).sum(), x)
    for _ in range(2):
        with torch.no_grad():
            x.mul_(0.5)
        graph.replay()
        torch.testing.assert_close(found, torch.autograd.grad(chained(x, w).sum(), x)[0])


def pinned_ways(x: torch.Tensor) -> list[torch.Tensor]:
    made = [torch.zeros(3, pin_memory=True), torch.empty(2, 3, pin_memory=True).fill_(1.0), x.cpu().pin_memory()]
    made += [torch.tensor([1.0, 2.0], pin_memory=True), torch.arange(3, pin_memory=True), torch.zeros(3)]
    made += [made[0].new_ones(2, pin_memory=True), torch.zeros_like(made[0], pin_memory=True), made[0] + 1]
    made += [x.to("cpu", non_blocking=True), (x * 2).to("cpu", torch.float64, non_blocking=True), made[1].view(-1)]
    return made


def test_pinned_memory_on_a_gpu() -> None:
    compiled = framesmith.compile(pinned_ways)
    asked = framesmith.compile(lambda x: [one.is_pinned() for one in pinned_ways(x)])
    for _ in range(2):
        x = R(4, device=DEVICE)
        found, expected = compiled(x), pinned_ways(x)
        torch.cuda.synchronize()
        torch.testing.assert_close(found, expected)
        pinned = [one.is_pinned() for one in expected]
        assert [one.is_pinned() for one in found] == pinned == asked(x)
        assert pinned[0] and not pinned[5]


def test_tensors_made_of_nothing_and_of_the_cpus_have_kernels_on_a_gpu() -> None:
    def mask(n: int) -> torch.Tensor:
        return torch.full((n, n), -math.inf, device=DEVICE).triu(1) + torch.arange(n, device=DEVICE)

    def moved(x: torch.Tensor) -> torch.Tensor:
        return (x.to(DEVICE).sin() + 1).softmax(-1)

    for function, given in ((mask, 5), (moved, R(3, 4))):
        framesmith.reset()
        compiled = framesmith.compile(function, strict=True)
        with pytest.MonkeyPatch.context() as patch:
            used: list[str] = []
            original = CudaBackend.compile
            patch.setattr(CudaBackend, "compile", lambda *a, **k: (used.append("cuda"), original(*a, **k))[1])
            torch.testing.assert_close(compiled(given), function(given))
        assert used == ["cuda"]


def of_tiny_numbers(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    of_one = [x.sin(), x.tanh(), x.erf(), x.log1p(), x.expm1(), x.asin(), x.sinh(), x.atanh(), x.ceil(), (-x).floor()]
    return [*of_one, x.pow(0.3), x // y, x % y, torch.fmod(x, y), torch.atan2(x, y), torch.hypot(x, y)]


def test_numbers_too_small_for_a_normal_one_on_a_gpu() -> None:
    """They are what they are, not zero, in functions of the device's library."""
    x, y = (
        torch.tensor(values, device=DEVICE)
        for values in ([1e-40, 1e-39, 5e-39, 1e-40, 1.0], [1e-40, 1e-40, 1e-39, 1.0, 3.0])
    )
    found = framesmith.compile(of_tiny_numbers, strict=True)(x, y)
    for one, expected in zip(found, of_tiny_numbers(x, y), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=0.0)
