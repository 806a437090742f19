"""A frame observer: every Python function called on this thread inside a block, in order, nothing replaced."""

from collections.abc import Callable
from types import CodeType, TracebackType
from typing import TypeAlias

from framesmith_frames._hook import RUN_ONCE, SKIP, FrameInfo, new_cache, skip
from framesmith_frames.activation import activated

Observer: TypeAlias = Callable[[FrameInfo], object]

_OBSERVED = RUN_ONCE("observed")
_REJECTED = SKIP("rejected by watch(only=...)")


class watch:
    """Context manager: calls `observer(FrameInfo)` as each function starts; without one, `calls` lists their names.

    `only` selects code objects; it is called once for each that it rejects. The original code runs, even where a
    compiler has made entries. Functions that the observer calls are not observed. Its exceptions go to the error
    handler.
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
            return _REJECTED
        if self._observer is None:
            self.calls.append(frame.code.co_qualname)
        else:
            self._observer(frame)
        return _OBSERVED


for _function in (watch.__init__, watch.__enter__, watch.__exit__):
    skip(_function, "framesmith_frames itself")
