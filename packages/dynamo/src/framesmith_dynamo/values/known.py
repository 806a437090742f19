"""Real objects that are themselves at every call: known by identity, or by what makes them the ones they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.holders import is_library_entry

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class KnownValue(Value):
    """The object `obj`. Compiled code loads one that a program may hold from there; a library's is a constant of it."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.obj = obj

    def python_type(self) -> type:
        return type(self.obj)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.obj

    def hash_key(self, tr: Tracer) -> object:
        return self.obj

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None and not is_library_entry(self.source):
            super().reconstruct(codegen)
        else:
            codegen.load_const(self.obj)
