"""Launch overhead of a CUDA kernel beside the driver's own time: here a driver that does nothing."""

from __future__ import annotations

import ctypes
import time

import torch
from llvmlite import binding
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.harness.timing import Row
from framesmith_backends import CudaBackend
from framesmith_backends.cuda import kernel_runs
from framesmith_backends.launch.llvm import engine as native

#: The functions of the driver, and torch's for streams: all succeed, and give 1 for a handle.
STAND_IN = """
define i32 @cuLaunchKernel(ptr %function) { ret i32 0 }
define i32 @cuCtxGetDevice(ptr %device) { store i32 0, ptr %device  ret i32 0 }
define i32 @aoti_torch_get_current_cuda_stream(i32 %device, ptr %stream) { store i64 1, ptr %stream  ret i32 0 }
define i32 @cuLibraryLoadData(ptr %library) { store i64 1, ptr %library  ret i32 0 }
define i32 @cuThreadExchangeStreamCaptureMode(ptr %mode) { ret i32 0 }
define i32 @cuLibraryGetKernel(ptr %kernel) { store i64 1, ptr %kernel  ret i32 0 }
"""
SIDE, ROUNDS, CALLS = 64, 11, 200


def chain(x: torch.Tensor) -> torch.Tensor:
    """A program of several dozen kernels, in one run."""
    for _ in range(12):
        x = torch.softmax(x, -1).sum(0, keepdim=True) + x
    return x


class StandIn:
    """A library whose functions are those of `STAND_IN`, as ctypes has a library's."""

    def __init__(self) -> None:
        module = binding.parse_assembly(STAND_IN)
        self.engine = binding.create_mcjit_compiler(module, native.machine().target_machine())
        self.engine.finalize_object()
        for function in module.functions:
            setattr(self, function.name, ctypes.c_void_p(self.engine.get_function_address(function.name)))


def never(*values: object) -> None:
    """The Python path of a run without a native entry."""
    raise RuntimeError("the run was not launched natively")


def run() -> list[Row]:
    """Seconds for each kernel of one run of them, the median of several rounds. Triton has to be installed."""
    from framesmith_backends.launch.cuda.driver import Device, Driver
    from framesmith_backends.launch.cuda.native import native_entries

    graph = make_fx(chain, tracing_mode="fake")(torch.empty(SIDE, SIDE))
    (made,) = kernel_runs(CudaBackend().explain(graph))
    device = Device(0, 90, Driver([StandIn()]))  # type: ignore[list-item]
    call = native_entries([made], {made.step.entry: never}, device)[made.step.entry]
    buffers = [torch.zeros(SIDE * SIDE) for _ in made.step.buffers]
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call(*buffers)
        seconds.append((time.perf_counter() - start) / CALLS / len(made.kernels))
    median = sorted(seconds)[ROUNDS // 2]
    print(f"{len(made.kernels)} kernels of a run: {median * 1e9:.0f} ns each", flush=True)
    return [Row(f"a launch of {len(made.kernels)}", "framesmith", median, {}, ROUNDS)]
