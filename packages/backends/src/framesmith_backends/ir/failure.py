"""What the caller of a run gets where a check does not hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of Python's by its name, and what it says."""

    exception: str
    message: str
