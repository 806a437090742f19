"""Why a matcher declines: matchers return what they found, or a `Refusal`; None where there was nothing to match.

`note` keeps a refusal for whoever asks: a backend's `explain`, and the log `framesmith.plan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from framesmith_backends.reporting import PLANS


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason, in words a user can act on."""

    reason: str


_NOTED: ContextVar[dict[str, str] | None] = ContextVar("noted refusals", default=None)


@contextmanager
def noted_refusals() -> Iterator[dict[str, str]]:
    """Return the refusals noted inside the `with` statement: the reason by what is not done, and to what."""
    noted: dict[str, str] = {}
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def note(what: str, name: str, refusal: Refusal) -> None:
    """Note that `what` ("fused attention") is not done to the call of that name."""
    PLANS.info("no %s for %s: %s", what, name, refusal.reason)
    noted = _NOTED.get()
    if noted is not None:
        noted[f"no {what} for {name}"] = refusal.reason
