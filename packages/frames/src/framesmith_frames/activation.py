"""Switching the hook on and off for a block of code, on this thread only."""

from types import TracebackType

from framesmith_frames._hook import set_callback, skip
from framesmith_frames.contracts import FrameCallback


class activated:
    """Context manager: `callback` is this thread's frame callback inside the block; the previous one comes back after it.

    Frames already running are not offered, so the block's own function is not.
    """

    __slots__ = ("_callback", "_previous")

    def __init__(self, callback: FrameCallback | None) -> None:
        if callback is not None and not callable(callback):
            raise TypeError(f"activated: expected a callable or None, not {type(callback).__name__}")
        self._callback = callback
        self._previous: list[FrameCallback | None] = []

    def __enter__(self) -> None:
        self._previous.append(set_callback(self._callback))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        set_callback(self._previous.pop())


def deactivated() -> activated:
    """Context manager: the hook is off on this thread inside the block."""
    return activated(None)


for _method in (activated.__init__, activated.__enter__, activated.__exit__, deactivated):
    skip(_method, "framesmith_frames itself")
