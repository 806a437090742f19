"""Type parameters and aliases that exist: attributes that Python evaluates when they are first read (PEP 695, 696).

Evaluation runs the program's code, so the trace may do it only where that has no effect; Python keeps the result.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Final

from framesmith_bytecode import Instr, decode
from framesmith_dynamo.breaks import register_break
from framesmith_dynamo.values.base import Tracer

LAZY_TYPE = register_break(
    "lazily-evaluated-type",
    what="the value of a type alias, or the bound, the constraints or the default of a type parameter is read",
    why="Python evaluates it at the first read, which may run code of the program",
    hint="read it once before the compiled function is called, or outside of it",
)


def _types(*names: str) -> tuple[type, ...]:
    return tuple(getattr(typing, name) for name in names if hasattr(typing, name))


TYPE_PARAMETERS: Final = _types("TypeVar", "ParamSpec", "TypeVarTuple")
TYPE_ALIASES: Final = _types("TypeAliasType")
#: Attributes that may be evaluated when they are read, and the attribute with the function that does it (3.14).
EVALUATED: Final[Mapping[str, str]] = {
    "__value__": "evaluate_value",
    "__bound__": "evaluate_bound",
    "__constraints__": "evaluate_constraints",
    "__default__": "evaluate_default",
}


def why_not_evaluated(tr: Tracer, obj: Any, name: str) -> str | None:
    """Return why the trace may not read an attribute of an existing object, or None."""
    if name not in EVALUATED or type(obj) not in (*TYPE_PARAMETERS, *TYPE_ALIASES):
        return None
    if not hasattr(type(obj), EVALUATED[name]):
        is_lazy = type(obj) in TYPE_ALIASES or name == "__default__" or getattr(obj, "__infer_variance__", False)
        return "this Python does not say how it is evaluated" if is_lazy and hasattr(type(obj), name) else None
    evaluate = getattr(obj, EVALUATED[name])
    if evaluate is None or not isinstance(evaluate, FunctionType):
        return None  # a value that was given
    if not only_names(evaluate, *(parameter.__name__ for parameter in getattr(obj, "__type_params__", ()))):
        return "it calls functions, or reads variables of other functions"
    if tr.journal.pending_globals(evaluate.__globals__):
        return "global variables have been changed"
    try:
        getattr(obj, name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def only_names(function: object, *free: str) -> bool:
    """Whether a function that makes annotations calls nothing, and reads no variables of other functions but `free`."""
    if not isinstance(function, FunctionType) or set(function.__code__.co_freevars) - {"__classdict__", *free}:
        return False
    ops = [item.op for item in decode(function.__code__).instructions if isinstance(item, Instr)]
    return not any(op.startswith(("CALL", "MAKE_FUNCTION")) for op in ops)
