"""The CUDA driver: code loaded as kernels that serve every context, and addresses for what launches them."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith_backends.launch.cuda.cubins import Cubin
from framesmith_backends.target import FREELY_SHARED

#: The functions that entries of runs of kernels call; the last one is torch's.
CALLED = ("cuLaunchKernel", "cuCtxGetDevice", "aoti_torch_get_current_cuda_stream")
#: The attribute of a kernel that says how much shared memory its launches may ask for.
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

#: The mode of captures (`CUstreamCaptureMode`) in which a thread is kept from nothing.
RELAXED = 2


@dataclass(slots=True)
class Driver:
    """The driver's libraries, that of torch for streams among them. Loaded code is kept for good, each once.

    `configured` are kernels that may have more shared memory on a device than others.
    """

    libraries: Sequence[ctypes.CDLL]
    loaded: dict[Cubin, int] = field(default_factory=dict)
    configured: set[tuple[int, int]] = field(default_factory=set)
    contexts: dict[int, int] = field(default_factory=dict)

    def address(self, name: str) -> int:
        """The address of the function."""
        for library in self.libraries:
            if hasattr(library, name):
                return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        raise RuntimeError(f"neither the CUDA driver nor torch has a function {name}")

    def kernel(self, cubin: Cubin, device: int) -> int:
        """The handle of the code's function, which may be launched on that device."""
        found = self.loaded.get(cubin)
        if found is None:
            library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
            nothing = (None, None, 0, None, None, 0)
            with self._beside_captures():
                self._call("cuLibraryLoadData", ctypes.byref(library), cubin.code, *nothing)
                self._call("cuLibraryGetKernel", ctypes.byref(kernel), library, cubin.function.encode())
            found = self.loaded[cubin] = kernel.value or 0
        if cubin.shared > FREELY_SHARED and (found, device) not in self.configured:
            with self._beside_captures():
                self._call("cuKernelSetAttribute", MAX_DYNAMIC_SHARED_SIZE_BYTES, cubin.shared, found, device)
            self.configured.add((found, device))
        return found

    @contextmanager
    def _beside_captures(self) -> Iterator[None]:
        """Within it this thread may do what would break a CUDA graph's capture, though it is no part of the graph.

        A backward pass may be compiled while the user captures it.
        """
        mode = ctypes.c_int(RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def launch(self, kernel: int, programs: int, cubin: Cubin, device: int, parameters: Sequence[Any]) -> None:
        """Launch so many programs of the code with these handle and parameters (objects of ctypes), on that device."""
        pointers = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
        with torch.cuda.device(device):
            self._call("cuCtxSetCurrent", self._context(device))
            stream = torch.cuda.current_stream(device).cuda_stream
            shape = (programs, 1, 1, cubin.threads, 1, 1, cubin.shared)
            self._call("cuLaunchKernel", kernel, *shape, stream or None, pointers, None)

    def _context(self, device: int) -> int:
        """The device's context, which torch leaves to the first call of CUDA in each thread."""
        found = self.contexts.get(device)
        if found is None:
            context = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            found = self.contexts[device] = context.value or 0
        return found

    def _call(self, name: str, *arguments: Any) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *([ctypes.c_void_p] * len(arguments)))
        plain = [ctypes.cast(a, ctypes.c_void_p) if not isinstance(a, (int, type(None))) else a for a in arguments]
        code = kind(self.address(name))(*plain)
        if code != 0:
            raise RuntimeError(f"the CUDA driver's {name} failed with error {code}")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU by its number, its compute capability (90: sm_90), and the driver that launches on it."""

    index: int
    capability: int
    driver: Driver


def device(index: int) -> Device:
    """The GPU of that number of this machine."""
    major, minor = torch.cuda.get_device_capability(index)
    return Device(index, 10 * major + minor, driver())


@functools.cache
def driver() -> Driver:
    """That of this machine, which torch uses too."""
    torch_cuda = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    return Driver([ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(torch_cuda)])
