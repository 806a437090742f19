"""Command line: `python -m benchmarks SUITE... [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from benchmarks.candidates import NAMES, REPLAYING, fresh_inductor_cache
from benchmarks.device import DEVICES, choose
from benchmarks.registry import TYPES

SUITES = {
    "calls": "what a call costs around a graph that does next to nothing",
    "compile_time": "seconds of a first call, in fresh processes",
    "cubins": "machine code of the cuda backend's kernels: registers, spills, shared memory; needs no GPU",
    "dynamic": "sentences of changing lengths through a small transformer",
    "foreign": "code that has nothing to do with tensors, inside compiled functions",
    "generation": "text generated token by token with a cache that grows",
    "gpu_models": "whole models in all modes, compiled by many processes against a deadline, timed by one at a time",
    "guards": "what checking many inputs costs",
    "instructions": "what elementary functions of the CPU come to as machine code, for all kinds of processors",
    "interpreted": "kernels of the cuda backend in Triton's interpreter, checked against eager",
    "kernels": "single kernels of all kinds, checked against eager",
    "large_kernels": "kernels that memory bounds at sizes for a large GPU, as shares of a copy's bandwidth",
    "launches": "what launching a CUDA kernel costs beside the driver; needs no GPU",
    "memory": "memory, tensors and operator calls of a step of whole models, and what compiling adds",
    "models": "whole models, inference and training",
    "optimizers": "optimizer steps over many small tensors",
    "whole_steps": "training steps with backward() inside, whole and as parts compiled apart",
}

#: Suites that take the options which choose rows of a registry.
SELECTIVE = (
    "compile_time", "cubins", "gpu_models", "instructions", "interpreted", "kernels", "large_kernels", "memory",
    "models",
)  # fmt: skip

#: Suites whose cases are shared among processes.
SHARED = ("gpu_models", "large_kernels")

#: Suites that run on another device than the CPU.
ANYWHERE = ("compile_time", "gpu_models", "kernels", "large_kernels", "models")


def main() -> None:
    """Run the suites asked for, in order."""
    listing = "\n".join(f"  {name:<14}{text}" for name, text in SUITES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Eager, torch.compile and framesmith, interleaved.\n\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="+", choices=SUITES, metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--json", type=Path, help="write rows, versions and the processor to this file")
    parser.add_argument("--device", default="cpu", choices=DEVICES, help="where the benchmarks run")
    parser.add_argument(
        "--only",
        default="*",
        metavar="PATTERN",
        help="models, kernels, kinds of them, or operators, as a shell pattern",
    )
    parser.add_argument("--candidates", nargs="+", default=(), choices=(*NAMES, *REPLAYING, "openvino"))
    parser.add_argument("--kind", choices=("inference", "training"))
    parser.add_argument("--dtype", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument(
        "--rounds", type=int, help="how often each candidate is timed; the suites differ in what they do by themselves"
    )
    parser.add_argument("--floor", action="store_true", help="each row's share of what the machine allows")
    parser.add_argument("--workers", type=int, default=10, help=f"processes that compile, in {', '.join(SHARED)}")
    parser.add_argument("--prepare", type=float, default=170.0, help="seconds after which these compile nothing new")
    parser.add_argument("--seconds", type=float, default=300.0, help="seconds after which these time nothing new")
    arguments = parser.parse_args()
    if arguments.device != "cpu" and (unfit := [name for name in arguments.suites if name not in ANYWHERE]):
        parser.error(f"{', '.join(unfit)}: on the CPU alone; on other devices there are {', '.join(ANYWHERE)}")
    fresh_inductor_cache()
    choose(arguments.device)
    from benchmarks.harness import Row, write_json
    from benchmarks.selection import Selection
    from benchmarks.workers import Limits
    from benchmarks.zoo import MODES

    rows: list[Row] = []
    kept: list[Row] = []
    due = 0.0

    def keep(found: list[Row]) -> None:
        """Written as they come, of many rows less often: no more than a twentieth of the time goes to it."""
        nonlocal due
        kept.extend(found)
        if arguments.json is not None and (begun := time.monotonic()) >= due:
            write_json(arguments.json, " ".join(arguments.suites), kept)
            due = time.monotonic() + 19 * (time.monotonic() - begun)

    selection = Selection(
        arguments.only,
        tuple(arguments.candidates),
        (arguments.kind,) if arguments.kind else MODES,
        tuple(arguments.dtype),
        arguments.rounds,
        arguments.floor,
        keep,
    )
    for suite in arguments.suites:
        print(f"== {suite}: {SUITES[suite]}", flush=True)
        module = importlib.import_module(f"benchmarks.{suite}")
        if suite in SHARED:
            rows += module.run(selection, Limits(arguments.workers, arguments.prepare, arguments.seconds))
        else:
            rows += module.run(selection) if suite in SELECTIVE else module.run()
        kept[:] = rows
    if arguments.json is not None:
        write_json(arguments.json, " ".join(arguments.suites), rows)


if __name__ == "__main__":
    main()
