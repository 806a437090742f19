"""Candidates each in a process of its own, asked in turn: none has another's threads, memory or patches in its way.

A process is a copy of one in which everything that all of them need is imported.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness.device import choose, chosen
from benchmarks.harness.operators_called import FIGURE as OPERATORS
from benchmarks.harness.operators_called import operators_called
from benchmarks.harness.tensors_made import PEAK, peak_bytes
from benchmarks.harness.timing import Step, iterations_for, time_steps

WARMUP = 3
#: The counts of a step, besides its time.
FIGURES: dict[str, Callable[[Step], int]] = {OPERATORS: operators_called, PEAK: peak_bytes}


class IsolatedCandidate:
    """A step that another process has prepared: how often it fills a time, how long it takes, what it calls.

    `prepare`, a function of a module, is called there with `given`. The process ends with `close`, or with this one.
    """

    def __init__(self, prepare: Callable[..., Step], *given: Any) -> None:
        self._process, self._here = started(_serve, prepare, given, chosen())

    def ready(self) -> None:
        """Wait until it is prepared.

        Raises:
            RuntimeError: It could not be; the reason.
        """
        reason = self._answer()
        if reason:
            self.close()
            raise RuntimeError(reason)

    def iterations(self, target: float) -> int:
        return int(self._asked("iterations", target))

    def seconds(self, count: int) -> float:
        """Seconds per step over `count` steps."""
        return float(self._asked("seconds", count))

    def figure(self, name: str) -> int:
        """A count of a step, one of `FIGURES`."""
        return int(self._asked(name))

    def close(self) -> None:
        self._here.close()
        self._process.join()

    def _asked(self, what: str, *given: Any) -> Any:
        self._here.send((what, given))
        return self._answer()

    def _answer(self) -> Any:
        try:
            return self._here.recv()
        except EOFError:
            raise RuntimeError("the process died") from None


def started(run: Callable[..., None], *given: Any) -> tuple[Any, Connection]:
    """A new process that runs `run(there, *given)`, and the other end of `there`."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["benchmarks.models.imported_models"])
    here, there = processes.Pipe()
    process = processes.Process(target=run, args=(there, *given), daemon=True)
    process.start()
    there.close()
    return process, here


def _serve(there: Connection, prepare: Callable[..., Step], given: tuple[Any, ...], device: str) -> None:
    choose(device)
    try:
        step = prepare(*given)
        for _ in range(WARMUP):
            step()
    except Exception as error:
        there.send(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return
    there.send("")
    answers: dict[str, Callable[..., float]] = {
        "iterations": lambda target: iterations_for(step, target),
        "seconds": lambda count: time_steps(step, count),
        **{name: partial(count, step) for name, count in FIGURES.items()},
    }
    while True:
        try:
            what, asked = there.recv()
        except EOFError:
            return
        there.send(answers[what](*asked))
