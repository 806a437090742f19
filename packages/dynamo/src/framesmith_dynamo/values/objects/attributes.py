"""What an entry of a class dictionary becomes when it is read through an instance or a class: descriptors, one row
per kind.

A row takes the entry and gives the bound value; descriptors written in Python are inlined.
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
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.functions.functions import MethodValue
from framesmith_dynamo.values.functions.partials import PartialValue
from framesmith_dynamo.values.known import PLAIN_DATA, known
from framesmith_dynamo.values.lookup import (
    HEAP_TYPE,
    Found,
    has_slot,
    home_source,
    is_trusted,
    type_lookup,
    user_method,
)
from framesmith_dynamo.values.pins import pin
from framesmith_guards import AttrSource, InstanceDictSource, ItemSource, TypeSource

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

OPAQUE_DESCRIPTOR = register_break(
    "opaque-descriptor",
    what="an attribute is computed by a descriptor that is not written in Python",
    why="its code cannot be inlined and may have effects",
    hint="read the attribute outside the compiled function",
)
C_METHOD = register_break(
    "c-method",
    what="a method implemented in C is called on an object",
    why="the tracer has no rule for this method",
    hint="move the call out of the compiled function",
)


def class_source(tr: Tracer, cls: type, instance: Source | None) -> Source | None:
    """Where a class can be found: through the first instance met, or under its own name; the same source all
    through a trace.
    """
    memo = tr.memo.setdefault("class sources", {})
    if cls not in memo:
        memo[cls] = TypeSource(instance) if instance is not None else home_source(cls)
    return memo[cls]  # type: ignore[no-any-return]


def guard_class(tr: Tracer, cls: type, instance: Source | None) -> None:
    """Rely on a user's class and its bases gaining and losing no attributes; once per class and trace."""
    key = ("class guarded", cls)
    if key in tr.memo:
        return
    tr.memo[key] = True
    base = class_source(tr, cls, instance)
    changeable = any(owner.__flags__ & HEAP_TYPE and not is_trusted(owner.__module__) for owner in cls.__mro__)
    if base is not None and changeable:
        tr.guard(base, "CLASS_LAYOUT", cls)


def guard_entry_type(tr: Tracer, cls: type, found: Found, name: str, instance: Source | None) -> None:
    """Rely on a user's class keeping an entry of the same kind, so that it stays behind an instance's own attribute."""
    source = None if is_trusted(found.owner.__module__) else entry_source(tr, cls, found, name, instance)
    if source is not None:
        tr.guard(source, "TYPE_MATCH", type(found.raw))


def guard_no_accessor(tr: Tracer, cls: type, found: Found, name: str, instance: Source | None, accessor: str) -> None:
    """Rely on a user's property not having `fget`, `fset` or `fdel`."""
    source = None if is_trusted(found.owner.__module__) else entry_source(tr, cls, found, name, instance)
    if source is not None:
        tr.guard(AttrSource(source, accessor), "NONE_MATCH")


def entry_source(tr: Tracer, cls: type, found: Found, name: str, instance: Source | None) -> Source | None:
    """Where the raw entry `name` of `found.owner`, a base of `cls`, can be read without descriptors being called."""
    return source_in_class(class_source(tr, cls, instance), cls, found, name)


#: Entries that reading through the class gives as they are.
READ_THROUGH_CLASS: Final = (FunctionType, property, functools.cached_property, *PLAIN_DATA)


def source_in_class(base: Source | None, cls: type, found: Found, name: str) -> Source | None:
    """Where the raw entry is, given where the class is."""
    if base is None:
        return None
    first = type_lookup(cls, name)
    if first is not None and first.raw is found.raw and type(found.raw) in READ_THROUGH_CLASS:
        return AttrSource(base, name)  # guards then notice an override put into a class before the owner
    if found.owner is cls:
        return ItemSource(InstanceDictSource(base), name)
    owner = ItemSource(AttrSource(base, "__mro__"), cls.__mro__.index(found.owner))
    return ItemSource(InstanceDictSource(owner), name)


def entry_value(
    tr: Tracer, cls: type, found: Found, name: str, instance: Source | None, raw: Any = None, step: str = ""
) -> Value:
    """The value of a class entry, or of the object `raw` that its attribute `step` holds (`__func__`, `fget`, ...)."""
    source = entry_source(tr, cls, found, name, instance)
    if step and source is not None:
        source = AttrSource(source, step)
    obj = found.raw if raw is None else raw
    trusted = is_trusted(found.owner.__module__)
    if trusted:
        pin(tr, found.owner, name, found.raw)
    return known(tr, obj, source, stable=trusted and type(obj) not in PLAIN_DATA)


class CMethodValue(Value):
    """A method implemented in C, bound to a value; the value's family says what a call means."""

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
        handler = getattr(self.owner, "call_c_method", None)
        if handler is None:
            raise GraphBreak(C_METHOD, self.describe())
        result: Value = handler(tr, self.found, self.name, args, kwargs)
        return result

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name in ("__name__", "__doc__"):
            return tr.constant(getattr(self.found.raw, name))
        return super().getattr_(tr, name)

    def bool_(self, tr: Tracer) -> bool:
        return True

    def referents(self) -> tuple[Value, ...]:
        return (self.owner,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_callable(lambda: codegen.load_const(self.found.raw.__get__))
        codegen(self.owner)
        codegen.call(1)


Binder = Callable[[Tracer, Found, str, Value], Value]
BINDERS: dict[type, Binder] = {}


def _binds(*types: type) -> Callable[[Binder], Binder]:
    def register(binder: Binder) -> Binder:
        for cls in types:
            BINDERS[cls] = binder
        return binder

    return register


def bind_entry(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    """`instance.name` where the class gives `found` for it."""
    binder = BINDERS.get(type(found.raw))
    if binder is not None:
        return binder(tr, found, name, instance)
    cls = instance.python_type()
    if not has_slot(found.raw, "__get__"):
        return entry_value(tr, cls, found, name, instance.source)
    getter = user_method(type(found.raw), "__get__")
    if getter is None:
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"{name!r} ({type(found.raw).__qualname__}) of {instance.describe()}")
    descriptor = entry_value(tr, cls, found, name, instance.source)
    return tr.call(tr.constant(getter), (descriptor, instance, tr.constant(cls)), {})


@_binds(FunctionType, functools._lru_cache_wrapper)
def _function(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return MethodValue(entry_value(tr, instance.python_type(), found, name, instance.source), instance)


@_binds(property, DynamicClassAttribute)
def _property(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    raw = found.raw
    if raw.fget is None:
        guard_no_accessor(tr, instance.python_type(), found, name, instance.source, "fget")
        tr.raise_(AttributeError, f"property '{name}' of '{instance.python_type().__name__}' object has no getter")
    getter = entry_value(tr, instance.python_type(), found, name, instance.source, raw.fget, "fget")
    return tr.call(getter, (instance,), {})


@_binds(classmethod)
def _classmethod(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    cls = instance.python_type()
    function = entry_value(tr, cls, found, name, instance.source, found.raw.__func__, "__func__")
    return MethodValue(function, class_value(tr, cls, instance.source))


@_binds(staticmethod)
def _staticmethod(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return entry_value(tr, instance.python_type(), found, name, instance.source, found.raw.__func__, "__func__")


@_binds(functools.cached_property)
def _cached_property(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    raw = found.raw
    function = entry_value(tr, instance.python_type(), found, name, instance.source, raw.func, "func")
    value = tr.call(function, (instance,), {})
    store_plain(tr, instance, raw.attrname, value)
    return value


@_binds(functools.partialmethod)
def _partialmethod(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    raw, cls = found.raw, instance.python_type()
    function = entry_value(tr, cls, found, name, instance.source, raw.func, "func")
    source = entry_source(tr, cls, found, name, instance.source)
    stable = is_trusted(found.owner.__module__)

    def part(step: str, key: Any, obj: Any) -> Value:
        return known(tr, obj, ItemSource(AttrSource(source, step), key) if source is not None else None, stable=stable)

    args = tuple(part("args", i, obj) for i, obj in enumerate(raw.args))
    kwargs = {key: part("keywords", key, obj) for key, obj in raw.keywords.items()}
    return PartialValue(function, (instance, *args), kwargs)


@_binds(MethodDescriptorType, WrapperDescriptorType)
def _c_method(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return CMethodValue(instance, found, name)


@_binds(ClassMethodDescriptorType)
def _c_classmethod(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    return tr.constant(getattr(instance.python_type(), name))


@_binds(MemberDescriptorType, GetSetDescriptorType)
def _c_data(tr: Tracer, found: Found, name: str, instance: Value) -> Value:
    reader = getattr(instance, "read_c_data", None)
    if reader is None:
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"{name!r} of {instance.describe()}")
    value: Value = reader(tr, found, name)
    return value


def class_value(tr: Tracer, cls: type, instance: Source | None) -> Value:
    """The class of an object, as a value."""
    found = tr.memo.get(("class value", cls))
    if found is None:
        found = tr.constant(cls)
        if found.source is None:
            found.source = class_source(tr, cls, instance)
        tr.memo["class value", cls] = found
    return found


def store_plain(tr: Tracer, instance: Value, name: str, value: Value) -> None:
    """Store into the instance dictionary, past descriptors and `__setattr__`."""
    store = getattr(instance, "store_own", None)
    if store is None:
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"{name!r} of {instance.describe()}")
    store(tr, name, value)


def lookup_or_none(tr: Tracer, instance: Value, name: str) -> Value | None:
    """A special method, looked up on the type as the interpreter does and bound; None when the type has none."""
    found = type_lookup(instance.python_type(), name)
    return bind_entry(tr, found, name, instance) if found is not None and found.raw is not None else None


def call_special(tr: Tracer, instance: Value, name: str, args: Args, kwargs: Kwargs) -> Value | None:
    """Call a special method of the type; None when the type (not counting `object`) has none."""
    found = type_lookup(instance.python_type(), name)
    if found is None or found.owner is object or found.raw is None:
        return None
    return tr.call(bind_entry(tr, found, name, instance), args, kwargs)
