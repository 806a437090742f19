"""Strings found at a source: known to the trace, and guarded once their value is read.

Note [Unread strings]: a string that is only passed along (an argument of the breaking call, a variable after it, an
attribute stored elsewhere) may differ between calls: layers of one class, each with a name of its own, share an entry.
Reading the value adds a guard, as reading a symbolic number does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.constant import ConstantValue
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_sideeffects import load_source

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class StringValue(ConstantValue):
    """A `str` or `bytes` found at a source: see Note [Unread strings]."""

    __slots__ = ("_text", "_tr")

    def __init__(self, tr: Tracer, text: str | bytes, source: Source) -> None:
        Value.__init__(self, source=source)
        self._text = text
        self._tr: Tracer | None = tr
        tr.facts.unread_strings[source] = type(text)

    @property
    def value(self) -> Any:
        """The string, guarded from now on."""
        if self._tr is not None:
            assert self.source is not None
            self._tr.facts.unread_strings.pop(self.source, None)
            self._tr.guard(self.source, "EQUALS_MATCH", self._text)
            self._tr = None
        return self._text

    def python_type(self) -> type:
        return type(self._text)

    def as_number(self) -> None:
        return None

    def describe(self) -> str:
        assert self.source is not None
        return f"the {type(self._text).__name__} at {self.source.name}" if self._tr is not None else super().describe()

    def reconstruct(self, codegen: Codegen) -> None:
        assert self.source is not None
        load_source(codegen, self.source)


@wraps_type(str, bytes)
def _wrap_string(tr: Tracer, obj: Any, source: Source) -> Value:
    return StringValue(tr, obj, source)
