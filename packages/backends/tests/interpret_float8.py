"""Run by test_float8.py with TRITON_INTERPRET=1: float8 numbers in kernels for GPUs, on CPU tensors."""

from __future__ import annotations

from float8_programs import differing, programs
from tracing import trace

from framesmith_backends import CudaBackend


def main() -> None:
    for name, function, x in programs():
        wanted = function(x)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        found = CudaBackend().compile(trace(function, [x]), [x])([x])
        assert not any(differing(one, other) for one, other in zip(found, wanted, strict=True)), name
        print("ok", name)


if __name__ == "__main__":
    main()
