"""The simulated GPU as a whole: `start()` before torch is imported, and torch finds one device.

It takes a torch that was built for CUDA 13 and gcc. `docs/design/gpu/0033` lists its features.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration_tests.simulated_gpu.not_built import NotBuilt

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
#: The compute capability, as a number of two digits.
CAPABILITY = "FRAMESMITH_SIMULATED_GPU"
#: CUDA's errors of kernels: an assertion, anything else; and of what is not built.
ASSERTED, FAILED, UNSUPPORTED = 710, 719, 801


def _refuse_jiterator(*args: Any) -> None:
    raise NotBuilt("kernels that torch compiles")


@dataclass
class SimulatedGpu:
    """The device's parts."""

    driver: ctypes.CDLL
    kernels: Any
    operators: Any

    def recover(self) -> list[str]:
        """Go on after a kernel has failed; what was wrong since the last time."""
        reported = self.driver.sim_reported().decode()
        self.driver.sim_recover()
        found = [*([reported] if reported else []), *self.kernels.errors, *self.operators.errors]
        self.kernels.errors.clear()
        self.operators.errors.clear()
        return found

    def not_built(self) -> list[str]:
        """Return the features that were used and are not built, since the last call."""
        found = [*NotBuilt.reached]
        NotBuilt.reached.clear()
        while name := self.driver.sim_next_missing():
            found.append(name.decode())
        return found


def _folder_of(module: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(f"no {module} is installed")
    return Path(next(iter(found.submodule_search_locations)))


def build(into: Path) -> tuple[Path, Path]:
    """Compile the stand-ins for CUDA's driver and runtime."""
    headers = [_folder_of("nvidia.cu13") / "include", _folder_of("triton") / "backends/nvidia/include"]
    driver, runtime = into / "libcuda.so.1", into / "libcudart.so.13"
    plain = ["gcc", "-O2", "-Wall", "-fPIC", "-shared", "-pthread"]
    named, sources = [f"-Wl,-soname,{driver.name}"], [str(FOLDER / name) for name in ("driver.c", "memory.c")]
    subprocess.run([*plain, *named, *sources, "-o", str(driver)], check=True)
    named = [f"-Wl,-soname,{runtime.name}", f"-Wl,--version-script={FOLDER / 'versions.map'}"]
    flags = [*(f"-I{folder}" for folder in headers), f"-L{into}", f"-l:{driver.name}"]
    subprocess.run([*plain, *named, str(FOLDER / "runtime.c"), *flags, "-o", str(runtime)], check=True)
    return driver, runtime


@functools.cache
def start() -> SimulatedGpu:
    """Make torch find the device, import it, and put the emulator behind it."""
    if "torch" in sys.modules:
        raise RuntimeError("the simulated GPU has to be started before torch is imported")
    os.environ.setdefault(CAPABILITY, "80")
    # Each tensor is an allocation of its own: what lies beyond it is out of bounds.
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    with tempfile.TemporaryDirectory() as folder:
        files = build(Path(folder))
        driver, runtime = (ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL) for file in files)
    driver.sim_next_missing.restype = driver.sim_reported.restype = ctypes.c_char_p
    import torch

    import framesmith
    from framesmith_backends.autotune import clock
    from framesmith_backends.launch.cuda import cubins, one_by_one
    from integration_tests.simulated_gpu import kernels
    from integration_tests.simulated_gpu.operators import Operators

    gpu = SimulatedGpu(driver, kernels.Kernels(driver), Operators(runtime, driver))
    gpu.operators.install(framesmith.disable)
    torch._C._cuda_jiterator_compile_and_launch_kernel = _refuse_jiterator
    torch._C._cuda_sleep = lambda cycles: None
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    torch.cuda.current_blas_handle = lambda: 0  # type: ignore[assignment]
    cubins.cubin = clock.cubin = one_by_one.cubin = kernels.as_text
    torch.cuda.init()
    return gpu
