"""Objects of Python classes: attributes as in `object.__getattribute__`, special methods from the type.

For an object found at a source, its instance dictionary is read directly; stores go to the journal. One made in the
trace has only the journal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from framesmith_dynamo.breaks import OPAQUE_DESCRIPTOR, GraphBreak, register_break
from framesmith_dynamo.polyfills.protocols import contains_by_iteration, iterate_by_index
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.attribute_dicts.instance_dict import InstanceDictValue
from framesmith_dynamo.values.attribute_dicts.owners import refuse_shared
from framesmith_dynamo.values.base import Args, Found, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.c_methods import C_METHODS
from framesmith_dynamo.values.errors import answered, iterator, refuse_empty_slot, refuse_positional, refuse_store
from framesmith_dynamo.values.iteration.iterators import drain
from framesmith_dynamo.values.lookup.entries import (
    data_descriptor_check,
    entry_value,
    guard_absent_accessor,
    read_first_check,
    special_method,
)
from framesmith_dynamo.values.lookup.static import MISSING, instance_dict, type_lookup, user_method
from framesmith_dynamo.values.objects.attributes import (
    bind_entry,
    call_descriptor,
    call_special,
    class_value,
)
from framesmith_dynamo.values.objects.dataclass_keys import RecordKey, fields_compared, make_hashable
from framesmith_dynamo.values.operations import BINARY_SLOTS, COMPARE_SLOTS, UNARY_SLOTS
from framesmith_guards import AttrSource, InstanceDictSource, ItemSource
from framesmith_guards.values.classes import IMMUTABLE_TYPE
from framesmith_sideeffects import DELETED, has_own_attribute

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

TORCH_FUNCTION_OBJECT = register_break(
    "torch-function-object",
    what="an object with __torch_function__ is an operand of a tensor operation",
    why="its __torch_function__ may run any code",
    hint="use plain tensors inside the compiled function",
)
UNHASHABLE_KEY = register_break(
    "object-as-key",
    what="an object with its own __hash__ or __eq__ is used as a key",
    why="the tracer cannot compare keys without running the methods for every pair",
    hint="use strings, numbers or plain objects as keys",
)

#: An operation that makes Python raise its error for an object without the special method.
WITHOUT: Final[dict[str, Callable[..., object]]] = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    "__delitem__": operator.delitem,
    "__iter__": iter,
    "__next__": next,
    "__len__": len,
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__invert__": operator.invert,
}


class ObjectValue(Value):
    """An object of class `cls`. `obj` is the real one, or MISSING when the trace made it.

    `hashed` are the attributes by which an object made in the trace was hashed: it is created with them.
    """

    exact_operators = True
    __slots__ = ("cls", "hashed", "obj")

    def __init__(self, cls: type, obj: Any = MISSING, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.cls = cls
        self.obj = obj
        self.hashed: dict[str, Value] = {}

    @property
    def is_new(self) -> bool:
        """Whether the trace made the object."""
        return self.obj is MISSING

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        where = f" from {self.source.name}" if self.source is not None else ""
        return f"a {self.cls.__qualname__} object{where}"

    # Attributes: reading

    def getattr_(self, tr: Tracer, name: str) -> Value:
        override = user_method(self.cls, "__getattribute__")
        if override is None:
            return self.default_getattr(tr, name)
        try:
            found = type_lookup(self.cls, "__getattribute__")
            assert found is not None
            return tr.call(bind_entry(tr, found, "__getattribute__", self), (tr.constant(name),), {})
        except TracedRaise as error:
            return self._fallback_getattr(tr, name, error)

    def default_getattr(self, tr: Tracer, name: str) -> Value:
        """`object.__getattribute__`, then `__getattr__` when the class has one."""
        try:
            value = self.find_attribute(tr, name)
        except TracedRaise as error:  # a property that raises AttributeError leads to `__getattr__` too
            return self._fallback_getattr(tr, name, error)
        return self._fallback_getattr(tr, name, None) if value is None else value

    def generic_getattr(self, tr: Tracer, name: str) -> Value:
        """`object.__getattribute__` alone, as called by its name."""
        value = self.find_attribute(tr, name)
        if value is None:
            self.no_attribute(tr, name)
        return value

    def find_attribute(self, tr: Tracer, name: str) -> Value | None:
        """Look up data descriptors of the type, the instance's own attributes, then the rest of the type; or None."""
        found = type_lookup(self.cls, name)
        if found is not None and read_first_check(tr, self.cls, found, name, self.source):
            return bind_entry(tr, found, name, self)
        own = self.own_attribute(tr, name)
        return own if own is not None or found is None else bind_entry(tr, found, name, self)

    def own_attribute(self, tr: Tracer, name: str) -> Value | None:
        """Return the attribute in the instance dictionary, pending stores included, or None; absence is guarded."""
        pending = tr.journal.load_attr(self, name)
        if pending is not None:
            return None if pending is DELETED else pending
        entries = self.entries()
        if entries is None:
            return None
        if name in entries:
            return tr.wrap(entries[name], self.attribute_source(name))
        self.guard_absent(tr, name)
        return None

    def entries(self) -> dict[str, Any] | None:
        """The real instance dictionary, if the object exists and has one."""
        return None if self.is_new else instance_dict(self.obj)

    def attribute_source(self, name: str) -> Source:
        """Return the source of an attribute of the instance dictionary."""
        assert self.source is not None
        found = type_lookup(self.cls, name)
        hidden = found is not None and not isinstance(found.raw, MemberDescriptorType)
        if hidden or user_method(self.cls, "__getattribute__") is not None:
            return ItemSource(InstanceDictSource(self.source), name)
        return AttrSource(self.source, name)

    def guard_absent(self, tr: Tracer, name: str) -> None:
        """Guard that the instance dictionary does not have `name`."""
        if self.source is not None:
            tr.guard(InstanceDictSource(self.source), "DICT_NOT_CONTAINS", name)

    def _fallback_getattr(self, tr: Tracer, name: str, error: TracedRaise | None) -> Value:
        try:
            if error is not None and not issubclass(error.value.python_type(), AttributeError):
                raise error
            value = self.missing_attribute(tr, name)
            if value is not None:
                return value
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame, and all callers
        return self.no_attribute(tr, name)

    def missing_attribute(self, tr: Tracer, name: str) -> Value | None:
        """Return the result of the class's `__getattr__`; None when it has none."""
        found = type_lookup(self.cls, "__getattr__")
        if found is None:
            return None
        return tr.call(bind_entry(tr, found, "__getattr__", self), (tr.constant(name),), {})

    def no_attribute(self, tr: Tracer, name: str) -> NoReturn:
        """Raise the program's AttributeError."""
        module = f"{self.cls.__module__}." if self.cls.__flags__ & IMMUTABLE_TYPE else ""
        tr.raise_(AttributeError, f"'{module}{self.cls.__name__}' object has no attribute '{name}'")

    def read_c_data(self, tr: Tracer, found: Found, name: str) -> Value:
        if name == "__class__":
            return class_value(tr, self.cls, self.source)
        if name == "__dict__":
            return InstanceDictValue(tr, self)
        if isinstance(found.raw, MemberDescriptorType):
            return self._read_slot(tr, found, name)
        return super().read_c_data(tr, found, name)

    def _read_slot(self, tr: Tracer, found: Found, name: str) -> Value:
        value = self._slot(tr, found, name)
        if value is None:
            refuse_empty_slot(tr, self.cls, name)
        return value

    def _slot(self, tr: Tracer, found: Found, name: str) -> Value | None:
        """Return the contents of a slot, pending stores included, or None; emptiness is guarded."""
        pending = tr.journal.load_attr(self, name)
        if pending is not None and pending is not DELETED:
            return pending
        if pending is None and has_own_attribute(self.obj, name):
            return tr.wrap(found.raw.__get__(self.obj), self.attribute_source(name))
        if pending is None and self.source is not None:
            tr.guard(self.source, "NO_HASATTR", name)
        return None

    # Attributes: writing

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        found = type_lookup(self.cls, "__setattr__")
        if found is not None and user_method(self.cls, "__setattr__") is not None:
            tr.call(bind_entry(tr, found, "__setattr__", self), (tr.constant(name), value), {})
        else:
            self.generic_setattr(tr, name, value)

    def generic_setattr(self, tr: Tracer, name: str, value: Value) -> None:
        """`object.__setattr__`."""
        found = type_lookup(self.cls, name)
        if found is not None and data_descriptor_check(tr, self.cls, found, name, self.source):
            self._set_through(tr, found, name, value)
            return
        if type_lookup(self.cls, "__dict__") is None:
            refuse_store(tr, self.cls, name, in_class=found is not None)
        self.store_own(tr, name, value)

    def store_own(self, tr: Tracer, name: str, value: Value) -> None:
        self.track(tr)
        tr.journal.store_attr(self, name, value)

    def track(self, tr: Tracer) -> None:
        """Track the object in the journal."""
        if self.mutation is None:
            if not self.is_new:
                if id(self.entries()) in tr.facts.shared_dicts:
                    refuse_shared(self)
                tr.journal.track_existing(self, self.obj)
            else:
                tr.journal.track_new(self, self.cls)

    def _set_through(self, tr: Tracer, found: Found, name: str, value: Value) -> None:
        raw = found.raw
        if isinstance(raw, property):
            if raw.fset is None:
                guard_absent_accessor(tr, self.cls, found, name, self.source, "fset")
                tr.raise_(AttributeError, f"property '{name}' of '{self.cls.__name__}' object has no setter")
            setter = entry_value(tr, self.cls, found, name, self.source, "fset")
            tr.call(setter, (self, value), {})
        elif isinstance(raw, MemberDescriptorType):
            self.store_own(tr, name, value)
        elif user_method(type(raw), "__set__") is not None:
            descriptor = entry_value(tr, self.cls, found, name, self.source)
            call_descriptor(tr, descriptor, "__set__", (self, value))
        else:
            raise GraphBreak(OPAQUE_DESCRIPTOR, f"setting {name!r} of {self.describe()}")

    def delattr_(self, tr: Tracer, name: str) -> None:
        found = type_lookup(self.cls, "__delattr__")
        if found is not None and user_method(self.cls, "__delattr__") is not None:
            tr.call(bind_entry(tr, found, "__delattr__", self), (tr.constant(name),), {})
        else:
            self.generic_delattr(tr, name)

    def generic_delattr(self, tr: Tracer, name: str) -> None:
        """`object.__delattr__`."""
        found = type_lookup(self.cls, name)
        if found is not None and isinstance(found.raw, MemberDescriptorType):
            if self._slot(tr, found, name) is None:
                tr.raise_(AttributeError, name)
        elif found is not None and data_descriptor_check(tr, self.cls, found, name, self.source):
            self._delete_through(tr, found, name)
            return
        elif type_lookup(self.cls, "__dict__") is None:
            refuse_store(tr, self.cls, name, in_class=found is not None)
        elif self.own_attribute(tr, name) is None:
            self.no_attribute(tr, name)
        self.delete_own(tr, name)

    def delete_own(self, tr: Tracer, name: str) -> None:
        """Delete from the instance dictionary or slot: a journal entry."""
        self.track(tr)
        if tr.journal.load_attr(self, name) is not None and self.source is not None:
            found = type_lookup(self.cls, name)
            is_slot = found is not None and isinstance(found.raw, MemberDescriptorType)
            self._guard_presence(tr, self.source, name, is_slot=is_slot)
        tr.journal.delete_attr(self, name)

    def _guard_presence(self, tr: Tracer, source: Source, name: str, *, is_slot: bool) -> None:
        """Guard whether the object had an attribute before the trace stored it, and so whether it can be deleted."""
        present = has_own_attribute(self.obj, name)
        if is_slot:
            tr.guard(source, "HASATTR" if present else "NO_HASATTR", name)
        else:
            kind = "DICT_CONTAINS" if present else "DICT_NOT_CONTAINS"
            tr.guard(InstanceDictSource(source), kind, name)

    def _delete_through(self, tr: Tracer, found: Found, name: str) -> None:
        raw = found.raw
        if isinstance(raw, property) and raw.fdel is not None:
            value = entry_value(tr, self.cls, found, name, self.source, "fdel")
            tr.call(value, (self,), {})
        elif user_method(type(raw), "__delete__") is not None:
            descriptor = entry_value(tr, self.cls, found, name, self.source)
            call_descriptor(tr, descriptor, "__delete__", (self,))
        elif isinstance(raw, property):
            guard_absent_accessor(tr, self.cls, found, name, self.source, "fdel")
            tr.raise_(AttributeError, f"property '{name}' of '{self.cls.__name__}' object has no deleter")
        elif user_method(type(raw), "__set__") is not None and type_lookup(type(raw), "__delete__") is None:
            tr.raise_(AttributeError, "__delete__")
        else:
            raise GraphBreak(OPAQUE_DESCRIPTOR, f"deleting {name!r} of {self.describe()}")

    # C methods of the type

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        method = C_METHODS.get((found.owner, name))
        return (
            super().call_c_method(tr, found, name, args, kwargs) if method is None else method(tr, self, args, kwargs)
        )

    # Special methods

    def _special(self, tr: Tracer, name: str, *args: Value) -> Value:
        result = call_special(tr, self, name, args, {})
        if result is None:
            refuse_positional(tr, WITHOUT[name], self, *args)
        return result

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        found = type_lookup(self.cls, "__call__")
        if found is None:
            tr.raise_(TypeError, f"'{self.cls.__name__}' object is not callable")
        return tr.call(bind_entry(tr, found, "__call__", self), args, kwargs)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        return self._special(tr, "__getitem__", key)

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        self._special(tr, "__setitem__", key, value)

    def delitem(self, tr: Tracer, key: Value) -> None:
        self._special(tr, "__delitem__", key)

    def iter_(self, tr: Tracer) -> Value:
        found = type_lookup(self.cls, "__iter__")
        if found is None and type_lookup(self.cls, "__getitem__") is not None:
            return tr.call(tr.constant(iterate_by_index), (self,), {})
        return iterator(tr, self, self._special(tr, "__iter__"))

    def next_(self, tr: Tracer) -> Value:
        return self._special(tr, "__next__")

    def unpack(self, tr: Tracer) -> list[Value]:
        return drain(tr, self.iter_(tr))

    def len_(self, tr: Tracer) -> Value:
        return answered(tr, len, "__len__", self, self._special(tr, "__len__"))

    def bool_(self, tr: Tracer) -> bool:
        for name in ("__bool__", "__len__"):
            answer = call_special(tr, self, name, (), {})
            if answer is not None:
                return answered(tr, bool, name, self, answer).bool_(tr)
        return True

    def contains(self, tr: Tracer, item: Value) -> Value:
        answer = call_special(tr, self, "__contains__", (item,), {})
        if answer is not None:
            return tr.constant(answer.bool_(tr))
        if all(type_lookup(self.cls, name) is None for name in ("__iter__", "__getitem__")):
            refuse_positional(tr, operator.contains, self, item)
        return tr.call(tr.constant(contains_by_iteration), (self, item), {})

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._operator(tr, f"__{BINARY_SLOTS[op]}__", other)

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if type_lookup(self.cls, "__torch_function__") is not None:
            raise GraphBreak(TORCH_FUNCTION_OBJECT, self.describe())
        return self._operator(tr, f"__r{BINARY_SLOTS[op]}__", other)

    def inplace_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._operator(tr, f"__i{BINARY_SLOTS[op]}__", other)

    def _operator(self, tr: Tracer, name: str, *args: Value) -> Value | None:
        result = call_special(tr, self, name, args, {})
        if result is not None and result.is_constant() and result.as_constant() is NotImplemented:
            return None
        return result

    def unary_op(self, tr: Tracer, op: str) -> Value:
        return self._special(tr, UNARY_SLOTS[op])

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        result = self._operator(tr, f"__{COMPARE_SLOTS[op]}__", other)
        if result is None and op == "!=":
            equal = self._operator(tr, "__eq__", other)
            return None if equal is None else tr.constant(not equal.bool_(tr))
        return result

    def hash_key(self, tr: Tracer) -> object:
        compared = fields_compared(self.cls)
        if compared is not None and type(self).reconstruct is ObjectValue.reconstruct:
            for name in ("__hash__", "__eq__"):
                special_method(tr, self, name)
            if self.is_new:
                self.hashed = {
                    name: held for name, held in tr.journal.pending_attrs(self).items() if held is not DELETED
                }
            return RecordKey(self.cls, tuple(operations.hash_key(tr, self.getattr_(tr, name)) for name in compared))
        for name in ("__hash__", "__eq__"):
            found = type_lookup(self.cls, name)
            if found is None or found.owner is not object:
                raise GraphBreak(UNHASHABLE_KEY, self.describe())
        return self

    def enter(self, tr: Tracer) -> Value:
        return self._special(tr, "__enter__")

    def exit_(self, tr: Tracer, args: Args) -> Value:
        return self._special(tr, "__exit__", *args)

    # Reconstruction

    def referents(self) -> Iterable[Value]:
        return self.hashed.values()

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
            return
        if self.hashed:
            codegen.push_call(make_hashable, tuple(self.hashed.values()), (self.cls, tuple(self.hashed)))
            return
        codegen.push_call(object.__new__, (), (self.cls,))


#: Classes whose new instances, and those of their subclasses, have a value family of their own.
OBJECT_FAMILIES: dict[type, type[ObjectValue]] = {}


def family_of(cls: type) -> type[ObjectValue]:
    """Return the value class for new objects of a class."""
    return next((OBJECT_FAMILIES[base] for base in cls.__mro__ if base in OBJECT_FAMILIES), ObjectValue)
