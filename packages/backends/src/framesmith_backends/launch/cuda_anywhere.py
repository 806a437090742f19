"""Kernels one by one where native entries cannot launch: tensors that begin anywhere, a device that is not current.

Their code makes nothing of where a tensor begins, and is compiled when it is first asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from framesmith_backends.launch.cubins import cubin
from framesmith_backends.launch.cuda_driver import Driver
from framesmith_backends.launch.kernel_runs import KernelRun, number_function
from framesmith_backends.render.triton.devices import SCRATCH_PARAMETERS
from framesmith_backends.render.triton.kernel import MOST_PROGRAMS, TritonKernel


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU by its number, its compute capability (90: sm_90), and its driver."""

    index: int
    capability: int
    driver: Driver


def entry(run: KernelRun, device: Device) -> Callable[..., None]:
    """A function of the launch list's tensors and numbers that launches the kernels in order, on the device."""
    steps = list(zip([launcher(kernel, device) for kernel in run.kernels], run.places, strict=True))

    def call(*values: Any) -> None:
        known = run.arguments(values)
        for launch, places in steps:
            launch([known[k] for k in places])

    return call


def launcher(kernel: TritonKernel, device: Device) -> Callable[[Sequence[Any]], None]:
    """A function that launches the kernel on tensors, which come first, and numbers."""
    count = len(kernel.pointers)
    kinds: list[Any] = [ctypes.c_double if kind == "fp64" else ctypes.c_int64 for _, kind in kernel.parameters[count:]]
    row = number_function(kernel.row, kernel)
    grids = [number_function(form.grid, form) for form in kernel.forms]

    def launch(values: Sequence[Any]) -> None:
        tensors, numbers = values[:count], values[count:]
        which = int(len(kernel.forms) > 1 and row(*numbers) > kernel.block)
        form, programs = kernel.forms[which], int(grids[which](*numbers))
        code = cubin(form, False, device.capability, anywhere=True)
        handle = device.driver.kernel(code, device.index)
        words = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        words += [
            kind(number) for kind, number in zip(kinds, numbers, strict=False)
        ]  # `first` is no number of the caller's
        for first in range(0, programs, MOST_PROGRAMS):
            rest = [ctypes.c_int64(first)] if kernel.has_first else []
            every = [*words, *rest, *[ctypes.c_void_p()] * SCRATCH_PARAMETERS]
            device.driver.launch(handle, min(programs - first, MOST_PROGRAMS), code, device.index, every)

    return launch
