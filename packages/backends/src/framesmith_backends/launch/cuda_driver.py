"""The CUDA driver: code loaded as kernels that serve every context, and addresses for what launches them."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith_backends.launch.cubins import Cubin

#: What entries of runs of kernels call; the last one is torch's.
CALLED = ("cuLaunchKernel", "cuCtxGetDevice", "aoti_torch_get_current_cuda_stream")


@dataclass(slots=True)
class Driver:
    """The driver's libraries, that of torch for streams among them. Loaded code is kept for good, each once."""

    libraries: Sequence[ctypes.CDLL]
    loaded: dict[Cubin, int] = field(default_factory=dict)

    def address(self, name: str) -> int:
        """Where the function is."""
        for library in self.libraries:
            if hasattr(library, name):
                return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        raise RuntimeError(f"neither the CUDA driver nor torch has a function {name}")

    def kernel(self, cubin: Cubin) -> int:
        """The handle of the code's function."""
        found = self.loaded.get(cubin)
        if found is None:
            library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
            nothing = (None, None, 0, None, None, 0)
            self._call("cuLibraryLoadData", ctypes.byref(library), cubin.code, *nothing)
            self._call("cuLibraryGetKernel", ctypes.byref(kernel), library, cubin.function.encode())
            found = self.loaded[cubin] = kernel.value or 0
        return found

    def _call(self, name: str, *arguments: Any) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *([ctypes.c_void_p] * len(arguments)))
        plain = [ctypes.cast(a, ctypes.c_void_p) if not isinstance(a, (int, type(None))) else a for a in arguments]
        code = kind(self.address(name))(*plain)
        if code != 0:
            raise RuntimeError(f"the CUDA driver's {name} failed with error {code}")


@functools.cache
def driver() -> Driver:
    """That of this machine, which torch uses too."""
    torch_cuda = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    return Driver([ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(torch_cuda)])
