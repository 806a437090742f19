"""Real objects that are the same at every call: known by identity, or by all that identifies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.lookup.libraries import is_library_entry

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class Known(Value):
    """Represents `obj` itself. Compiled code loads it from its source, or has it as a constant."""

    __slots__ = ()
    obj: Any

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


class KnownValue(Known):
    """A value without further knowledge than its object."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.obj = obj
