"""Kernels one by one on tensors: on a GPU where native entries cannot launch, or by Triton's interpreter on the CPU.

Native entries launch on tensors that begin at multiples of 16 bytes, on the current device. Code for tensors that begin
anywhere is compiled when it is first asked for. A thread in which nothing of CUDA has happened yet has no current
device, and is given one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith_backends.ir.dtypes import DTYPES, FLOAT8
from framesmith_backends.launch.cuda.cubins import Cubin, cubin
from framesmith_backends.launch.cuda.driver import Device
from framesmith_backends.launch.cuda.kernel_runs import KernelRun, launches
from framesmith_backends.launch.cuda.triton_jit import load
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.target import SCRATCH_PARAMETERS

#: Tensors of these are bytes to kernels.
KEPT_AS_BYTES = frozenset(DTYPES[name].torch for name in FLOAT8)
#: Launches a kernel on tensors, which come first, and numbers.
Launcher = Callable[[Sequence[Any]], None]


def entry(run: KernelRun, device: Device | None) -> Callable[..., None]:
    """A function of the launch list's tensors and numbers that launches the run's kernels in order.

    It does so on the device, or interprets them where that is None.
    """
    launchers = [_interpreting(kernel) if device is None else _launching(kernel, device) for kernel in run.kernels]

    def call(*values: Any) -> None:
        known = run.arguments(values)
        for launch, positions in zip(launchers, run.positions, strict=True):
            launch([known[k] for k in positions])

    return call


def _interpreting(kernel: TritonKernel) -> Launcher:
    chosen, pointers = launches(kernel), len(kernel.pointers)

    def launch(values: Sequence[Any]) -> None:
        values = [v.view(torch.uint8) if getattr(v, "dtype", None) in KEPT_AS_BYTES else v for v in values]
        for version, first, count in chosen(values[pointers:]):
            rest = (first,) if version.has_first else ()
            load(version)[(count,)](*values, *rest, **version.options)

    return launch


def _launching(kernel: TritonKernel, device: Device) -> Launcher:
    chosen, pointers = launches(kernel), len(kernel.pointers)
    loaded: dict[TritonKernel, tuple[Cubin, int]] = {}

    def launch(values: Sequence[Any]) -> None:
        tensors, numbers = values[:pointers], values[pointers:]
        for version, first, count in chosen(numbers):
            if version not in loaded:
                made = cubin(version, False, device.capability, anywhere=True)
                loaded[version] = made, device.driver.kernel(made, device.index)
            code, handle = loaded[version]
            own = [*numbers, *([first] if version.has_first else [])]
            words: list[Any] = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
            words += [
                (ctypes.c_double if kind == "fp64" else ctypes.c_int64)(number)
                for number, (_, kind) in zip(own, version.parameters[pointers:], strict=True)
            ]
            words += [ctypes.c_void_p()] * SCRATCH_PARAMETERS
            device.driver.launch(handle, count, code, device.index, words)

    return launch
