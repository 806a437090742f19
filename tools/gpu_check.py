"""Everything that needs a GPU, in one run of under eight minutes: CUDA tests, then kernels beside their peers.

Run in the repository root of a machine with a GPU, torch and triton: `python tools/gpu_check.py`. Results go to the
folder named by the environment variable OUT, or `gpu_results`. Packages that are not installed are taken from `src`
folders (frames and guards need their extensions built: wheels, or `python packages/frames/native_build.py`).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 460.0
PYTEST = [sys.executable, "-m", "pytest", "-q"]
CUDA_TESTS = "packages/backends/tests/test_cuda.py"
#: name of the log -> command
STEPS: dict[str, list[str]] = {
    "machine": [sys.executable, "-m", "torch.utils.collect_env"],
    "cuda-tests": [*PYTEST, CUDA_TESTS, "-k", "real_device"],
    "dynamic": [*PYTEST, "integration_tests/test_dynamic_kernels.py", "-k", "on_a_gpu"],
    "kernels": [sys.executable, "-m", "benchmarks", "kernels", "--device", "cuda"],
    # Last, because they need no GPU: cubins, and the interpreter's numbers.
    "without-gpu": [
        *PYTEST,
        CUDA_TESTS,
        "packages/backends/tests/launch/test_cuda_native.py",
        "-k",
        "not real_device",
    ],
}


def environment(out: Path) -> dict[str, str]:
    """The steps' environment: the packages' sources on the path where they are not installed."""
    names = {"autograd_compiler": "framesmith_autograd_compiler", "framesmith": "framesmith"}
    folders = sorted((ROOT / "packages").iterdir())
    missing = [f for f in folders if importlib.util.find_spec(names.get(f.name, f"framesmith_{f.name}")) is None]
    paths = [str(ROOT), *(str(folder / "src") for folder in missing), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "OUT": str(out)}


def run(name: str, command: list[str], out: Path, seconds: float) -> int:
    """Run one step, its output into a log file; 124 when it ran out of time."""
    with (out / f"{name}.log").open("w") as log:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment(out),
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124
    return done.returncode


def main() -> int:
    """Run the steps; the number of failed ones is the exit status."""
    import torch

    if not torch.cuda.is_available():
        print("gpu_check: this machine has no CUDA device that torch can use")
        return 2
    out = Path(os.environ.get("OUT", "gpu_results")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    STEPS["kernels"] += ["--json", str(out / "kernels-cuda.json")]
    end = time.monotonic() + LIMIT
    failed = 0
    for name, command in STEPS.items():
        code = run(name, command, out, max(1.0, end - time.monotonic()))
        print(f"gpu_check: {name}: {'ok' if code == 0 else f'exit status {code}'}", flush=True)
        failed += code != 0
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
