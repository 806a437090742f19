"""Command line: `python -m benchmarks SUITE... [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.candidates import fresh_inductor_cache

SUITES = {
    "calls": "what a call costs around a graph that does next to nothing",
    "compile_time": "seconds of a first call, in fresh processes",
    "dynamic": "sentences of changing lengths through a small transformer",
    "foreign": "code that has nothing to do with tensors, inside compiled functions",
    "guards": "what checking many inputs costs",
    "kernels": "pointwise chains and reductions",
    "models": "whole models, inference and training",
    "optimizers": "optimizer steps over many small tensors",
}


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
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where tensors are made")
    arguments = parser.parse_args()
    fresh_inductor_cache()
    if arguments.device != "cpu":  # even the usual device, set by hand, makes every torch call go through a mode
        import torch

        torch.set_default_device(arguments.device)
    from benchmarks.harness import write_json

    rows = []
    for suite in arguments.suites:
        print(f"== {suite}: {SUITES[suite]}", flush=True)
        rows += importlib.import_module(f"benchmarks.{suite}").run()
    if arguments.json is not None:
        write_json(arguments.json, " ".join(arguments.suites), rows)


if __name__ == "__main__":
    main()
