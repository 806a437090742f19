"""Reports of backends: the logs of plans and of kernels, warnings given once, and why matchers decline.

A matcher returns what it found, a `Refusal`, or None where there was nothing to match; `note` keeps a refusal for
`explain`, a backend's and framesmith's, and for the log `framesmith.plan`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

PLAN_LOG = logging.getLogger("framesmith.plan")
KERNEL_LOG = logging.getLogger("framesmith.kernels")


@functools.cache
def log_once(text: str, log: logging.Logger = PLAN_LOG) -> None:
    """Warn the user, once in a process, that something does not do what it is for."""
    log.warning("%s", text)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason, in words a user can act on."""

    reason: str


_NOTED: ContextVar[dict[str, str] | None] = ContextVar("noted refusals", default=None)


@contextmanager
def noted_refusals() -> Iterator[dict[str, str]]:
    """Return the refusals noted inside the `with` statement: the reason by what is not done, and to what.

    At its end they are handed to the statement around it, if there is one.
    """
    around, noted = _NOTED.get(), dict[str, str]()
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)
        if around is not None:
            around.update(noted)


def note(what: str, name: str, refusal: Refusal) -> None:
    """Note that `what` ("fused attention") is not done to the call of that name."""
    PLAN_LOG.info("no %s for %s: %s", what, name, refusal.reason)
    noted = _NOTED.get()
    if noted is not None:
        noted[f"no {what} for {name}"] = refusal.reason
