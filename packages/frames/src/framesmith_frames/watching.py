"""A frame observer: every Python function called on this thread inside a block, in order, nothing replaced."""

from collections.abc import Callable
from types import CodeType, TracebackType
from typing import TypeAlias

from framesmith_frames._hook import RUN_ONCE, SKIP, FrameInfo, new_cache, skip
from framesmith_frames.activation import activated

Observer: TypeAlias = Callable[[FrameInfo], object]

_NEXT_TIME = RUN_ONCE("watched")
_LEFT_OUT = SKIP("left out by watch(only=...)")


class watch:
    """Context manager: calls `observer(FrameInfo)` as each function starts; without one, `calls` lists their names.

    `only` chooses code objects; it is asked once for each that it leaves out. The code that runs is the original, even
    where a compiler has made entries, and what the observer calls is not seen. Its exceptions go to the error handler.
    """

    def __init__(self, observer: Observer | None = None, *, only: Callable[[CodeType], bool] | None = None) -> None:
        self.calls: list[str] = []
        self._observer = observer
        self._only = only
        self._activation = activated(self._see, cache=new_cache())

    def __enter__(self) -> "watch":
        self._activation.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._activation.__exit__(kind, value, traceback)

    def _see(self, frame: FrameInfo) -> RUN_ONCE | SKIP:
        if self._only is not None and not self._only(frame.code):
            return _LEFT_OUT
        if self._observer is None:
            self.calls.append(frame.code.co_qualname)
        else:
            self._observer(frame)
        return _NEXT_TIME


for _function in (watch.__init__, watch.__enter__, watch.__exit__):
    skip(_function, "framesmith_frames itself")
