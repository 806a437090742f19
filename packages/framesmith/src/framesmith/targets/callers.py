"""Python functions that call builtins, transforms and library functions, which have no frame of their own to compile.

Their frames are compiled in place of the callable's, which is inlined as any callee.
"""

from __future__ import annotations

import builtins
import functools
import types
import weakref
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any, cast

from framesmith_dynamo import admit

FILE = "<framesmith.compile of a callable>"

#: Code is made once for each function and builtin, so that compiling one again finds what was compiled for it.
_codes: weakref.WeakKeyDictionary[Callable[..., Any], CodeType] = weakref.WeakKeyDictionary()


def _calling(target: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return call


_CALL = cast(FunctionType, _calling(_calling)).__code__


def caller_of(target: Callable[..., Any], name: str) -> FunctionType:
    """A function that calls `target`, and has its name, text and signature."""
    code = _code_of(target, name)
    names = {"__name__": "__main__", "__builtins__": builtins}
    function = FunctionType(code, names, code.co_name, None, (CellType(target),))
    functools.update_wrapper(function, target, updated=())
    return function


def called_by(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the callable of a function made by `caller_of`; None for other functions."""
    if not isinstance(function, FunctionType) or function.__code__.co_filename != FILE:
        return None
    assert function.__closure__ is not None
    target: Callable[..., Any] = function.__closure__[0].cell_contents
    return target


def _code_of(target: Callable[..., Any], name: str) -> CodeType:
    if not isinstance(target, (types.FunctionType, types.BuiltinFunctionType)):
        return _new_code(name)
    code = _codes.get(target)
    if code is None:
        code = _codes[target] = _new_code(name)
    return code


def _new_code(name: str) -> CodeType:
    code = _CALL.replace(co_name=name.rpartition(".")[2], co_qualname=name, co_filename=FILE)
    admit(code)
    return code
