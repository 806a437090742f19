"""Descriptors: the result of reading a class entry through an instance or the class, one row for each kind.

A row takes the entry and returns the bound value; descriptors written in Python are inlined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    DynamicClassAttribute,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Final

from framesmith_dynamo.breaks import OPAQUE_DESCRIPTOR, GraphBreak, register_break
from framesmith_dynamo.registry import register
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.functions.functions import MethodValue
from framesmith_dynamo.values.functions.partials import PartialValue
from framesmith_dynamo.values.lookup.entries import (
    class_source,
    entry_value,
    guard_absent_accessor,
    slot_check,
    special_method,
)
from framesmith_dynamo.values.lookup.static import is_immutable, type_lookup, user_method
from framesmith_frames import CompiledFunction

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

CLASS_ATTRIBUTE = register_break(
    "class-attribute",
    what="an attribute of a class is computed by code the tracer cannot follow",
    why="its metaclass or a descriptor written in C computes it",
    hint="read the attribute outside the compiled function",
)
STANDS_IN = register_break(
    "class-stands-in",
    what="the class of an object is read that the trace has made in place of one of torch's C classes",
    why="the program would see another class than in eager mode",
    hint="do without `type(ctx)` and `ctx.__class__`",
)

#: Classes of this package whose objects stand for those of a C class.
STAND_INS: Final[set[type]] = set()


class CMethodValue(Value):
    """A method implemented in C, bound to a value; the value's family implements the call."""

    __slots__ = ("found", "name", "owner")

    def __init__(self, owner: Value, found: Found, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.found = found
        self.name = name

    def python_type(self) -> type:
        return BuiltinFunctionType

    def describe(self) -> str:
        return f"{self.found.owner.__qualname__}.{self.name} of {self.owner.describe()}"

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return self.owner.call_c_method(tr, self.found, self.name, args, kwargs)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name in ("__name__", "__doc__"):
            return tr.constant(getattr(self.found.raw, name))
        return super().getattr_(tr, name)

    def referents(self) -> tuple[Value, ...]:
        return (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(self.found.raw.__get__, (self.owner,))


Binder = Callable[[Tracer, Found, str, Value], Value]
BINDERS: dict[type, Binder] = {}


def binds(*types: type) -> Callable[[Binder], Binder]:
    """Register the binder for entries of exactly these types. Raises ValueError for a type already taken."""
    return register(BINDERS, *types)


def bind_entry(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    """Return `instance.name` for the class entry `found`."""
    binder = BINDERS.get(type(found.raw))
    if binder is not None:
        return binder(tr, found, name, instance)
    cls = instance.python_type()
    if not slot_check(tr, cls, found, name, instance.source, "__get__"):
        return entry_value(tr, cls, found, name, instance.source)
    if user_method(type(found.raw), "__get__") is None:
        inherited = _inherited_binder(type(found.raw))
        if inherited is not None:
            return inherited(tr, found, name, instance)
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"{name!r} ({type(found.raw).__qualname__}) of {instance.describe()}")
    descriptor = entry_value(tr, cls, found, name, instance.source)
    owner = class_value(tr, cls, instance.source)
    return call_descriptor(tr, descriptor, "__get__", (instance, owner))


def _inherited_binder(kind: type) -> Binder | None:
    """Return the row of the type whose C `__get__` a subclass inherits, for instance of `property`."""
    found = type_lookup(kind, "__get__")
    return None if found is None else BINDERS.get(found.owner)


def call_descriptor(tr: Tracer, descriptor: Value, name: str, args: Args) -> Value:
    """Call `type(descriptor).name(descriptor, *args)`, which is written in Python."""
    method = special_method(tr, descriptor, name)
    assert method is not None
    return tr.call(method, (descriptor, *args), {})


@binds(FunctionType, functools._lru_cache_wrapper, CompiledFunction)
def _function(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return MethodValue(entry_value(tr, instance.python_type(), found, name, instance.source), instance)


@binds(property, DynamicClassAttribute)
def _property(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    if found.raw.fget is None:
        guard_absent_accessor(tr, instance.python_type(), found, name, instance.source, "fget")
        tr.raise_(AttributeError, f"property '{name}' of '{instance.python_type().__name__}' object has no getter")
    return tr.call(part_value(tr, found, name, instance, "fget"), (instance,), {})


@binds(classmethod)
def _classmethod(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    function = part_value(tr, found, name, instance, "__func__")
    return bound_to_class(tr, function, class_value(tr, instance.python_type(), instance.source), name)


@binds(staticmethod)
def _staticmethod(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return part_value(tr, found, name, instance, "__func__")


@binds(functools.cached_property)
def _cached_property(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    value = tr.call(part_value(tr, found, name, instance, "func"), (instance,), {})
    instance.store_own(tr, found.raw.attrname, value)
    return value


@binds(functools.partialmethod)
def _partialmethod(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    function, args = (part_value(tr, found, name, instance, step) for step in ("func", "args"))
    keywords = part_value(tr, found, name, instance, "keywords").call_method(tr, "copy", (), {})
    kind, first = function.python_type(), [instance]
    if kind in (staticmethod, classmethod):
        function, first = function.getattr_(tr, "__func__"), []
    elif kind is not FunctionType and type_lookup(kind, "__get__") is not None:
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"{name!r}, a partialmethod of a {kind.__qualname__}")
    if kind is classmethod:
        function = bound_to_class(tr, function, class_value(tr, instance.python_type(), instance.source), name)
    return PartialValue(function, (*first, *args.unpack(tr)), keywords)


def part_value(tr: Tracer, found: Found, name: str, instance: Value, step: str) -> Value:
    """Return an attribute of a descriptor of the instance's class, such as `fget` or `__func__`."""
    return entry_value(tr, instance.python_type(), found, name, instance.source, step)


@binds(MethodDescriptorType, WrapperDescriptorType)
def _c_method(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return CMethodValue(instance, found, name)


@binds(ClassMethodDescriptorType)
def _c_classmethod(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return tr.constant(found.raw.__get__(None, instance.python_type()))


@binds(MemberDescriptorType, GetSetDescriptorType)
def _c_data(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return instance.read_c_data(tr, found, name)


def bind_through_class(tr: Tracer, found: Found, name: str, owner: Value, cls: type) -> Value:
    """Return `cls.name` for the entry `found` of the class, whose value is `owner`, or of a base."""
    raw = found.raw
    if isinstance(raw, classmethod | staticmethod):
        function = entry_value(tr, cls, found, name, None, "__func__")
        return bound_to_class(tr, function, owner, name) if isinstance(raw, classmethod) else function
    if isinstance(raw, FunctionType) or not slot_check(tr, cls, found, name, None, "__get__"):
        return entry_value(tr, cls, found, name, None)
    if user_method(type(raw), "__get__") is not None:
        descriptor = entry_value(tr, cls, found, name, None)
        return call_descriptor(tr, descriptor, "__get__", (tr.constant(None), owner))
    result = raw.__get__(None, cls)
    if result is raw:
        return entry_value(tr, cls, found, name, None)
    if not is_immutable(result):
        raise GraphBreak(CLASS_ATTRIBUTE, f"{name!r} of {owner.describe()}")
    return tr.constant(result)


def bound_to_class(tr: Tracer, function: Value, owner: Value, name: str) -> Value:
    """Return a `classmethod` around `function`, bound to a class; some Python versions call an inner descriptor."""
    kind = function.python_type()
    asked = CLASSMETHODS_CHAIN and type_lookup(kind, "__get__") is not None
    if not asked or issubclass(kind, FunctionType | functools._lru_cache_wrapper):
        return MethodValue(function, owner)
    if kind is MethodType:
        return function
    method = special_method(tr, function, "__get__")
    if method is not None:
        return tr.call(method, (function, owner, owner), {})
    if kind is staticmethod:
        return function.getattr_(tr, "__func__")
    if kind is classmethod:
        return bound_to_class(tr, function.getattr_(tr, "__func__"), owner, name)
    getter = function.getattr_(tr, "fget") if issubclass(kind, property) else None
    if getter is None or getter.is_none():
        raise GraphBreak(CLASS_ATTRIBUTE, f"{name!r}, a classmethod around a {kind.__qualname__}")
    return tr.call(getter, (owner,), {})


def _classmethods_chain() -> bool:
    """Whether classmethods bind by the `__get__` of the wrapped object, which depends on the Python version."""
    owner = type("Owner", (), {"name": classmethod(property(lambda cls: 1))})  # type: ignore[arg-type]
    return isinstance(owner.name, int)  # type: ignore[attr-defined]


CLASSMETHODS_CHAIN: Final = _classmethods_chain()


def class_value(tr: Tracer, cls: type, instance: Source | None) -> Value:
    """The class of an object, as a value."""
    if cls in STAND_INS:
        raise GraphBreak(STANDS_IN, cls.__name__)
    value = tr.constant(cls)
    if instance is not None and value.source is None:
        value.source = class_source(tr, cls, instance)
    return value


def lookup_or_none(tr: Tracer, instance: Value, name: str) -> Value | None:
    """Return a special method, looked up on the type as the interpreter does and bound; None when the type has none."""
    found = type_lookup(instance.python_type(), name)
    return bind_entry(tr, found, name, instance) if found is not None and found.raw is not None else None


def call_special(tr: Tracer, instance: Value, name: str, args: Args, kwargs: Kwargs) -> Value | None:
    """Call a special method of the type; None when the type (not counting `object`) has none."""
    found = type_lookup(instance.python_type(), name)
    if found is None or found.owner is object or found.raw is None:
        return None
    return tr.call(bind_entry(tr, found, name, instance), args, kwargs)
