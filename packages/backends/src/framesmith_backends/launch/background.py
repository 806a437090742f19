"""Machine code is made while the program goes on, and waited for where it is first called.

Note [In the background]: LLVM takes a third of a first call, and no interpreter lock. Meanwhile the rest of the graph
is lowered, its guards are written, the graph of its gradients is compiled. A launcher begins with the code of `_begin`,
which waits, puts in the entries and leaves the launcher with its own code: later calls cost what they would otherwise.
What fails in the background is told there, before anything of the graph has run, and the graph runs in another way.

A process that forks waits first: the child would have LLVM's locks as they are, and nobody to open them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import FunctionType
from typing import Any, TypeVar

from framesmith_aten.contract import BoxedFn

Made = TypeVar("Made")

_at_work: set[threading.Thread] = set()


def begin(make: Callable[[], Made]) -> Future[Made]:
    """What `make` gives, or raises, in a thread of its own; at once where there can be none."""
    future: Future[Made] = Future()

    def work() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)
        finally:
            _at_work.discard(threading.current_thread())

    thread = threading.Thread(target=work, name="framesmith-machine-code")
    _at_work.add(thread)
    try:
        thread.start()
    except RuntimeError:  # too many of them, or the interpreter is about to end
        _at_work.discard(thread)
        work()
    return future


def made(value: Made) -> Future[Made]:
    """What is there already."""
    future: Future[Made] = Future()
    future.set_result(value)
    return future


def wait_for_all() -> None:
    """Until no thread makes anything."""
    for thread in tuple(_at_work):
        thread.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait_for_all)


def waiting(
    launcher: BoxedFn,
    entries: Future[Mapping[str, object]],
    needed: Sequence[Future[Any]],
    otherwise: Callable[[Exception], BoxedFn],
) -> BoxedFn:
    """The launcher, a plain function, whose first call waits for its entries, and for what else its calls need.

    `otherwise` is told what failed, and gives what runs instead; it may raise.
    """
    function = launcher
    assert isinstance(function, FunctionType)
    own, space = function.__code__, function.__globals__

    def begin_call(args: list[Any]) -> Sequence[Any]:
        try:
            for one in needed:
                one.result()
            space.update(entries.result())
        except Exception as error:
            space["_begin_call"] = instead = otherwise(error)
            return instead(args)
        function.__code__ = own
        space["_begin_call"] = launcher  # for threads that are in `_begin` at this moment
        return launcher(args)

    if all(one.done() and one.exception() is None for one in (entries, *needed)):
        space.update(entries.result())
    else:
        space["_begin_call"] = begin_call
        function.__code__ = _begin.__code__
    return launcher


#: Of the globals of a launcher that waits, which the following code runs with.
_begin_call: BoxedFn


def _begin(args: list[Any]) -> Sequence[Any]:
    return _begin_call(args)  # noqa: F821
