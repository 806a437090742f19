"""Everything that needs a GPU, in one run of under eight minutes: tests, then models and kernels beside their peers.

Run in the repository root of a machine with a GPU, torch and triton: `python tools/gpu_check.py`. Results go to the
folder named by the environment variable OUT, or `gpu_results`: a log of all steps, and a JSON file of each suite. What
they come to is printed at the end. Packages that are not installed are taken from `src` folders (frames and guards need
their extensions built: wheels, installed or unpacked into a folder on PYTHONPATH, or
`python packages/frames/native_build.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 460.0
#: Seconds of a step's own end: its processes finish what they have begun, and write.
ENDING = 15.0
#: Folders with tests of the cuda backend, and words in the names of tests that need a device.
TESTS = ("packages/backends/tests", "integration_tests")
ON_DEVICE = ("real_device", "on_a_gpu")
WITHOUT_DEVICE = ("packages/backends/tests/test_cuda.py", "packages/backends/tests/launch/cuda/test_native.py")
#: Characters of a failed step and of all tables that are printed; the rest is in the files.
TAIL, PRINTED = 1500, 11500
#: So many failed tests are named, and as many reasons given.
MOST_PRINTED = 8


@dataclass(frozen=True)
class Step:
    """A step and the share of the whole time that it may take; what it leaves goes to those after it."""

    name: str
    share: float
    why: str


STEPS = (
    Step("machine", 0.04, "versions and the device"),
    Step("cuda-tests", 0.28, "tests that need a GPU"),
    Step("gpu_models", 0.42, "whole models"),
    Step("large_kernels", 0.2, "kernels that memory bounds"),
    Step("compile_time", 0.2, "first calls in fresh processes"),
    Step("without-gpu", 0.3, "tests of the cuda backend that need no GPU"),
)


def found(patterns: tuple[str, ...]) -> list[str]:
    """The files that there are."""
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def with_device_tests() -> list[str]:
    """The files that have tests which need a device."""
    names = re.compile(rf"^ *def test_\w*({'|'.join(ON_DEVICE)})", re.MULTILINE)
    files = found(tuple(f"{folder}/**/test_*.py" for folder in TESTS))
    return [file for file in files if names.search((ROOT / file).read_text())]


def has(module: str) -> bool:
    """Whether a module can be imported."""
    return importlib.util.find_spec(module) is not None


def pytest(files: list[str], chosen: str) -> list[str]:
    """Tests by several processes where xdist is there, each named as it ends, so that a log cut off has results."""
    spread = ["-n", str(min(os.cpu_count() or 1, 14))] if has("xdist") else []
    patience = ["--timeout", "120"] if has("pytest_timeout") else []
    return [sys.executable, "-m", "pytest", "-vv", "--tb=short", "-rfE", *spread, *patience, *files, "-k", chosen]


def command(step: Step, device: str, out: Path, seconds: float, workers: int) -> list[str]:
    """Return the command of a step that has so many seconds."""
    if step.name == "machine":
        return [sys.executable, "-m", "torch.utils.collect_env"]
    if step.name == "cuda-tests":
        return pytest(with_device_tests(), " or ".join(ON_DEVICE))
    if step.name == "without-gpu":
        return pytest(found(WITHOUT_DEVICE), f"not {ON_DEVICE[0]}")
    rows = str(out / f"{step.name}.json")
    suite = [sys.executable, "-m", "benchmarks", step.name, "--device", device, "--json", rows]
    if step.name == "compile_time":
        return [*suite, "--rounds", "1"]
    end = max(10.0, seconds - ENDING)
    return [*suite, "--workers", str(workers), "--prepare", f"{0.62 * end:.0f}", "--seconds", f"{end:.0f}"]


def environment(out: Path) -> dict[str, str]:
    """The steps' environment: the packages' sources on the path where they are not installed."""
    names = {"autograd_compiler": "framesmith_autograd_compiler", "framesmith": "framesmith"}
    folders = sorted((ROOT / "packages").iterdir())
    missing = [f for f in folders if not has(names.get(f.name, f"framesmith_{f.name}"))]
    paths = [str(ROOT), *(str(folder / "src") for folder in missing), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "OUT": str(out)}


def run(name: str, arguments: list[str], out: Path, seconds: float) -> tuple[int, str]:
    """Run one step; its status, 124 when it ran out of time, and what it said, which goes to the log of all steps."""
    log = out / "steps.log"
    with log.open("a") as file:
        file.write(f"\n==== {name}: {' '.join(arguments)}\n")
        file.flush()
        start = file.tell()
        deadline = time.time() + seconds - ENDING  # behind it no test is begun
        step = subprocess.Popen(
            arguments,
            cwd=ROOT,
            env=environment(out) | {"FRAMESMITH_GPU_DEADLINE": str(deadline)},
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = step.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            status = 124
        with contextlib.suppress(ProcessLookupError):  # what it has started goes with it
            os.killpg(step.pid, signal.SIGKILL)
        step.wait()
    with log.open("rb") as said:
        said.seek(start)
        return status, said.read().decode(errors="replace")


def end_of(name: str, status: int, said: str) -> str:
    """Return the printed part of a log: the result of tests, and the text of failures."""
    lines = said.splitlines()
    if name in ("cuda-tests", "without-gpu"):
        failed = [line for line in lines if re.search(r"(?<![\w.])(FAILED|ERROR)(?!\w)", line)]
        why = [line for line in lines if line.startswith("E  ")]  # not there where the step was cut off
        last = lines[-1] if lines and status != 124 else f"passed so far: {said.count(' PASSED')}"
        return "\n".join([*(line[:180] for line in dict.fromkeys([*failed[:MOST_PRINTED], *why[:MOST_PRINTED]])), last])
    if name == "machine":
        wanted = ("PyTorch version", "Python version", "GPU 0", "CUDA runtime", "Nvidia driver", "[pip3] triton")
        return "\n".join(line[:100] for line in lines if line.startswith(wanted))
    return said[-TAIL:] if status else ""


def tables(out: Path) -> str:
    """Return the results of the suites, in few lines."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.harness.summary import kernels_table, models_table, seconds_lines
    from benchmarks.harness.timing import Row

    lines: list[str] = []
    of_suites = {"large_kernels": kernels_table, "compile_time": seconds_lines, "gpu_models": models_table}
    for suite, table in of_suites.items():
        file = out / f"{suite}.json"
        if file.exists():
            rows = [Row(**row) for row in json.loads(file.read_text())["rows"]]
            lines += [f"== {suite}", *(line[:240] for line in table(rows))]
    return "\n".join(lines)


def main() -> int:
    """Run the steps; the number of failed ones is the exit status."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that all steps may take together")
    parser.add_argument("--steps", default=",".join(names), help="which of them, by name, with commas between")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"), help="cpu: to see that the steps run")
    parser.add_argument("--workers", type=int, default=10, help="processes that compile")
    arguments = parser.parse_args()
    if unknown := set(wanted := arguments.steps.split(",")) - set(names):
        parser.error(f"no steps {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: this machine has no CUDA device that torch can use")
        return 2
    out = Path(os.environ.get("OUT", "gpu_results")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "steps.log").write_text("")
    shares = sum(step.share for step in STEPS if step.name in wanted)
    start = time.monotonic()
    failed, said = 0, []
    for step in STEPS:
        left = arguments.limit - (time.monotonic() - start)
        if step.name not in wanted:
            continue
        if left < 5.0:
            said.append(f"gpu_check: {step.name}: no time left")
            failed += 1
            continue
        seconds = min(left, max(step.share, step.share / shares) * arguments.limit)
        begun = time.monotonic()
        try:
            asked = command(step, arguments.device, out, seconds, arguments.workers)
            status, text = run(step.name, asked, out, seconds)
        except Exception as error:  # the others are to run nevertheless
            status, text = 1, f"{type(error).__name__}: {error}"
        outcome = "ok" if status == 0 else f"exit status {status}"
        said.append(f"gpu_check: {step.name}: {outcome} after {time.monotonic() - begun:.0f} of {seconds:.0f} s")
        said.append(end_of(step.name, status, text)[-TAIL:])
        print("\n".join(said[-2:]), flush=True)
        failed += status != 0
    try:
        found = tables(out)
    except Exception as error:
        found = f"gpu_check: no tables: {type(error).__name__}: {error}"
    (out / "tables.txt").write_text("\n".join([*said, found]) + "\n")
    print(found[-PRINTED:], flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
