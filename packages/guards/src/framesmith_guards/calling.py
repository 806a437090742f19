"""Calls with a location in the user's program: warnings and tracebacks name that line."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framesmith_guards.stacks import Location


def _template() -> Any:
    call: Any = None
    return lambda *args, **kwargs: call(*args, **kwargs)


_CODE = _template().__code__


def called_from(location: Location, globals: dict[str, Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the result of `call`, made as if by a line of a program: `warnings` and tracebacks see it as the caller.

    `globals`: those of the code at `location`, in which Python records given warnings. Imports in C look up builtins
    there, which a function made by hand may lack.
    """
    if "__builtins__" not in globals:
        noted = globals.setdefault("__warningregistry__", {})
        globals = {**globals, "__builtins__": builtins, "__warningregistry__": noted}
    code = _CODE.replace(
        co_filename=location.filename,
        co_firstlineno=max(location.lineno, 1),
        co_name=location.function.rpartition(".")[2],
        co_qualname=location.function,
    )
    return FunctionType(code, globals, closure=(CellType(call),))
