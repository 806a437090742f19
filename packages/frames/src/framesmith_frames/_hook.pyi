"""Types of the C extension; see the package's README for meaning."""

from collections.abc import Callable
from types import CellType, CodeType, FunctionType, GenericAlias
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar, final, overload

from framesmith_frames.contracts import Check, Diversion, ErrorHandler, FrameCallback, HasCode, InputsCheck, OnEager

#: Whether a call site that is specialised for its class enters `__init__` without the hook.
specialised_init_bypasses_hook: Final[bool]

_P = ParamSpec("_P")
_R = TypeVar("_R")

@final
class Entry:
    """Code to run in place of a frame to which its check applies.

    eager: None if the code computes something compiled, "" if there is nothing to compute, else why it computes nothing
    compiled.
    """

    check: Check
    code: CodeType
    complete: bool
    inputs: bool
    eager: str | None
    hits: int
    @property
    def flat_code(self) -> CodeType: ...
    @overload
    def __new__(cls, check: Check, code: CodeType, *, complete: bool = False, eager: str | None = None) -> Entry: ...
    @overload
    def __new__(
        cls, check: InputsCheck, code: CodeType, *, complete: bool = False, inputs: bool, eager: str | None = None
    ) -> Entry: ...

@final
class SKIP:
    """Answer: run this code eagerly until a reset; with `recursive`, the functions that it calls as well."""

    reason: str
    quiet: bool
    recursive: bool
    def __new__(cls, reason: str, *, quiet: bool = False, recursive: bool = False) -> SKIP: ...

@final
class RUN_ONCE:
    """Answer: run this call eagerly and offer the next one; with `recursive`, what it calls runs eagerly as well."""

    reason: str
    quiet: bool
    recursive: bool
    returned: Callable[[], object] | None
    def __new__(
        cls, reason: str, *, quiet: bool = False, recursive: bool = False, returned: Callable[[], object] | None = None
    ) -> RUN_ONCE: ...

@final
class FrameInfo:
    """A call about to run: the argument of callbacks."""

    code: CodeType
    function: FunctionType
    arguments: tuple[Any, ...]
    globals: dict[str, Any]
    builtins: dict[str, Any]
    closure: tuple[CellType, ...] | None
    cache: int
    @property
    def locals(self) -> tuple[Any, ...]:
        """The former name of `arguments`; DeprecationWarning."""

@final
class CompiledFunction(Generic[_P, _R]):
    """A native callable that dispatches to the entries of the function it wraps; `callback` makes new ones."""

    __wrapped__: Callable[_P, _R]
    __name__: str
    __qualname__: str
    callback: FrameCallback
    cache: int
    on_eager: OnEager | None
    refuses: bool
    def __new__(
        cls,
        function: Callable[_P, _R],
        callback: FrameCallback,
        *,
        cache: int | None = None,
        on_eager: OnEager | None = None,
        refuses: bool = False,
    ) -> CompiledFunction[_P, _R]: ...
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    def __class_getitem__(cls, arguments: Any, /) -> GenericAlias: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: object, /) -> Self: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> CompiledFunction[_P, _R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None, /) -> Callable[..., _R]: ...

@final
class without_hook(Generic[_P, _R]):
    """A callable that runs the one it wraps with the hook off on this thread."""

    __wrapped__: Callable[_P, _R]
    __name__: str
    __qualname__: str
    def __new__(cls, function: Callable[_P, _R]) -> without_hook[_P, _R]: ...
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    def __class_getitem__(cls, arguments: Any, /) -> GenericAlias: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: object, /) -> Self: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> without_hook[_P, _R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None, /) -> Callable[..., _R]: ...

def set_callback(callback: FrameCallback | None, /, *, cache: int | None = None) -> FrameCallback | None: ...
def swap_callback(
    callback: FrameCallback | None, cache: int | None, first: bool = True, /
) -> tuple[FrameCallback | None, int, bool]: ...
def new_cache() -> int: ...
def get_callback() -> FrameCallback | None: ...
def set_error_handler(handler: ErrorHandler | None, /) -> ErrorHandler | None: ...
def reset(code: HasCode | None = None, /, *, cache: int | None = None) -> None: ...
def skip(code: HasCode, reason: str, /) -> None: ...
def unskip(code: HasCode, /) -> bool: ...
def skip_reason(code: HasCode, /) -> str | None: ...
def entries(code: HasCode, /, *, cache: int | None = None) -> list[Entry]: ...
def counts(code: HasCode, /) -> tuple[int, int, int, int, int, int, int, str | None]: ...
def set_interest_filter(callback: FrameCallback, packages: tuple[str, ...], /) -> None: ...
def always_offer(code: HasCode, /) -> None: ...
def divert_by(
    namespace: dict[str, Any], name: str, judge: Callable[[Any], Diversion | None], /
) -> tuple[dict[str, Any], str, Callable[[Any], Diversion | None]] | None: ...
def hook_state() -> dict[str, int]: ...
def frame_layout() -> list[tuple[str, int, int]]: ...
def check_frame_layout(layout: list[tuple[str, int, int]], /) -> None: ...
def never_in_place(flag: bool, /) -> bool: ...
