"""Seconds until a first call returns, each measured in a process of its own, imports excluded.

*first call*: with empty caches. *again*: with the caches that an earlier process has left. The last rows are framesmith
alone, least of the rounds: graphs whose sizes are known, and graphs that take all sizes; a training step so
deep that its joint graph has more than 20,000 nodes.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.candidates import available
from benchmarks.harness.device import chosen
from benchmarks.harness.timing import Row, in_fresh_process, print_rows, ratios
from benchmarks.models.selection import Selection

CASES = ("pointwise", "digits", "bert")
ROUNDS = 3
#: Models that are compiled once for their sizes, and once for all.
DYNAMIC_CASES = ("bert",)
#: The case of a deep model: its layers, and the figure that says how large their joint graph is.
DEEP, DEEP_LAYERS, NODES = "deep", 640, "joint graph nodes"


def first_call(case: str, candidate: str, device: str, caches: str, **settings: Any) -> float:
    """Seconds of the first call in this process; torch (and framesmith) are imported before the clock starts.

    `caches` is the folder of what is kept between processes.
    """
    import time

    import torch

    from benchmarks.harness.candidates import keep_inductor_cache_in, wrap
    from benchmarks.harness.device import building, choose, synchronize
    from benchmarks.models.programs import DigitsNet, pointwise, training_step
    from benchmarks.models.zoo import make_step, select

    keep_inductor_cache_in(os.path.join(caches, "inductor"))
    choose(device)
    if candidate == "framesmith":
        keep_caches_in(Path(caches))
    if case == "pointwise":
        with building():
            x, y = torch.randn(1 << 20), torch.randn(1 << 20)
        fn = wrap(candidate, pointwise, **settings)
        step = lambda: fn(x, y)  # noqa: E731
    elif case == "digits":
        torch.manual_seed(0)
        with building():
            model = DigitsNet()
            batch = torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        step = training_step(wrap(candidate, model, **settings), optimizer, *batch)
    else:
        (row,) = select(case)
        step = make_step(row, "inference", "float32", lambda module: wrap(candidate, module, **settings))
    synchronize()  # which makes a GPU ready, too
    start = time.perf_counter()
    step()
    synchronize()
    return time.perf_counter() - start


def keep_caches_in(folder: Path) -> None:
    """Point framesmith at a cache folder that has the measured matmuls, once for the machine."""
    from framesmith_backends import storage

    known, mine = storage.folder(), folder / "framesmith"
    os.environ["XDG_CACHE_HOME"] = str(folder)
    if not mine.exists():
        mine.mkdir(mode=0o700)
        for table in [] if known is None else known.glob("*.json"):
            shutil.copy(table, mine)


def measure(case: str, candidate: str, caches: str, **settings: Any) -> float:
    """`first_call` in a fresh interpreter."""
    call = f"first_call({case!r}, {candidate!r}, {chosen()!r}, {caches!r}, **{settings!r})"
    code = f"from benchmarks.suites.calls.compile_time import first_call; print({call})"
    try:
        return float(in_fresh_process(code))
    except RuntimeError as error:
        raise RuntimeError(f"{candidate} failed on {case}:\n{error}") from None


def of_symbols(case: str, rounds: int) -> list[Row]:
    """A model whose sizes are known, and the same with symbols from the first call on."""
    times: dict[str, list[float]] = {"static": [], "dynamic": []}
    for _ in range(rounds):
        for name, mine in times.items():
            with tempfile.TemporaryDirectory(prefix="caches-") as caches:
                mine.append(measure(case, "framesmith", caches, dynamic=name == "dynamic"))
    least = {name: [min(mine)] for name, mine in times.items()}
    return [Row(f"first call, {case}, symbols", n, s[0], ratios(s, least, n), rounds) for n, s in least.items()]


def first_step_of_deep(layers: int, caches: str) -> tuple[float, int]:
    """Seconds of a deep model's first training step in this process, and the nodes of its joint graph."""
    import time

    import torch

    import framesmith
    import framesmith_aot.compile
    from benchmarks.models.programs import deep_model

    keep_caches_in(Path(caches))
    nodes: list[int] = []
    trace = framesmith_aot.compile.trace_joint

    def counted(*args: Any, **settings: Any) -> Any:
        joint = trace(*args, **settings)
        nodes.append(len(joint.graph.nodes))
        return joint

    framesmith_aot.compile.trace_joint = counted
    torch.manual_seed(0)
    step, data = framesmith.compile(deep_model(layers), strict=True), torch.randn(16, 32)
    start = time.perf_counter()
    step(data).sum().backward()
    seconds = time.perf_counter() - start
    (count,) = nodes
    return seconds, count


def of_deep(rounds: int) -> list[Row]:
    """A deep model's first training step, with empty caches: least of the rounds."""
    seconds, nodes = [], 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="caches-") as caches:
            call = f"first_step_of_deep({DEEP_LAYERS}, {caches!r})"
            said = in_fresh_process(
                f"from benchmarks.suites.calls.compile_time import first_step_of_deep; print(*{call})"
            )
        seconds.append(float(said.split()[0]))
        nodes = int(said.split()[1])
    title = f"first training step, {DEEP_LAYERS} layers, {nodes:,} nodes"
    return [Row(title, "framesmith", min(seconds), {}, rounds, "", {NODES: nodes})]


def run(selection: Selection | None = None) -> list[Row]:
    """The cases asked for."""
    selection = selection or Selection()
    rounds = selection.rounds_or(ROUNDS)
    rows: list[Row] = []
    for case in fnmatch.filter(CASES, selection.only):
        names = selection.among(available())
        first: dict[str, list[float]] = {name: [] for name in names}
        again: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                with tempfile.TemporaryDirectory(prefix="caches-") as caches:
                    first[name].append(measure(case, name, caches))
                    again[name].append(measure(case, name, caches))
        for title, times in (("first call", first), ("again", again)):
            medians = {name: statistics.median(mine) for name, mine in times.items()}
            found = [
                Row(
                    f"{title}, {case}", name, seconds, {o: seconds / t for o, t in medians.items() if o != name}, rounds
                )
                for name, seconds in medians.items()
            ]
            print_rows(found)
            selection.keep(found)
            rows += found
    for case in fnmatch.filter(DYNAMIC_CASES, selection.only) if "framesmith" in selection.among(available()) else ():
        print_rows(found := of_symbols(case, rounds))
        selection.keep(found)
        rows += found
    if fnmatch.fnmatch(DEEP, selection.only) and "framesmith" in selection.among(available()) and chosen() == "cpu":
        print_rows(found := of_deep(rounds))
        selection.keep(found)
        rows += found
    return rows
