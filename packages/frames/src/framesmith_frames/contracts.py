"""The types of what callers hand to the hook: callbacks, checkers and error handlers."""

from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any, Protocol, TypeAlias

from framesmith_frames._hook import RUN_ONCE, SKIP, Entry, FrameInfo


class NativeCheck(Protocol):
    """A checker with a capsule named "framesmith.check.v1" over the struct of `_native/check_abi.h`."""

    @property
    def __framesmith_check__(self) -> object: ...


Check: TypeAlias = Callable[[tuple[Any, ...], FunctionType], bool] | NativeCheck
"""Says whether an entry applies to the arguments (in `co_varnames` order) of a call to a function."""


class ExtractingCheck(Protocol):
    """A checker that finds an entry's inputs while it checks: their tuple, or None where the entry does not apply."""

    def extract(self, args: tuple[Any, ...], function: FunctionType, /) -> tuple[Any, ...] | None: ...


InputsCheck: TypeAlias = ExtractingCheck | NativeCheck
"""What `Entry(..., inputs=True)` takes for its check."""

FrameCallback: TypeAlias = Callable[[FrameInfo], Entry | SKIP | RUN_ONCE]
"""Asked about a call for which no entry applies."""

Diversion: TypeAlias = Callable[[FrameCallback, FunctionType], FrameCallback | None]
"""What to use in place of a callback for a call of a function: the same, another, or None: the call runs eagerly."""

ErrorHandler: TypeAlias = Callable[[BaseException, FrameInfo], object]
"""Told of an exception of a callback or checker. What it raises propagates, as though the call had not begun.

If it returns, the call runs eagerly; an `Entry` (without inputs) runs in its place, this once and unchecked.
"""

OnEager: TypeAlias = Callable[[FunctionType, str], object]
"""Told of a call of a compiled function that runs eagerly, and why; what it raises reaches the caller."""

HasCode: TypeAlias = CodeType | FunctionType | MethodType | Callable[..., Any]
"""A code object, or a Python function, method, CompiledFunction or without_hook; nothing else that can be called."""
