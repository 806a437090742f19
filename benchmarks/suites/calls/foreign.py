"""Code that has nothing to do with tensors, inside functions that compute with some: first call and steady state."""

from __future__ import annotations

import io
import json
import logging
import pathlib
import time
from collections.abc import Callable
from typing import Any

import matplotlib.figure
import numpy as np
import pandas as pd
import scipy.sparse
import scipy.sparse.linalg
import torch
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg

from benchmarks.harness.candidates import available, wrap
from benchmarks.harness.timing import Row, compare, in_fresh_process, print_rows

FRAME = pd.DataFrame({"a": np.arange(100.0), "b": np.arange(100) * 2, "c": list("abcd") * 25})
SETTINGS = {"a": [1, 2, {"b": "x", "c": [1.5, None]}], "d": {"e": "f"}}
MATRIX = scipy.sparse.diags([1.0, -4.0, 1.0], [-1, 0, 1], shape=(60, 60)).tocsc()
LOG = logging.getLogger("benchmarks.suites.calls.foreign")
LOG.addHandler(logging.StreamHandler(io.StringIO()))
LOG.setLevel(logging.INFO)
LOG.propagate = False


def _plot() -> None:
    figure = matplotlib.figure.Figure()
    canvas = FigureCanvasAgg(figure)
    figure.add_subplot().plot([1, 2, 3])
    canvas.draw()


#: Interpreters of which the fastest counts: the machine's other work only adds.
PROCESSES = 3
CASES: dict[str, Callable[[], object]] = {
    "pandas describe and to_csv": lambda: (FRAME.describe(), FRAME.to_csv()),
    "json round trip": lambda: json.loads(json.dumps(SETTINGS, indent=2)),
    "yaml round trip": lambda: yaml.safe_load(yaml.safe_dump(SETTINGS)),
    "logging": lambda: LOG.info("at %s", 3),
    "pathlib": lambda: [path.name for path in pathlib.Path(__file__).parent.iterdir()],
    "scipy sparse solve": lambda: scipy.sparse.linalg.spsolve(MATRIX, np.ones(60)),
    "matplotlib": _plot,
}


def between(work: Callable[[], object]) -> Callable[[torch.Tensor], Any]:
    """Tensors before and after the work."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).relu().sum()
        work()
        return y + (x + 1).mean()

    return program


def nothing() -> None:
    """Breaks the graph where the work would be."""
    print(end="")


def warming_up(x: torch.Tensor) -> Any:
    """Has code of its own, so that compiling it leaves nothing that the cases could find."""
    y = (x * 3).relu().sum()
    nothing()
    return y + (x + 2).mean()


def first_call(case: str, way: str) -> float:
    """Seconds of the first call in this process, the compiler warm: of `eager`, of `framesmith`, or of its `graphs`.

    `graphs`: compiled without the work.
    """
    work = nothing if way == "graphs" else CASES[case]
    fn, x = between(work), torch.randn(100)
    if way != "eager":
        wrap("framesmith", warming_up)(x)
        fn = wrap("framesmith", between(work))
    start = time.perf_counter()
    fn(x)
    return time.perf_counter() - start


def fastest(case: str, way: str) -> float:
    """The least of `first_call` in a few fresh interpreters."""
    code = f"from benchmarks.suites.calls.foreign import first_call; print(first_call({case!r}, {way!r}))"
    return min(float(in_fresh_process(code)) for _ in range(PROCESSES))


def first_calls() -> list[Row]:
    """The first call of each case, and what it is of eager's time together with the graphs' own compile time."""
    rows: list[Row] = []
    for case in CASES:
        eager, graphs, compiled = (fastest(case, way) for way in ("eager", "graphs", "framesmith"))
        name = f"first call, {case}"
        rows.append(Row(name, "eager", eager, {}, PROCESSES))
        rows.append(Row(name, "framesmith", compiled, {"eager + graphs": compiled / (eager + graphs)}, PROCESSES))
        print_rows(rows[-2:])
    return rows


def run() -> list[Row]:
    """All cases of this suite."""
    rows: list[Row] = first_calls()
    x = torch.randn(100)
    for case, work in CASES.items():
        functions = {name: wrap(name, between(work)) for name in available()}
        steps = {name: (lambda fn=fn: fn(x)) for name, fn in functions.items()}
        rows += compare(case, steps, warmup=10)
        print_rows(rows[-len(steps) :])
    return rows
