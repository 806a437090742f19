"""The errors this package raises on purpose."""

from __future__ import annotations


class AutogradCompilerError(RuntimeError):
    """Base of every deliberate error of this package."""


class CaptureUnsupported(AutogradCompilerError):
    """The backward pass cannot be captured: it runs in the engine instead. Says what and why."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}; the autograd engine runs this backward pass")
        self.what = what
        self.why = why
