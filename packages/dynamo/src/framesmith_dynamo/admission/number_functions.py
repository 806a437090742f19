"""Functions of the program's that compute with numbers and change nothing, as far as their code shows."""

from __future__ import annotations

import builtins
import dis
import functools
import math
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

#: Instructions that change other objects than the function's own variables, import, or suspend the function.
_CHANGING: Final = (
    "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "STORE_DEREF", "STORE_NAME", "DELETE_", "IMPORT_",
    "YIELD_", "RETURN_GENERATOR", "SEND", "RAISE_",
)  # fmt: skip
_BUILTINS: Final = ("abs", "bool", "float", "int", "len", "max", "min", "pow", "range", "round", "sum")
_CALLED: Final = frozenset(map(vars(builtins).get, _BUILTINS))
_PLAIN: Final = (int, float, bool, str, type(None))
_HOLDERS: Final = (tuple, list, dict)
#: Nesting depth to which functions that a function calls are looked at.
_DEPTH: Final = 3


def changes_nothing(function: Any, depth: int = _DEPTH) -> bool:
    """Whether a function uses numbers, `math` and others such functions alone. Its arguments are numbers."""
    if isinstance(function, functools.partial):
        given = (*function.args, *function.keywords.values())
        return all(_is_plain(one) for one in given) and changes_nothing(function.func, depth)
    if type(function) is not FunctionType or depth == 0:
        return function in _CALLED if type(function).__hash__ is not None else False
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    held = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if not all(_is_plain(one) or changes_nothing(one, depth - 1) for one in held):
        return False
    return all(_is_harmless(code, function.__globals__, depth) for code in _codes(function.__code__))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell: reading it raises
        return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _is_harmless(code: CodeType, names: dict[str, Any], depth: int) -> bool:
    if any(instr.opname.startswith(_CHANGING) for instr in dis.get_instructions(code)):
        return False
    return all(_is_known(name, names, depth) for name in code.co_names)


def _is_known(name: str, names: dict[str, Any], depth: int) -> bool:
    """Whether a name is that of a number, of `math` or one of its functions, or of a function that changes nothing."""
    if name not in names:
        return name in _BUILTINS or name in vars(math)
    found = names[name]
    return found is math or _is_plain(found) or changes_nothing(found, depth - 1)


def _is_plain(found: Any) -> bool:
    """Whether an object is a number, a string, or a container of these."""
    if type(found) in _HOLDERS:
        return all(map(_is_plain, found.values() if type(found) is dict else found))
    return type(found) in _PLAIN
