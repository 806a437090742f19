"""Float8 numbers in kernels for GPUs, on CPU tensors."""

from __future__ import annotations

from graphs.tracing import trace
from sample_programs.float8 import differing, programs

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
