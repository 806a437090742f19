"""Types of the C extension; see the package's README for meaning."""

from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, final, overload

from framesmith_frames.contracts import Check, ErrorHandler, FrameCallback, HasCode

P = ParamSpec("P")
R = TypeVar("R")

@final
class Entry:
    """Code to run in place of a frame wherever its check says that it applies."""

    check: Check
    code: CodeType
    complete: bool
    hits: int
    def __new__(cls, check: Check, code: CodeType, *, complete: bool = False) -> Entry: ...

@final
class SKIP:
    """Answer: run this code eagerly and never ask for it again (until a reset)."""

    reason: str
    def __new__(cls, reason: str) -> SKIP: ...

@final
class RUN_ONCE:
    """Answer: run this call eagerly, ask again at the next."""

    reason: str
    def __new__(cls, reason: str) -> RUN_ONCE: ...

@final
class FrameInfo:
    """A call about to run, as the callback sees it."""

    code: CodeType
    function: FunctionType
    locals: tuple[Any, ...]
    globals: dict[str, Any]
    builtins: dict[str, Any]
    closure: tuple[CellType, ...] | None
    cache: int

@final
class CompiledFunction(Generic[P, R]):
    """A function dispatched to the entries of the one it wraps, natively; `callback` makes new entries."""

    __wrapped__: Callable[P, R]
    __name__: str
    __qualname__: str
    callback: FrameCallback
    cache: int
    def __new__(
        cls, function: Callable[P, R], callback: FrameCallback, *, cache: int | None = None
    ) -> CompiledFunction[P, R]: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> CompiledFunction[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]: ...

@final
class without_hook(Generic[P, R]):
    """A callable that runs the one it wraps with the hook off on this thread."""

    __wrapped__: Callable[P, R]
    def __new__(cls, function: Callable[P, R]) -> without_hook[P, R]: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> without_hook[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]: ...

def set_callback(callback: FrameCallback | None, /, *, cache: int | None = None) -> FrameCallback | None: ...
def swap_callback(callback: FrameCallback | None, cache: int | None, /) -> tuple[FrameCallback | None, int]: ...
def new_cache() -> int: ...
def get_callback() -> FrameCallback | None: ...
def set_error_handler(handler: ErrorHandler | None, /) -> ErrorHandler | None: ...
def reset(code: HasCode | None = None, /, *, cache: int | None = None) -> None: ...
def skip(code: HasCode, reason: str, /) -> None: ...
def unskip(code: HasCode, /) -> bool: ...
def skip_reason(code: HasCode, /) -> str | None: ...
def entries(code: HasCode, /, *, cache: int | None = None) -> list[Entry]: ...
def counts(code: HasCode, /) -> tuple[int, int, int, int, int, int, str | None]: ...
def hook_state() -> dict[str, int]: ...
def never_in_place(flag: bool, /) -> bool: ...
