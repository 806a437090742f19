"""Template strings: the objects that t-strings make, which never change. Older versions of Python have none."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.containers.items import LazyItem, resolved
from framesmith_dynamo.values.containers.tuple import TupleValue
from framesmith_dynamo.values.wrap_registry import Wrapper, wraps_type
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


def _template_types() -> tuple[type, ...]:
    """Return the classes of interpolations and of templates, where Python has them."""
    try:
        library: Any = importlib.import_module("string.templatelib")
    except ModuleNotFoundError:
        return ()
    return library.Interpolation, library.Template


TEMPLATE_TYPES: Final = _template_types()


class RecordedParts(Value):
    """An object of parts that are attributes, made in the trace or found at a source; equal only to itself."""

    FIELDS: ClassVar[tuple[str, ...]]
    __slots__ = ("parts",)

    def __init__(self, *parts: Value, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.parts: dict[str, Value] = dict(zip(self.FIELDS, parts, strict=True))

    def part(self, name: str) -> Value:
        """Return a part; one of an existing object is wrapped, and so guarded, when it is first read."""
        found = self.parts[name] = resolved(self.parts[name])
        return found

    def bool_(self, tr: Tracer) -> bool:
        return True

    def hash_key(self, tr: Tracer) -> object:
        return self

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__class__":
            return tr.constant(self.python_type())
        if name in self.parts:
            return self.part(name)
        cls = self.python_type()
        if not hasattr(cls, name):
            tr.raise_(AttributeError, f"'{cls.__module__}.{cls.__name__}' object has no attribute '{name}'")
        return super().getattr_(tr, name)

    def referents(self) -> Iterable[Value]:
        return self.parts.values() if self.source is None else ()

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is None:
            codegen.push_call(self.maker(), self.parts.values())
        else:
            super().reconstruct(codegen)

    def maker(self) -> Any:
        """Return the function that makes such an object of its parts."""
        raise NotImplementedError


class InterpolationValue(RecordedParts):
    """A replacement field of a template."""

    python_types = TEMPLATE_TYPES[:1]
    FIELDS = ("value", "expression", "conversion", "format_spec")
    __slots__ = ()

    def maker(self) -> Any:
        return TEMPLATE_TYPES[0]


class TemplateValue(RecordedParts):
    """A template: one string more than it has fields, between which the fields are."""

    python_types = TEMPLATE_TYPES[1:]
    FIELDS = ("strings", "interpolations")
    __slots__ = ()

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "values":
            return TupleValue([field.getattr_(tr, "value") for field in self.part("interpolations").unpack(tr)])
        return super().getattr_(tr, name)

    def iter_(self, tr: Tracer) -> Value:
        return TupleValue(self.unpack(tr)).iter_(tr)

    def unpack(self, tr: Tracer) -> list[Value]:
        """Return the strings that are not empty and the fields, in order."""
        first, *strings = self.part("strings").unpack(tr)
        found = [first]
        for field, text in zip(self.part("interpolations").unpack(tr), strings, strict=True):
            found += [field, text]
        return [part for part in found if isinstance(part, InterpolationValue) or part.as_constant()]

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op != "+" or not isinstance(other, TemplateValue):
            self.unsupported(op)
        *before, last = self.part("strings").unpack(tr)
        first, *after = other.part("strings").unpack(tr)
        middle = tr.constant(last.as_constant() + first.as_constant())
        fields = (field for one in (self, other) for field in one.part("interpolations").unpack(tr))
        return new_template(tr, TupleValue([*before, middle, *after]), TupleValue([*fields]))

    def maker(self) -> Any:
        return make_template


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


def _wrap(cls: type[RecordedParts]) -> Wrapper:
    def wrap(tr: Tracer, obj: Any, source: Source) -> Value:
        tr.guard(source, "TYPE_MATCH", type(obj))
        parts = (LazyItem(tr, getattr(obj, name), source, name, AttrSource) for name in cls.FIELDS)
        return cls(*parts, source=source)

    return wrap


for _type, _value in zip(TEMPLATE_TYPES, (InterpolationValue, TemplateValue), strict=False):
    wraps_type(_type)(_wrap(_value))
