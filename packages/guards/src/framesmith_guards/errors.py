"""Errors for guards, sources and contexts that cannot be built."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class GuardError(ValueError):
    """A guard or source that cannot be checked soundly; the message says why and what to use instead."""


def nearest(wanted: str, choices: Iterable[str]) -> str:
    """Return a sentence fragment with the nearest valid choices, for error messages."""
    known = sorted(choices)
    close = get_close_matches(wanted, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
