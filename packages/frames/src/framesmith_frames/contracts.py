"""Types of the callables that users pass to the hook: callbacks, checkers, error handlers, reports."""

from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any, Protocol, TypeAlias

from framesmith_frames._hook import RUN_ONCE, SKIP, Entry, FrameInfo


class NativeCheck(Protocol):
    """A checker with a capsule named "framesmith.check.v1" over the struct of `_native/check_abi.h`."""

    @property
    def __framesmith_check__(self) -> object: ...


Check: TypeAlias = Callable[[tuple[Any, ...], FunctionType], bool] | NativeCheck
"""Returns whether an entry applies to the arguments (in `co_varnames` order) of a call to a function."""


class ExtractingCheck(Protocol):
    """A checker that returns the tuple of an entry's inputs, or None where the entry does not apply."""

    def extract(self, args: tuple[Any, ...], function: FunctionType, /) -> tuple[Any, ...] | None: ...


InputsCheck: TypeAlias = ExtractingCheck | NativeCheck
"""The check of `Entry(..., inputs=True)`."""

FrameCallback: TypeAlias = Callable[[FrameInfo], Entry | SKIP | RUN_ONCE]
"""Called for a call to which no entry applies."""

Diversion: TypeAlias = Callable[[FrameCallback, FunctionType], FrameCallback | None]
"""Returns the callback to use for a call of a function: the same, another, or None (the call runs eagerly)."""

ErrorHandler: TypeAlias = Callable[[BaseException, FrameInfo], object]
"""Called with an exception of a callback or checker. Its own exceptions propagate in place of the call.

If it returns, the call runs eagerly; an `Entry` (without inputs) runs in its place, once and unchecked.
"""

OnEager: TypeAlias = Callable[[FunctionType, str], object]
"""Called with a compiled function whose call runs eagerly, and the reason; its exceptions reach the caller."""

HasCode: TypeAlias = CodeType | FunctionType | MethodType | Callable[..., Any]
"""A code object, or a Python function, method, CompiledFunction or without_hook; no other callable."""
