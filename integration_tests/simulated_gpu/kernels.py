"""Kernels for GPUs on the simulated one: compiled as for a device, and their PTX run by the emulator.

The emulator is that of the backends' tests (`packages/backends/tests/ptx`): what a device objects to is an error here.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from typing import Any

import torch

from integration_tests.simulated_gpu.device import ASSERTED, FAILED, ROOT, UNSUPPORTED
from integration_tests.simulated_gpu.not_built import NotBuilt

DEVICE_MEMORY = 2
_LOADER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int),
    ctypes.c_int,
)  # fmt: skip
_LAUNCHER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint), ctypes.c_uint,
    ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip


class Kernels:
    """The driver's callbacks. `errors` are failures in kernels that were not reported."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        sys.path.append(str(ROOT / "packages/backends/tests"))
        self.driver, self.loaded = driver, []  # type: ignore[var-annotated]
        self.errors: list[str] = []
        self.callbacks = _LOADER(self._load), _LAUNCHER(self._launch)
        driver.sim_set_callbacks(*self.callbacks)

    def _load(self, code: bytes, name: bytes, number: Any, sizes: Any, most: int) -> int:
        from ptx.program import parse

        try:
            program = parse(code.decode())
            if program.name != name.decode() or len(program.parameters) > most:
                raise ValueError(f"{program.name} is not {name.decode()}, or has more than {most} parameters")
        except Exception:
            self.errors.append(traceback.format_exc())
            return -1
        for k, (_, size) in enumerate(program.parameters.values()):
            sizes[k] = size
        number[0] = len(self.loaded)
        self.loaded.append(program)
        return len(program.parameters)

    def _launch(self, number: int, grid: Any, block: Any, shared: int, parameters: Any) -> int:
        try:
            self._emulate(number, [grid[k] for k in range(3)], [block[k] for k in range(3)], shared, parameters)
        except BaseException as error:  # nothing may leave a callback
            from ptx.program import UnknownInstruction

            if isinstance(error, UnknownInstruction):
                NotBuilt(f"the instruction {error.operation}")
                sys.stderr.write(f"simulated GPU: {error}\n")
                return UNSUPPORTED
            self.errors.append(traceback.format_exc())
            asserted = "assert" in str(error)
            sys.stderr.write(f"simulated GPU: {'device-side assert: ' if asserted else ''}{error}\n")
            return ASSERTED if asserted else FAILED
        return 0

    def _emulate(self, number: int, grid: list[int], block: list[int], shared: int, parameters: Any) -> None:
        from ptx.launching import run_grid

        program = self.loaded[number]
        if grid[1:] != [1, 1] or block != [program.threads, 1, 1]:
            raise ValueError(f"{program.name} of {program.threads} threads is launched on {grid} blocks of {block}")
        values: list[torch.Tensor | bytes] = []
        for k, (name, (_, size)) in enumerate(program.parameters.items()):
            word = ctypes.string_at(parameters[k], size)
            address = int.from_bytes(word, "little")
            values.append(self._memory(address) if name in program.pointers and address else word)
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            run_grid(program, shared, range(grid[0]), grid[0], values)

    def _memory(self, address: int) -> torch.Tensor:
        """From there to the end of what was allocated."""
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        if self.driver.sim_find(ctypes.c_void_p(address), ctypes.byref(base), ctypes.byref(size)) != DEVICE_MEMORY:
            raise ValueError(f"{address:#x} is no address of the device's memory")
        count = (base.value or 0) + size.value - address
        if count == 0:
            return torch.empty(0)
        return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


def as_text(kernel: Any, aligned: bool, capability: int, anywhere: bool = False) -> Any:
    """`framesmith_backends.launch.cuda.cubins.cubin` with PTX for code: machine code is made too, and refused too."""
    from framesmith_backends.launch.cuda import cubins

    found = cubins.compiled(kernel, capability, aligned, anywhere)
    cubins._refuse_more_than_a_grid(kernel.name, found.metadata)
    cubins._refuse_too_much_shared(kernel.name, found.metadata.shared, capability)
    text = found.asm["ptx"].encode() + b"\0"
    return cubins.Cubin(found.metadata.name, 32 * kernel.warps, found.metadata.shared, text)
