"""Resources of a step of a whole model, and memory that compiling it leaves behind: bytes, tensors, operators called.

Each candidate runs in a process of its own, a copy of one in which everything that all of them need is imported.
Nothing is timed: two run at a time, and torch.compile finds what it has compiled on this machine before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.harness.candidates import NAMES, wrap
from benchmarks.harness.isolated import started
from benchmarks.harness.operators_called import FIGURE, operators_called
from benchmarks.harness.tensors_made import peak_bytes, tensor_objects
from benchmarks.harness.timing import Row
from benchmarks.models.selection import Selection, title
from benchmarks.models.zoo import Model, make_step, select

#: The figures of a row, in the order in which they are printed.
PEAK, ADDED, OBJECTS = "peak bytes", "bytes compiling adds", "tensor objects"
MIB = 2**20
#: Processes at a time.
AT_ONCE = 2


def resident() -> int:
    """Bytes of this process in memory, once what is free has been given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def warm(step: Callable[[], object]) -> None:
    """Run it until it asks for nothing more that stays: a library's pools, what the second call compiles."""
    for _ in range(3):
        step()


def figures(model: str, mode: str, dtype: str, candidate: str) -> dict[str, int]:
    """The figures of a candidate; what compiling adds is beyond the same model in eager mode in the same process."""
    (row,) = select(model)
    eager = make_step(row, mode, dtype, lambda module: module)
    warm(eager)
    before = resident()
    del eager
    step = make_step(row, mode, dtype, lambda module: wrap(candidate, module))
    warm(step)
    added = resident() - before
    return {
        PEAK: peak_bytes(step),
        ADDED: added,
        OBJECTS: tensor_objects(step),
        FIGURE: operators_called(step),
    }


def _answer(there: Connection, case: tuple[str, str, str, str]) -> None:
    """Run a process: send the figures, or the reason for none."""
    try:
        there.send(figures(*case))
    except Exception as error:
        there.send(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def measure(row: Model, mode: str, dtype: str, candidate: str) -> Row:
    """`figures` in a process of its own, as a row."""
    process, here = started(_answer, (row.name, mode, dtype, candidate))
    try:
        found = here.recv()
    except EOFError:
        found = "the process died"
    process.join()
    case = title(row, mode, dtype)
    if isinstance(found, str):
        return Row(case, candidate, float("nan"), {}, 0, found)
    return Row(case, candidate, float("nan"), {}, 1, "", found)


def measured(selection: Selection) -> Iterator[list[Row]]:
    """The rows of each case."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        cases = []
        for row, mode, dtype in selection.cases():
            names = [name for name in selection.names(row, mode, dtype) if name in NAMES]
            cases.append([pool.submit(measure, row, mode, dtype, name) for name in names])
        for waiting in cases:
            yield [one.result() for one in waiting]


def print_case(rows: list[Row]) -> None:
    """A case's rows as a table."""
    for row in rows:
        f = row.figures
        text = (
            f"cannot: {row.reason}"
            if row.reason
            else f"peak {f[PEAK] / MIB:8.2f} MiB   compiling adds {f[ADDED] / MIB:6.1f} MiB   "
            f"{f[OBJECTS]:5} {OBJECTS}   {f[FIGURE]:5} {FIGURE}"
        )
        print(f"{row.case:<42} {row.candidate:<14} {text}", flush=True)


def print_summary(rows: list[Row]) -> None:
    """Print the cases where framesmith needs more than torch.compile, by ratio; the most that compiling adds."""
    by_case: dict[str, dict[str, Row]] = {}
    for row in rows:
        if not row.reason:
            by_case.setdefault(row.case, {})[row.candidate] = row
    both = {case: (r["framesmith"], r["torch.compile"]) for case, r in by_case.items() if len({*r} - {"eager"}) == 2}
    for figure in (PEAK, OBJECTS, FIGURE):
        over = {c: (o.figures[figure], t.figures[figure]) for c, (o, t) in both.items()}
        worst = sorted((ours / max(theirs, 1), c) for c, (ours, theirs) in over.items() if ours > theirs)
        print(f"{figure}: more than torch.compile's in {len(worst)} of {len(both)} cases")
        for ratio, case in reversed(worst):
            print(f"    {ratio:6.2f}x {case}: {over[case][0]} for {over[case][1]}")
    ours = [r["framesmith"] for r in by_case.values() if "framesmith" in r]
    if ours:
        most = max(ours, key=lambda row: row.figures[ADDED])
        print(f"compiling adds at most {most.figures[ADDED] / MIB:.1f} MiB ({most.case})", flush=True)


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for; rows hold figures, no times."""
    selection = selection or Selection()
    kept = Path(tempfile.gettempdir()) / f"inductor-{torch.__version__}-{os.getuid()}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(kept)
    rows: list[Row] = []
    for found in measured(selection):
        print_case(found)
        selection.keep(found)
        rows += found
    print_summary(rows)
    return rows
