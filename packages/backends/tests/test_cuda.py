"""The cuda backend without a GPU: kernels compile to cubins, and the interpreter gives eager's numbers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from samples import BY_NAME, SAMPLES, Sample
from tracing import trace

from framesmith_backends import CpuBackend, CudaBackend
from framesmith_backends.render.triton.kernel import TritonKernel

CUDA = CudaBackend()
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
COMPILED = ("chain", "softmax", "layer norm", "sums", "cat", "bf16")


def kernels_of(sample: Sample) -> tuple[TritonKernel, ...]:
    return CUDA.explain(trace(sample.function, sample.inputs())).kernels


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_every_sample_renders(sample: Sample) -> None:
    gm = trace(sample.function, sample.inputs())
    stages = CUDA.explain(gm)
    assert len(stages.kernels) == len(stages.plan.kernels) >= 1
    for kernel in stages.kernels:
        compile(kernel.source, "kernel", "exec")
    assert "tl.store(" in stages.text()
    assert "scratch" not in stages.text()
    assert len(CpuBackend().explain(gm).plan.kernels) == len(stages.kernels)


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_to_cubins(name: str, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.triton_jit import to_cubin

    for kernel in kernels_of(BY_NAME[name]):
        assert to_cubin(kernel, capability)[:4] == b"\x7fELF"


@needs_triton
def test_interpreted_numbers_equal_eager() -> None:
    """In a process of its own: Triton decides at import whether functions are interpreted."""
    script = Path(__file__).with_name("interpret_triton.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("ok ") == len(SAMPLES)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_on_a_real_device(sample: Sample) -> None:
    inputs = [t.cuda() for t in sample.inputs()]
    wanted = sample.function(*inputs)
    wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
    found = CUDA.compile(trace(sample.function, inputs), inputs)(list(inputs))
    for one, other in zip(found, wanted):
        assert one.stride() == other.stride()
        tolerance = max(sample.tolerance, 1e-4)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_without_a_device_it_says_so() -> None:
    x = torch.randn(3)
    gm = trace(lambda a: a + 1, [x])
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("there is a device")
    assert CUDA.why_not(gm) is not None
    with pytest.raises(RuntimeError, match="cannot run here"):
        CUDA.compile(gm, [x])
