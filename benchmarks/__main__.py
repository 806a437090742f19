"""Command line: `python -m benchmarks SUITE... [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from benchmarks.harness.candidates import NAMES, REPLAYING, fresh_inductor_cache
from benchmarks.harness.device import DEVICES, choose
from benchmarks.harness.registry import TYPES
from benchmarks.suites import SUITES, module_of


def main() -> None:
    """Run the suites asked for, in order."""
    listing = "\n".join(f"  {name:<14}{suite.about}" for name, suite in SUITES.items())
    shared = [name for name, suite in SUITES.items() if suite.shared]
    anywhere = [name for name, suite in SUITES.items() if suite.anywhere]
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
    parser.add_argument("--workers", type=int, default=10, help=f"processes that compile, in {', '.join(shared)}")
    parser.add_argument("--prepare", type=float, default=170.0, help="seconds after which these compile nothing new")
    parser.add_argument("--seconds", type=float, default=300.0, help="seconds after which these time nothing new")
    arguments = parser.parse_args()
    if arguments.device != "cpu" and (unfit := [name for name in arguments.suites if not SUITES[name].anywhere]):
        parser.error(f"{', '.join(unfit)}: on the CPU alone; on other devices there are {', '.join(anywhere)}")
    fresh_inductor_cache()
    choose(arguments.device)
    from benchmarks.harness.timing import Row, write_json
    from benchmarks.harness.workers import Limits
    from benchmarks.models.selection import Selection
    from benchmarks.models.zoo import MODES

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
        print(f"== {suite}: {SUITES[suite].about}", flush=True)
        module = importlib.import_module(module_of(suite))
        if SUITES[suite].shared:
            rows += module.run(selection, Limits(arguments.workers, arguments.prepare, arguments.seconds))
        else:
            rows += module.run(selection) if SUITES[suite].selective else module.run()
        kept[:] = rows
    if arguments.json is not None:
        write_json(arguments.json, " ".join(arguments.suites), rows)


if __name__ == "__main__":
    main()
