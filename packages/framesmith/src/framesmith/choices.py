"""Checking a caller's words at the door: a refusal says what was wrong, what was expected, and the nearest choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` when one of the choices is close to `word`, else an empty string."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(choices: Iterable[str]) -> str:
    """Choices as they stand in a message."""
    return ", ".join(repr(choice) for choice in sorted(choices))


def check_choice(what: str, word: object, choices: Iterable[str]) -> str:
    """`word` when it is one of `choices`. Raises TypeError for a non-string, ValueError with the nearest choice."""
    known = sorted(choices)
    if not isinstance(word, str):
        raise TypeError(f"{what} must be a string, one of {listed(known)}; got {type(word).__name__}")
    if word not in known:
        raise ValueError(f"unknown {what} {word!r}; expected one of {listed(known)}{nearest(word, known)}")
    return word


def check_bool(what: str, value: object) -> bool:
    """`value` when it is a bool, else TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False; got {value!r}")
    return value
