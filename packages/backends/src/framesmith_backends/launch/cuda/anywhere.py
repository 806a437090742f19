"""Kernels one by one where native entries cannot launch: tensors that begin anywhere, a device that is not current.

Their code makes nothing of where a tensor begins, and is compiled when it is first asked for. A thread in which nothing
of CUDA has happened yet has no current device, and is given one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from framesmith_backends.launch.cuda.cubins import Cubin, cubin
from framesmith_backends.launch.cuda.driver import Device
from framesmith_backends.launch.cuda.kernel_runs import KernelRun, launches, one_by_one
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.target import SCRATCH_PARAMETERS


def entry(run: KernelRun, device: Device) -> Callable[..., None]:
    """A function of the launch list's tensors and numbers that launches the kernels in order, on the device."""
    return one_by_one(run, lambda kernel: launcher(kernel, device))


def launcher(kernel: TritonKernel, device: Device) -> Callable[[Sequence[Any]], None]:
    """A function that launches the kernel on tensors, which come first, and numbers."""
    chosen, pointers = launches(kernel), len(kernel.pointers)
    loaded: dict[TritonKernel, tuple[Cubin, int]] = {}

    def launch(values: Sequence[Any]) -> None:
        tensors, numbers = values[:pointers], values[pointers:]
        for form, first, count in chosen(numbers):
            if form not in loaded:
                made = cubin(form, False, device.capability, anywhere=True)
                loaded[form] = made, device.driver.kernel(made, device.index)
            code, handle = loaded[form]
            own = [*numbers, *([first] if form.has_first else [])]
            words: list[Any] = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
            words += [
                (ctypes.c_double if kind == "fp64" else ctypes.c_int64)(number)
                for number, (_, kind) in zip(own, form.parameters[pointers:], strict=True)
            ]
            words += [ctypes.c_void_p()] * SCRATCH_PARAMETERS
            device.driver.launch(handle, count, code, device.index, words)

    return launch
