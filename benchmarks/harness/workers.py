"""Cases shared by processes: compiled by all of them at once, then timed by one at a time, against two deadlines.

Whoever compiles holds a file's lock with others; whoever times holds it alone. So nothing else runs on the device or
the processors while a case is timed. Each process takes the next case that nobody has, and keeps what it compiled.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.candidates import compile_many
from benchmarks.harness.device import choose, chosen
from benchmarks.harness.summary import FIRST_CALL
from benchmarks.harness.timing import Row, Step, print_rows

#: Seconds after the first deadline until a case that is still being compiled is given up, and once more until its
#: process is ended.
GRACE = 15.0


@dataclass(frozen=True)
class Job:
    """A case: `prepare` gives a candidate's step, checked, and its first call's seconds; `measure` times the steps."""

    title: str
    candidates: tuple[str, ...]
    prepare: Callable[[str], tuple[Step, float]]
    measure: Callable[[dict[str, Step]], list[Row]]
    release: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Order:
    """The order for a worker: `module` has a function `jobs`, called with `asked`; times are monotonic."""

    module: str
    asked: dict[str, Any]
    device: str
    folder: str
    prepare_until: float
    end: float


@dataclass
class Prepared:
    """A case's steps, and what is known of it before it is timed."""

    job: Job
    steps: dict[str, Step] = field(default_factory=dict)
    refused: list[Row] = field(default_factory=list)
    first_calls: dict[str, int] = field(default_factory=dict)


class OutOfTime(BaseException):
    """The first deadline has passed; no handler for errors is to catch it."""


def cannot(case: str, candidate: str, reason: str) -> Row:
    """A row without a time."""
    return Row(case, candidate, float("nan"), {}, 0, reason)


def work(order: Order, number: int, lock: int) -> None:
    """One worker: compile cases until the first deadline, then time them until the second. `lock` is held, shared."""
    warnings.simplefilter("ignore")
    choose(order.device)
    compile_many()
    folder = Path(order.folder)
    jobs: Sequence[Job] = importlib.import_module(order.module).jobs(order.asked)
    rows: list[Row] = []

    def keep(found: list[Row]) -> None:
        rows.extend(found)
        write(folder / f"worker-{number}.json", [asdict(row) for row in rows])

    ready = []
    for position, job in enumerate(jobs):
        if time.monotonic() >= order.prepare_until:
            break
        claim = folder / f"case-{position}"
        if claimed(claim):
            note = functools.partial(note_candidate, claim, number, job.title)
            ready.append(prepared(job, note, order.prepare_until + GRACE))
            if ready[-1].refused:
                print_rows(ready[-1].refused)
    (folder / f"worker-{number}.ready").touch()
    gc.collect()
    gc.freeze()  # what compilers leave behind is not to be searched for garbage again and again while cases are timed
    fcntl.flock(lock, fcntl.LOCK_UN)
    for one in ready:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keep(timed(one, order.end) + one.refused)
        fcntl.flock(lock, fcntl.LOCK_UN)


def claimed(claim: Path) -> bool:
    """Whether the case is this process's from now on."""
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def note_candidate(claim: Path, number: int, title: str, candidate: str) -> None:
    """Write down what is done in a case, for the case that the process does not survive it."""
    write(claim, {"worker": number, "case": title, "candidate": candidate})


def write(path: Path, content: object) -> None:
    """A file that is at all times whole."""
    made = path.with_suffix(".part")
    made.write_text(json.dumps(content))
    made.replace(path)


@contextmanager
def stopped_at(moment: float) -> Iterator[None]:
    """Raises OutOfTime within at that time."""

    def stop(number: int, frame: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, moment - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def prepared(job: Job, note: Callable[[str], None], last: float) -> Prepared:
    """All candidates of a case, compiled and checked; one that fails gives its reason."""
    done = Prepared(job)
    for candidate in job.candidates:
        note(candidate)
        try:
            with stopped_at(last):
                done.steps[candidate], seconds = job.prepare(candidate)
            done.first_calls[candidate] = round(seconds * 1e3)
        except OutOfTime:
            done.refused.append(cannot(job.title, candidate, "not compiled in time"))
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            done.refused.append(cannot(job.title, candidate, reason))
    note("timing")
    try:
        job.release()
    except Exception as error:
        done.refused.append(cannot(job.title, "eager", f"{type(error).__name__}: {str(error)[:300]}"))
    return done


def timed(one: Prepared, end: float) -> list[Row]:
    """The rows of a case's steps; reasons where time has run out, or a step that worked before fails."""
    title = one.job.title
    if time.monotonic() >= end:
        return [cannot(title, name, "not timed in time") for name in one.steps]
    try:
        found = one.job.measure(one.steps) if one.steps else []
    except Exception as error:
        reason = f"{type(error).__name__} while timed: {' '.join(str(error).split())[:300]}"
        return [cannot(title, name, reason) for name in one.steps]
    finally:
        one.steps = {}
    print_rows(found)
    return [replace(row, figures={**row.figures, FIRST_CALL: one.first_calls[row.candidate]}) for row in found]


@dataclass(frozen=True)
class Limits:
    """The number of processes, and the seconds from now of both deadlines."""

    workers: int = 10
    prepare: float = 170.0
    seconds: float = 300.0


def share(
    module: str, asked: dict[str, Any], limits: Limits, keep: Callable[[list[Row]], None] = lambda rows: None
) -> list[Row]:
    """Return the rows of the jobs of a suite's module. `keep` is called with new ones as they come."""
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"{module}-"))
    order = Order(module, asked, chosen(), str(folder), start + limits.prepare, start + limits.seconds)
    running = [start_worker(order, number) for number in range(limits.workers)]
    rows: list[Row] = []
    while any(worker.poll() is None for worker in running):
        time.sleep(0.5)
        passed = time.monotonic()
        for number, worker in enumerate(running):
            late = passed > order.prepare_until + 2 * GRACE and not (folder / f"worker-{number}.ready").exists()
            if worker.poll() is None and (late or passed > order.end + 2 * GRACE):
                worker.kill()
        add(rows, rows_in(folder), keep)
    statuses = [worker.wait() for worker in running]
    add(rows, rows_in(folder), keep)
    add(rows, lost(folder, rows, statuses), keep)
    for log in sorted(folder.glob("*.log"), key=lambda path: int(path.stem.split("-")[1])):
        print(f"-- {log.stem}\n{log.read_text()[-20000:]}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return rows


def add(rows: list[Row], found: list[Row], keep: Callable[[list[Row]], None]) -> None:
    """Those found that are not among the rows yet."""
    known = {(row.case, row.candidate) for row in rows}
    if new := [row for row in found if (row.case, row.candidate) not in known]:
        rows += new
        keep(new)


def start_worker(order: Order, number: int) -> subprocess.Popen[bytes]:
    """A worker that has the lock from its birth, so that nobody times while it imports."""
    lock = os.open(f"{order.folder}/lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # A pool of compiling processes in each worker would be many more than there are processors.
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [
            sys.executable,
            "-m",
            "benchmarks.harness.workers",
            json.dumps(asdict(order)),
            str(number),
            str(lock),
        ]
        with Path(order.folder, f"worker-{number}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                env=environment,
                pass_fds=(lock,),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
    finally:
        os.close(lock)


def rows_in(folder: Path) -> list[Row]:
    """Return the rows and notes that the workers have written."""
    return [Row(**row) for file in sorted(folder.glob("worker-*.json")) for row in json.loads(file.read_text())]


def lost(folder: Path, rows: list[Row], statuses: list[int]) -> list[Row]:
    """Rows for cases that a worker took without a row, and for workers that failed before they took one."""
    reported = {row.case for row in rows}
    notes = [json.loads(text) for file in sorted(folder.glob("case-*")) if (text := file.read_text())]
    found = []
    for note in notes:
        if note["case"] not in reported:
            reason = f"worker {note['worker']} ended with status {statuses[note['worker']]}"
            found.append(cannot(note["case"], note["candidate"], reason))
    known = {note["worker"] for note in notes}
    for number, status in enumerate(statuses):
        if status and number not in known:
            found.append(cannot(f"worker {number}", "all", f"ended with status {status}, see its log"))
    return found


if __name__ == "__main__":
    work(Order(**json.loads(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
