"""Names of compilations: unique in a process, short to print, and readable back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_PATTERN: Final = re.compile(r"(?:!(?P<backward>\d+)(?:/|$))?(?:(?P<frame>\d+)/(?P<nth>\d+))?")


@dataclass(frozen=True, slots=True)
class CompileId:
    """The nth compilation of a frame, or of a captured backward pass; prints as `3/0`, `!1`, `!1/3/0`.

    `frame` counts the process's compiled frames, `nth` the compilations of that frame, `backward` the captured
    backward passes. ValueError if neither a frame nor a backward pass is named, or a frame only in half.
    """

    frame: int | None = None
    nth: int | None = None
    backward: int | None = None

    def __post_init__(self) -> None:
        if (self.frame is None) != (self.nth is None):
            raise ValueError(f"frame and nth are given together or not at all, not {self.frame} and {self.nth}")
        if self.frame is None and self.backward is None:
            raise ValueError("a CompileId names a frame, a backward pass or both")

    def __str__(self) -> str:
        frame = "" if self.frame is None else f"{self.frame}/{self.nth}"
        if self.backward is None:
            return frame
        return f"!{self.backward}/{frame}" if frame else f"!{self.backward}"

    @classmethod
    def parse(cls, text: str) -> CompileId:
        """Return the id that prints as `text`; ValueError if none does."""
        match = _PATTERN.fullmatch(text)
        if not text or match is None or text.endswith("/"):
            raise ValueError(f"{text!r} is no CompileId; those look like 3/0, !1 or !1/3/0")
        numbers = {name: None if digits is None else int(digits) for name, digits in match.groupdict().items()}
        return cls(**numbers)


@dataclass(frozen=True, slots=True)
class TraceId:
    """An attempt of a compilation; a repeated trace, with more facts, counts up. Prints as `3/0`, `3/0_1`."""

    compile_id: CompileId
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.compile_id}_{self.attempt}" if self.attempt else str(self.compile_id)
