"""Machine code is made while the program goes on, and waited for at a launcher's first call: Note [In the background].

Note [In the background]
LLVM takes a third of a first call, without the interpreter's lock, and works for one thread at a time. A launcher
starts with the code of `_begin`, which waits, sets the entries and leaves the launcher with its own code: later calls
have no overhead. A failure is reported there, before anything of the graph has run, and the graph runs in another way.
A process that forks waits until no thread makes machine code, and none starts meanwhile: the child would have LLVM's
locks in their state, and no thread to release them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Generic, TypeVar

from framesmith_aten.contract import BoxedFn

Made = TypeVar("Made")


class _Work:
    """The number of threads that make machine code; a process that forks holds `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = 0
        self.mine = threading.local()

    def add(self, count: int) -> None:
        with self.changed:
            self.count += count
            self.changed.notify_all()

    def before_fork(self) -> None:
        self.changed.acquire()
        mine = getattr(self.mine, "count", 0)
        self.changed.wait_for(lambda: self.count <= mine)


_work = _Work()

if hasattr(os, "register_at_fork"):
    release = _work.changed.release
    os.register_at_fork(before=_work.before_fork, after_in_parent=release, after_in_child=release)


@contextmanager
def at_work() -> Iterator[None]:
    """Mark this thread as making machine code: no other thread forks meanwhile."""
    _work.add(1)
    _work.mine.count = getattr(_work.mine, "count", 0) + 1
    try:
        yield
    finally:
        _work.mine.count -= 1
        _work.add(-1)


class once(Generic[Made]):
    """`functools.cache` by positional arguments, but threads that meet wait: compiling takes tenths of a second."""

    def __init__(self, make: Callable[..., Made]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._made: dict[tuple[Hashable, ...], Made] = {}

    def __call__(self, *given: Hashable) -> Made:
        if given not in self._made:
            with at_work(), self._lock:
                if given not in self._made:
                    self._made[given] = self._make(*given)
        return self._made[given]

    def cache_clear(self) -> None:
        """Forget all of it."""
        self._made.clear()


def begin(make: Callable[[], Made]) -> Future[Made]:
    """The result of `make`, or what it raises, from a new thread; at once where none can be started."""
    future: Future[Made] = Future()

    def work() -> None:
        with at_work():
            _work.add(-1)
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)

    _work.add(1)  # until the thread counts itself
    try:
        threading.Thread(target=work, name="framesmith-machine-code").start()
    except RuntimeError:  # too many of them, or the interpreter is about to end
        work()
    return future


def made(value: Made) -> Future[Made]:
    """A future that is done."""
    future: Future[Made] = Future()
    future.set_result(value)
    return future


def waiting(
    launcher: BoxedFn,
    entries: Future[Mapping[str, object]],
    needed: Sequence[Future[Any]],
    otherwise: Callable[[Exception], BoxedFn],
) -> BoxedFn:
    """The launcher, a plain function, whose first call waits for its entries and for the other futures.

    `otherwise` takes the error of one that failed, and returns a replacement for the launcher; it may raise.
    """
    function = launcher
    assert isinstance(function, FunctionType)
    code, space, lock = function.__code__, function.__globals__, threading.RLock()

    def settle() -> None:
        for one in needed:
            one.result()
        space.update(entries.result())
        function.__code__ = code
        space["_begin_call"] = launcher  # for threads that are in `_begin` at this moment

    def begin_call(args: list[Any]) -> Sequence[Any]:
        with lock:
            if space["_begin_call"] is begin_call:
                try:
                    settle()
                except Exception as error:  # the same at each call: its frames would hold what each was given
                    space["_begin_call"] = otherwise(error.with_traceback(None))
        call: BoxedFn = space["_begin_call"]
        return call(args)

    def settle_early(future: Future[Mapping[str, object]]) -> None:
        """Without a call, too, so that `otherwise` is freed."""
        if all(one.done() and one.exception() is None for one in (entries, *needed)):
            settle()

    space["_begin_call"] = begin_call
    function.__code__ = _begin.__code__
    entries.add_done_callback(settle_early)
    return launcher


#: One of the globals of a launcher that waits, with which `_begin` runs.
_begin_call: BoxedFn


def _begin(args: list[Any]) -> Sequence[Any]:
    return _begin_call(args)  # noqa: F821
