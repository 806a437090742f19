"""Calls made in the user's name: what they warn of is told where the user's program makes them."""

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
    """`call` as that line of a program calls it: to `warnings` and to tracebacks, the caller is there.

    `globals`: those of the code at `location`; Python notes in them which warnings were given. Imports in C look there
    for the builtins, which a function made by hand may lack.
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
