"""Functional ATen graphs to kernels: CPU through LLVM, CUDA through Triton, and eager."""

from framesmith_backends.__about__ import __version__
from framesmith_backends.cpu import CpuBackend, Stages
from framesmith_backends.cuda import CudaBackend, TritonStages
from framesmith_backends.eager import EagerBackend
from framesmith_backends.registry import find_backend, list_backends

__all__ = [
    "CpuBackend",
    "CudaBackend",
    "EagerBackend",
    "Stages",
    "TritonStages",
    "__version__",
    "find_backend",
    "list_backends",
]
