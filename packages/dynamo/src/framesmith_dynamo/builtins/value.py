"""Functions and unbound methods written in C, known by identity."""

from __future__ import annotations

from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak
from framesmith_dynamo.values import torch_decorators
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.callables import find_handler
from framesmith_dynamo.values.constants.constant import CONSTANT_TYPES
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.known import KnownValue
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.attributes import CMethodValue
from framesmith_dynamo.values.objects.classes import make_new
from framesmith_dynamo.values.wrap_registry import WRAPPERS, Family, build, builds_family, wraps_family
from framesmith_guards import AttrSource
from framesmith_guards.values.classes import class_dict

if TYPE_CHECKING:
    from framesmith_guards import Source

FUNCTION_TYPES = (BuiltinFunctionType, MethodWrapperType)
DESCRIPTOR_TYPES = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)


class BuiltinValue(KnownValue):
    """A callable written in C."""

    python_types = (*FUNCTION_TYPES, *DESCRIPTOR_TYPES)
    exact_operators = True
    __slots__ = ()

    def as_proxy(self) -> Any:
        return self.obj

    def describe(self) -> str:
        owner = getattr(self.obj, "__module__", None) or getattr(self.obj, "__objclass__", None)
        prefix = owner.__name__ if isinstance(owner, type) else owner
        name = getattr(self.obj, "__qualname__", repr(self.obj))
        return f"{prefix}.{name}" if prefix and not isinstance(owner, type) else str(name)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if op not in ("==", "!=") or not isinstance(other, BuiltinValue):
            return None
        return tr.constant((self.obj == other.obj) is (op == "=="))

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if not hasattr(self.obj, name):
            tr.raise_(AttributeError, f"'{type(self.obj).__name__}' object has no attribute '{name}'")
        return build(tr, getattr(self.obj, name))

    # Calls

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        handler = torch_decorators.handler_of(self.obj) or find_handler(self.obj)
        if handler is not None:
            return handler(tr, args, kwargs)
        if isinstance(self.obj, DESCRIPTOR_TYPES):
            return self._call_descriptor(tr, args, kwargs)
        return self._call_bound(tr, args, kwargs)

    def _call_descriptor(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """`list.append(xs, x)`: the method of the class itself, whatever the object's own class overrides."""
        owner, name = self.obj.__objclass__, self.obj.__name__
        if not args or not issubclass(args[0].python_type(), owner):
            refuse(tr, self.obj, args, kwargs)
        found = type_lookup(args[0].python_type(), name)
        own = found is not None and found.raw is self.obj
        if own and type(args[0]).call_c_method is Value.call_c_method:
            return args[0].call_method(tr, name, args[1:], kwargs)
        return CMethodValue(args[0], Found(owner, self.obj), name).call(tr, args[1:], kwargs)

    def _call_bound(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """Call a method bound to a class or a constant; module functions without a handler break."""
        owner = getattr(self.obj, "__self__", None)
        name = self.obj.__name__
        if isinstance(owner, type) and name == "__new__" and args and args[0].is_constant():
            return make_new(tr, args[0].as_constant(), owner, args[1:], kwargs)
        found = type_lookup(owner, name) if isinstance(owner, type) else None
        handler = None if found is None else find_handler(found.raw)
        if found is not None and handler is not None and isinstance(found.raw, ClassMethodDescriptorType):
            return handler(tr, (tr.constant(owner), *args), kwargs)
        if type(owner) in CONSTANT_TYPES and owner is not None and not isinstance(owner, ModuleType):
            return tr.constant(owner).call_method(tr, name, args, kwargs)
        raise GraphBreak(UNSUPPORTED_CALL, self.describe())


def _is_builtin(obj: Any) -> bool:
    return type(obj) in BuiltinValue.python_types


def _is_bound(obj: Any) -> bool:
    """Whether a C callable is a bound method, created by each read."""
    if type(obj) is MethodWrapperType:
        return True
    owner = getattr(obj, "__self__", None)  # a function of an extension module has the module, None, or some record
    return type(obj) is BuiltinFunctionType and owner is not None and type(owner) in WRAPPERS


@wraps_family(Family.BUILTIN, _is_builtin)
def wrap_builtin(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap a C callable found at a source: the same object, or a bound method of the same name and owner."""
    if _is_bound(obj) and find_handler(obj) is None:
        tr.guard(source, "TYPE_MATCH", type(obj))
        tr.guard(AttrSource(source, "__name__"), "EQUALS_MATCH", obj.__name__)
        return _bound(tr, obj, source)
    tr.guard(source, "ID_MATCH", obj)
    return BuiltinValue(obj, source=source)


def _bound(tr: Tracer, obj: Any, source: Source) -> Value:
    """Return the value of a bound C method, which may be that of a base class of its owner's: `super().__init__`."""
    name, cls = obj.__name__, type(obj.__self__)
    usual = found = type_lookup(cls, name)
    if type(obj) is MethodWrapperType:
        definer = obj.__objclass__
        tr.guard(AttrSource(source, "__objclass__"), "ID_MATCH", definer)
        found = Found(definer, class_dict(definer)[name])
    elif sum(name in vars(base) for base in cls.__mro__[:-1]) > 1:
        raise GraphBreak(UNSUPPORTED_CALL, f"a bound method {name!r} of a {cls.__qualname__} or one of its bases")
    owner = tr.wrap(obj.__self__, AttrSource(source, "__self__"))
    if found is None or (usual is not None and found.raw is usual.raw):
        return BuiltinMethodValue(owner, name)
    return CMethodValue(owner, found, name)


def _build_builtin(tr: Tracer, obj: Any) -> Value:
    return BuiltinValue(obj)


builds_family(Family.BUILTIN, _is_builtin)(_build_builtin)
