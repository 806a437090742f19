"""Context managers that switch the hook on and off, on this thread only."""

from types import TracebackType

from framesmith_frames._hook import skip, swap_callback
from framesmith_frames.contracts import FrameCallback


class activated:
    """Context manager: `callback` is this thread's frame callback inside the block; then the previous one comes back.

    Frames already running are not offered, so the block's own function is not. Entries belong to the callback that
    made them and die with it, unless `cache` (see `new_cache`) names a cache that callbacks share.
    """

    __slots__ = ("_cache", "_callback", "_previous")

    def __init__(self, callback: FrameCallback | None, *, cache: int | None = None) -> None:
        if callback is not None and not callable(callback):
            raise TypeError(f"activated: expected a callable or None, not {type(callback).__name__}")
        self._callback = callback
        self._cache = cache
        self._previous: list[tuple[FrameCallback | None, int, bool]] = []

    def __enter__(self) -> None:
        self._previous.append(swap_callback(self._callback, self._cache))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        swap_callback(*self._previous.pop())


def deactivated() -> activated:
    """Context manager: the hook is off on this thread inside the block."""
    return activated(None)


for _function in (activated.__init__, activated.__enter__, activated.__exit__, deactivated):
    skip(_function, "framesmith_frames itself")
