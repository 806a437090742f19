"""A device with a driver that emulates: native entries launch on it what they would launch on a GPU.

Its machine code is the text of PTX. Parameters are read where the launch says they lie, in the sizes that the kernel
has for them, and addresses have to be those of tensors that the entry was given.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from ptx.launching import run_grid
from ptx.program import Program, parse

from framesmith_backends.cuda import TritonStages, kernel_runs
from framesmith_backends.launch.cuda import driver as cuda_driver
from framesmith_backends.launch.cuda import native as cuda_native
from framesmith_backends.launch.cuda import one_by_one
from framesmith_backends.launch.cuda.cubins import Cubin
from framesmith_backends.launch.cuda.triton_jit import compiled
from framesmith_backends.launch.source import executed, write
from framesmith_backends.render.triton.kernel import TritonKernel

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, *[ctypes.c_uint] * 7, *[ctypes.c_size_t] * 3)
_DEVICE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_size_t))


STREAM = 77


@dataclass
class Device:
    """`launched` are the names of functions, in order; `given` the tensors of the entry that runs.

    What native entries cannot take is launched kernel by kernel; `one_by_one` counts these launches.
    """

    capability: int = 80
    launched: list[str] = field(default_factory=list)
    given: list[torch.Tensor] = field(default_factory=list)
    loaded: list[tuple[Cubin, Program]] = field(default_factory=list)
    error: BaseException | None = None
    one_by_one: int = 0

    def __post_init__(self) -> None:
        def on_device(location: Any) -> int:
            location[0] = 0
            return 0

        def on_stream(device: int, location: Any) -> int:
            location[0] = STREAM
            return 0

        self.functions = {
            "cuLaunchKernel": _LAUNCH(self._launch), "cuCtxGetDevice": _DEVICE(on_device),
            "aoti_torch_get_current_cuda_stream": _STREAM(on_stream),
        }  # fmt: skip

    def compile(self, stages: TritonStages) -> Callable[[list[torch.Tensor]], Any]:
        """The graph's launch list with native entries."""
        source, space = write(stages.plan, stages.graph)
        runs = kernel_runs(stages)
        with mock.patch.object(cuda_native, "cubins", self._cubins):
            location = cuda_driver.Device(0, self.capability, self)  # type: ignore[arg-type]
            instead = {run.step.entry: one_by_one.entry(run, location) for run in runs}
            entries = cuda_native.native_entries(runs, instead, location) if runs else {}
        return executed(source, space | {name: self._entry(entry) for name, entry in entries.items()})

    def _entry(self, entry: Any) -> Callable[..., None]:
        def run(*values: Any) -> None:
            self.given, self.error = [v for v in values if isinstance(v, torch.Tensor)], None
            try:
                with mock.patch.object(one_by_one, "cubin", self._cubin):
                    entry(*values)
            except RuntimeError:
                if self.error is not None:
                    raise self.error from None
                raise

        return run

    # What native entries ask of a driver.

    def address(self, name: str) -> int:
        return ctypes.cast(self.functions[name], ctypes.c_void_p).value or 0

    def kernel(self, cubin: Cubin, device: int) -> int:
        self.loaded.append((cubin, parse(cubin.code.decode())))
        return len(self.loaded)

    def launch(self, function: int, programs: int, cubin: Cubin, device: int, parameters: Sequence[Any]) -> None:
        self.one_by_one += 1
        pointers = (ctypes.c_size_t * len(parameters))(*map(ctypes.addressof, parameters))
        self._emulate(
            function, programs, 1, 1, cubin.threads, 1, 1, cubin.shared, STREAM, ctypes.addressof(pointers), 0
        )

    def _cubins(self, wanted: Sequence[tuple[TritonKernel, bool]], capability: int) -> list[Cubin]:
        return [self._cubin(kernel, aligned, capability) for kernel, aligned in wanted]

    def _cubin(self, kernel: TritonKernel, aligned: bool, capability: int, anywhere: bool = False) -> Cubin:
        made = compiled(kernel, capability, aligned, anywhere)
        return Cubin(made.metadata.name, 32 * kernel.warps, made.metadata.shared, made.asm["ptx"].encode())

    def _launch(self, function: int, *rest: int) -> int:
        try:
            self._emulate(function, *rest)
        except BaseException as error:
            self.error = error
            return 1
        return 0

    def _emulate(self, function: int, x: int, y: int, z: int, threads: int, *rest: int) -> None:
        cubin, program = self.loaded[function - 1]
        shared, stream, pointers, extra = rest[2:]
        assert (y, z, rest[:2], stream, extra) == (1, 1, (1, 1), STREAM, 0)
        assert (threads, shared) == (program.threads, cubin.shared), (
            "launched in another shape than it was compiled for"
        )
        addresses = (ctypes.c_size_t * len(program.parameters)).from_address(pointers)
        sizes = program.parameters
        data = [ctypes.string_at(at, size) for at, (_, size) in zip(addresses, sizes.values(), strict=True)]
        values: list[Any] = []
        for name, some in zip(sizes, data, strict=True):
            number = int.from_bytes(some, "little")
            if name not in program.pointers or number == 0:
                values.append(some)
                continue
            values.append(self._memory(number, f"{program.name}: {name}"))
        self.launched.append(program.name)
        run_grid(program, shared, range(x), x, values)

    def _memory(self, address: int, what: str) -> torch.Tensor:
        """The tensor that begins there, or the rest of an arena."""
        for tensor in self.given:
            start = tensor.data_ptr()
            if address == start:
                return tensor
            if tensor.dtype == torch.uint8 and start < address < start + tensor.nbytes:
                return tensor[address - start :]
        raise AssertionError(f"{what} is no tensor's address")
