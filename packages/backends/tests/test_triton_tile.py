"""How threads are spread over tiles: as Triton's own layouts say."""

from __future__ import annotations

import importlib.util
import os
import re

import pytest
import torch
import torch.nn.functional as F
from tracing import trace

from framesmith_backends import CudaBackend

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="triton is not installed, or interprets",
)


@pytest.mark.parametrize(
    "shape", [(2, 3, 64, 64), (4, 16, 32, 128), (1, 200, 6, 20)], ids=lambda shape: "x".join(map(str, shape))
)
def test_neighbouring_threads_read_neighbouring_elements_of_windows(shape: tuple[int, ...]) -> None:
    """No load along a line is contiguous there: Triton spread the threads of two dimensions across the lines."""
    from framesmith_backends.launch.triton_jit import compiled

    (kernel,) = CudaBackend().explain(trace(lambda x: F.max_pool2d(x, 2), [torch.randn(shape)])).kernels
    layouts = re.findall(r"#ttg\.blocked<\{[^}]*order = \[([\d, ]+)\]", compiled(kernel, 90).asm["ttgir"])
    assert layouts and all(order in ("0", "1, 0") for order in layouts)


def test_lines_of_a_flat_tile_are_read_in_whole_vectors() -> None:
    from framesmith_backends.launch.triton_jit import compiled

    (kernel,) = CudaBackend().explain(trace(lambda x: x[:, :64] * 2, [torch.randn(300, 80)])).kernels
    assert "tl.arange(0, 1024) // 64" in kernel.source
    assert "ld.global.v4.b32" in compiled(kernel, 90).asm["ptx"]
