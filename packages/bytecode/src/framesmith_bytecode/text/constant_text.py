"""Short texts of constants for listings: one line each, the same in every run, without exceptions."""

from __future__ import annotations

import re
from types import CodeType
from typing import Final

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_DEPTH: Final = 8  # of nested tuples; deeper ones are abbreviated


def code_text(code: CodeType) -> str:
    """A nested code object: its qualified name and line, which distinguishes several lambdas."""
    return f"<code {code.co_qualname}, line {code.co_firstlineno}>"


def _full(value: object, depth: int) -> str:
    if isinstance(value, CodeType):
        return code_text(value)
    if type(value) is tuple:
        if depth == 0:
            return "(...)"
        parts = [_full(item, depth - 1) for item in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if type(value) is frozenset:  # in an order independent of hashes
        items = ", ".join(sorted(_full(item, depth - 1) for item in value))
        return f"frozenset({{{items}}})" if value else "frozenset()"
    if type(value) is float and repr(value) in ("nan", "inf", "-inf"):
        return f"float('{value}')"
    if value is Ellipsis:
        return "..."
    return " ".join(_ADDRESS.sub("", repr(value)).split("\n"))


def constant_text(value: object, width: int = 80) -> str:
    """The repr of the value if it fits into `width` characters, else `<type of size: beginning...>`."""
    name = type(value).__qualname__
    try:
        text = _full(value, _DEPTH)
    except Exception as error:  # of the value's own __repr__
        return f"<{name} whose repr raises {type(error).__name__}>"
    if len(text) <= width:
        return text
    size = f" of {len(value)}" if isinstance(value, str | bytes | tuple | frozenset) else ""
    return f"<{name}{size}: {text[:width]}...>"
