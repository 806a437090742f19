"""What GPUs allow a launch: shared memory, by compute capability (90: sm_90), and parameters."""

from __future__ import annotations

#: Bytes of shared memory that a launch may ask for without more ado.
FREELY_SHARED = 48 << 10
#: Bytes that it may have where the kernel was told of them, by compute capability; on other GPUs the least there are.
_MOST_SHARED = {
    80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10,
    110: 227 << 10, 120: 99 << 10, 121: 99 << 10,
}  # fmt: skip
_LEAST_SHARED = 64 << 10
#: Bytes of a launch's parameters, of which each takes eight.
PARAMETER_BYTES = 4096
#: Triton gives each kernel, after its own parameters, two addresses of scratch memory; ours ask for none.
SCRATCH_PARAMETERS = 2
#: So many parameters a kernel may have of its own.
MOST_PARAMETERS = PARAMETER_BYTES // 8 - SCRATCH_PARAMETERS


def most_shared(capability: int) -> int:
    """Bytes of shared memory that a launch may have on GPUs of that compute capability."""
    return _MOST_SHARED.get(capability, _LEAST_SHARED)
