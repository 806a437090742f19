"""Runs encoded functions in a child process, which reports the seed if the interpreter crashes."""

import gc
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

HANG_SECONDS = 2.0
OUTCOMES = ("refused", "returned", "raised", "too slow")


class Slow(BaseException):
    """Raised into a function that does not end."""


class Crash(NamedTuple):
    """The interpreter died, or stopped answering (signal None), on this seed."""

    seed: int
    signal: int | None


class Manager:
    """A context manager, both kinds, and an object with the attributes that the programs use."""

    n = x = [1, 2, 3]

    def __init__(self, swallows: bool) -> None:
        self.swallows = swallows

    def __enter__(self) -> list[int]:
        return [0, 1]

    def __exit__(self, *error: object) -> bool:
        return self.swallows

    async def __aenter__(self) -> "Manager":
        return self

    async def __aexit__(self, *error: object) -> bool:
        return self.swallows

    def __await__(self) -> Any:
        return iter([1])

    async def __aiter__(self) -> Any:
        yield 1


def _values(chance: random.Random) -> list[object]:
    def counted():
        yield from (1, 2, 3)

    return [
        0, 1, 2, 2.5, "s", b"b", None, True, [], [1, 2], (1, 2), {"k": 1, "q": 2}, {1, 2}, iter([1, 2]), counted(),
        range(3), ValueError("v"), ValueError, KeyError("k"), Manager(True), Manager(False), len, lambda *a, **k: a,
        object(), slice(1, 2), ExceptionGroup("g", [ValueError(1)]), type, int,
    ]  # fmt: skip


def _globals() -> dict[str, object]:
    module = ModuleType("module")
    module.path = module  # type: ignore[attr-defined]
    harmless = (
        len, range, list, dict, set, tuple, int, str, float, isinstance, iter, next, enumerate, repr, sorted, super,
        locals, ValueError, KeyError, IndexError, TypeError, AssertionError, GeneratorExit, Exception, ExceptionGroup,
        BaseException, __build_class__,
    )  # fmt: skip
    builtins: dict[str, object] = {f.__name__: f for f in harmless}
    builtins |= {"__import__": lambda *a: module, "print": lambda *a, **k: None}
    return {"__builtins__": builtins, "__name__": "fuzz", "n": 3, "os": module}


def _argument(name: str, chance: random.Random) -> object:
    """A value for a variable; those that only a compiler can name have the kind of their name."""
    promised = {".0": iter([1, (2,), None]), ".type_params": (), ".defaults": (1,), ".kwdefaults": {"c": 1}}
    return promised[name] if name in promised else chance.choice(_values(chance))


def _cells(names: tuple[str, ...], chance: random.Random) -> tuple[Any, ...]:
    def cell(value: object) -> Any:
        return (lambda: value).__closure__[0]  # type: ignore[index]

    return tuple(cell(_argument(name, chance)) for name in names)


def _drive(result: Any, chance: random.Random) -> None:
    """Run a generator or coroutine for a few steps, in one of several ways."""
    if not hasattr(result, "send") and hasattr(result, "asend"):
        result = result.asend(None)
    if not hasattr(result, "send"):
        return
    for _ in range(4):
        step = chance.random()
        if step < 0.7:
            result.send(None)
        elif step < 0.85:
            result.throw(ValueError("thrown"))
        else:
            result.close()
            return


def execute(code: CodeType, chance: random.Random) -> str:
    """Call a function of the code a few times; returns the outcome of the last call, one of OUTCOMES."""
    namespace = _globals()
    function = FunctionType(code, namespace, "fuzz", None, _cells(code.co_freevars, chance) or None)
    outcome = "returned"
    for _ in range(30 if chance.random() < 0.05 else 2):  # often enough for the interpreter to specialise
        names = code.co_varnames
        args = [_argument(name, chance) for name in names[: code.co_argcount]]
        kwargs = {name: _argument(name, chance) for name in names[code.co_argcount :][: code.co_kwonlyargcount]}
        try:
            result = function(*args, **kwargs)
            _drive(result, chance)
            repr(type(result))
            outcome = "returned"
        except Slow:
            return "too slow"
        except BaseException:  # the functions know BaseException by name and may raise it
            outcome = "raised"
        args = kwargs = result = None
    return outcome


def _limit(signum: int, frame: object) -> None:
    raise Slow


def _limited(one: Callable[[int], str], seed: int) -> str:
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        return one(seed)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _child(one: Callable[[int], str], seeds: range, progress: mmap.mmap) -> None:
    """Run the seeds, recording the current one and the outcomes of the others."""
    sys.stdout = open(os.devnull, "w")
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _limit)
    sys.unraisablehook = lambda unraisable: None
    warnings.simplefilter("ignore")
    counts = [0] * len(OUTCOMES)
    for seed in seeds:
        struct.pack_into("q", progress, 0, seed)
        outcome = "too slow"
        try:
            outcome = _limited(one, seed)
        except (Slow, MemoryError):  # the alarm may also ring on the way out
            signal.setitimer(signal.ITIMER_REAL, 0)
        counts[OUTCOMES.index(outcome)] += 1
        struct.pack_into(f"{len(OUTCOMES)}q", progress, 8, *counts)
        if seed % 500 == 0:
            gc.collect()


def _watch(pid: int, progress: mmap.mmap) -> int | None:
    """Wait for the child; its wait status, or None if it had to be killed."""
    last, since = None, time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        at = struct.unpack_from("q", progress, 0)[0]
        if at != last:
            last, since = at, time.monotonic()
        elif time.monotonic() - since > HANG_SECONDS:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.005)


def run(one: Callable[[int], str], seeds: range) -> tuple[Counter[str], list[Crash], int]:
    """`one(seed)` for all seeds, in children; counts of outcomes, crashes, and how many children had to be killed.

    A function that loops without ever serving signals has to be killed from outside; that is no crash.
    """
    counts: Counter[str] = Counter()
    crashes: list[Crash] = []
    killed = 0
    start = seeds.start
    while start < seeds.stop and len(crashes) < 5:
        progress = mmap.mmap(-1, 8 * (1 + len(OUTCOMES)))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _child(one, range(start, min(start + 5000, seeds.stop)), progress)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        status = _watch(pid, progress)
        counts.update(dict(zip(OUTCOMES, struct.unpack_from(f"{len(OUTCOMES)}q", progress, 8), strict=True)))
        if status == 0:
            start = min(start + 5000, seeds.stop)
            continue
        seed = struct.unpack_from("q", progress, 0)[0]
        if status is None:
            killed += 1
        else:
            crashes.append(Crash(seed, os.WTERMSIG(status) if os.WIFSIGNALED(status) else None))
        start = seed + 1
    return counts, crashes, killed
