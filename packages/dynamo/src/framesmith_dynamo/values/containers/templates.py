"""Template strings: the objects that t-strings make, which never change. Older versions of Python have none."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers.tuple import TupleValue

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


def _template_types() -> tuple[type, ...]:
    """Return the classes of interpolations and of templates, where Python has them."""
    try:
        library: Any = importlib.import_module("string.templatelib")
    except ModuleNotFoundError:
        return ()
    return library.Interpolation, library.Template


TEMPLATE_TYPES: Final = _template_types()


class RecordedParts(Value):
    """An object made in the trace of parts that are attributes; equal only to itself."""

    FIELDS: ClassVar[tuple[str, ...]]
    __slots__ = ("parts",)

    def __init__(self, *parts: Value) -> None:
        super().__init__()
        self.parts = dict(zip(self.FIELDS, parts, strict=True))

    def bool_(self, tr: Tracer) -> bool:
        return True

    def hash_key(self, tr: Tracer) -> object:
        return self

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(self.python_type())
        found = self.parts.get(name)
        if found is not None:
            return found
        cls = self.python_type()
        if not hasattr(cls, name):
            tr.raise_(AttributeError, f"'{cls.__module__}.{cls.__name__}' object has no attribute '{name}'")
        return super().getattr_(tr, name)

    def referents(self) -> Iterable[Value]:
        return self.parts.values()


class InterpolationValue(RecordedParts):
    """A replacement field of a template."""

    python_types = TEMPLATE_TYPES[:1]
    FIELDS = ("value", "expression", "conversion", "format_spec")
    __slots__ = ()

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(TEMPLATE_TYPES[0], self.parts.values())


class TemplateValue(RecordedParts):
    """A template: one string more than it has fields, between which the fields are."""

    python_types = TEMPLATE_TYPES[1:]
    FIELDS = ("strings", "interpolations")
    __slots__ = ()

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "values":
            return TupleValue([field.getattr_(tr, "value") for field in self.parts["interpolations"].unpack(tr)])
        return super().getattr_(tr, name)

    def iter_(self, tr: Tracer) -> Value:
        return TupleValue(self.unpack(tr)).iter_(tr)

    def unpack(self, tr: Tracer) -> list[Value]:
        """Return the strings that are not empty and the fields, in order."""
        first, *strings = self.parts["strings"].unpack(tr)
        found = [first]
        for field, text in zip(self.parts["interpolations"].unpack(tr), strings, strict=True):
            found += [field, text]
        return [part for part in found if isinstance(part, InterpolationValue) or part.as_constant()]

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(make_template, self.parts.values())


def make_template(strings: tuple[str, ...], fields: tuple[Any, ...]) -> Any:
    """Called by compiled code: return a template of strings and the fields between them."""
    between = [part for pair in zip(strings[1:], fields, strict=True) for part in reversed(pair)]
    return TEMPLATE_TYPES[1](strings[0], *between)


def new_interpolation(tr: Tracer, *parts: Value) -> Value:
    """Return a new field of a template: its value, its text, its conversion and its format."""
    made = InterpolationValue(*parts)
    tr.journal.track_new(made)
    return made


def new_template(tr: Tracer, strings: Value, fields: Value) -> Value:
    """Return a new template of a tuple of strings and a tuple of the fields between them."""
    made = TemplateValue(strings, fields)
    tr.journal.track_new(made)
    return made
