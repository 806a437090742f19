"""Run by test_cuda.py with TRITON_INTERPRET=1: every sample through the cuda backend on CPU tensors."""

from __future__ import annotations

import sys
import traceback

import torch
from samples import SAMPLES
from tracing import trace

from framesmith_backends import CudaBackend


def main() -> int:
    failures = 0
    for sample in SAMPLES:
        inputs = sample.inputs()
        wanted = sample.function(*inputs)
        wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
        try:
            found = CudaBackend().compile(trace(sample.function, inputs), inputs)(list(inputs))
            for one, other in zip(found, wanted):
                assert (one.dtype, one.stride()) == (other.dtype, other.stride())
                tolerance = max(sample.tolerance, 2e-5)
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
            print("ok", sample.name)
        except Exception:
            failures += 1
            print("FAILED", sample.name)
            traceback.print_exc(file=sys.stdout, limit=-4)
    return failures


if __name__ == "__main__":
    sys.exit(main())
