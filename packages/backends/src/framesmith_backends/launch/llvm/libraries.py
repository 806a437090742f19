"""Functions of torch's libraries by name: no compiler is needed, and none is loaded."""

from __future__ import annotations

import ctypes
import functools
import glob
import os
from typing import Any

import torch

_EXPORTED = (
    "sgemm_", "aoti_torch_create_tensor_from_blob", "aoti_torch_delete_tensor_object", "aoti_torch_cpu_mm_out",
    "aoti_torch_cpu_addmm_out", "torch_exception_get_what_without_backtrace",
)  # fmt: skip
#: Functions that matmuls call -> their names in torch's library.
MATMULS = {name: name for name in _EXPORTED} | {
    "fs_context": "_ZN2at13globalContextEv",
    "fs_float32_precision": "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE",
}


@functools.cache
def why_no_blas() -> str | None:
    """Why matmuls cannot be called without tensor objects here, or None."""
    libraries = torch_libraries()
    missing = [name for name in MATMULS.values() if not any(hasattr(library, name) for library in libraries)]
    return f"torch's library has no {missing[0]}" if missing else None


@functools.cache
def torch_libraries() -> list[ctypes.CDLL]:
    """The libraries of the installed torch that hold its operators and its threads."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    found = glob.glob(os.path.join(folder, "libgomp*")) + glob.glob(os.path.join(folder, "libtorch_cpu.*"))
    packaged = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "torch.libs")
    return [ctypes.CDLL(path) for path in found + glob.glob(os.path.join(packaged, "libgomp*"))]


def address(function: Any) -> int:
    """The address of the function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def find(name: str, libraries: list[ctypes.CDLL]) -> int:
    """The address of the function in the first of the libraries that has it.

    Raises:
        RuntimeError: None of them has it.
    """
    for library in libraries:
        try:
            return address(getattr(library, name))
        except AttributeError:
            continue
    raise RuntimeError(f"this torch's libraries have no {name}: the cpu backend needs a torch built with GNU OpenMP")
