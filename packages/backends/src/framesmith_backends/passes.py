"""A pass is a row: a name, a function from an IR to the same IR, and when it applies.

Each pipeline is a tuple of passes that `run_passes` drives. After each pass every observer is called with the pass's
name, what it made and how long it took: one logs (`framesmith.passes`), `pipeline.verify_after` checks invariants.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

PASS_LOG = logging.getLogger("framesmith.passes")

IR = TypeVar("IR")
About = TypeVar("About")


class Observer(Protocol):
    """A function called after each pass with its name, its result, whether that is new, and the seconds it took."""

    def __call__(self, name: str, ir: object, changed: bool, seconds: float, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Pass(Generic[IR, About]):
    """`run(ir, about)` returns the IR after the pass: the same object where it changed nothing.

    `about` is what a pipeline's passes know besides; `applies_to(about)` says whether the pass runs.
    """

    name: str
    run: Callable[[IR, About], IR]
    applies_to: Callable[[About], bool] = lambda _about: True


def log_pass(name: str, ir: object, changed: bool, seconds: float) -> None:
    """Log the pass; at DEBUG with the text of what it changed: its `text()`, or that of an FX graph."""
    PASS_LOG.info("%s: %s, %.2f ms", name, "changed" if changed else "no change", seconds * 1e3)
    if changed and PASS_LOG.isEnabledFor(logging.DEBUG):
        text = getattr(ir, "text", None)
        PASS_LOG.debug("after %s:\n%s", name, text() if callable(text) else getattr(ir, "graph", ir))


#: Observers of every compile in this process, such as the tests' verification.
EVERYWHERE: list[Observer] = []
_OBSERVERS: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


@contextmanager
def observed_by(*observers: Observer) -> Iterator[None]:
    """Call these after each pass, too, inside the `with` statement."""
    token = _OBSERVERS.set((*_OBSERVERS.get(), *observers))
    try:
        yield
    finally:
        _OBSERVERS.reset(token)


def observe(name: str, ir: object, changed: bool, seconds: float) -> None:
    """Call every observer, and log the pass."""
    for observer in (*EVERYWHERE, *_OBSERVERS.get()):
        observer(name, ir, changed, seconds)
    if PASS_LOG.isEnabledFor(logging.INFO):
        log_pass(name, ir, changed, seconds)


def run_passes(passes: Sequence[Pass[IR, About]], ir: IR, about: About) -> IR:
    """Return the IR after those of the passes that apply, in order."""
    for one in passes:
        if one.applies_to(about):
            start = time.perf_counter()
            made = one.run(ir, about)
            observe(one.name, made, made is not ir, time.perf_counter() - start)
            ir = made
    return ir
