"""The exception of a check that does not hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """A Python exception by its name, and its message."""

    exception: str
    message: str
