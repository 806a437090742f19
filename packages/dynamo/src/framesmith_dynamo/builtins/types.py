"""Builtins about types and attributes: isinstance, type, getattr, callable, hash, repr and their like."""

from __future__ import annotations

import types
import weakref
from abc import ABCMeta
from typing import TYPE_CHECKING, Any

import torch

from framesmith_dynamo.breaks import INTERPRETER_ACCESS, NOT_CONSTANT, READS_OWN_LOCALS, GraphBreak, register_break
from framesmith_dynamo.values.attribute_dicts.attribute_dict import ModuleDictValue
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.callables import between, handles, one
from framesmith_dynamo.values.constants.constant import fold, plain
from framesmith_dynamo.values.containers import TupleValue, new_dict, new_list
from framesmith_dynamo.values.errors import answered, refuse
from framesmith_dynamo.values.lookup.entries import NO_SOURCE, class_source, guard_class, special_method
from framesmith_dynamo.values.lookup.libraries import is_trusted
from framesmith_dynamo.values.lookup.static import type_lookup, user_method
from framesmith_dynamo.values.objects.attributes import class_value
from framesmith_dynamo.values.objects.classes import CLASS_DEFINITION, ClassValue
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.tensors.tensor_object import is_plain_parameter_class
from framesmith_guards.values.classes import class_dict, mro
from framesmith_guards.values.constants import FROZEN_DICTS

if TYPE_CHECKING:
    from framesmith_guards import Source

INSTANCE_CHECK = register_break(
    "instance-check",
    what="isinstance or issubclass calls a class's own check",
    why="the class's __instancecheck__ or __subclasshook__ may run any code",
    hint="compare with an ordinary class, or check outside the compiled function",
)
OBJECT_ID = register_break(
    "object-id",
    what="id() of a tensor, a container or a new object is taken, or hash() of an object by its identity",
    why="the number differs between calls, and objects made in the trace have none yet",
    hint="compare objects with `is`, or use them as dict keys",
)
REPR_OF_OBJECT = register_break(
    "text-of-object",
    what="an object is converted to a string",
    why="the string depends on data or on code that the tracer does not follow",
    hint="format the string outside the compiled function",
)

#: Metaclasses of torch whose instance check only reads the type, for values that the tracer has.
_PLAIN_CHECKS = (torch.nn.Parameter, torch.nn.Buffer, torch.Tensor)


#: The method by which a class, or another object in its place, answers.
_RULES: dict[object, str] = {isinstance: "__instancecheck__", issubclass: "__subclasscheck__"}


def classes_of(tr: Tracer, value: Value, function: Any) -> list[type]:
    """Return the classes in the second argument of isinstance or issubclass: a class, a union, or a nested tuple."""
    if isinstance(value, ClassValue):
        return [value.cls]
    if isinstance(value, TupleValue):
        return [cls for item in value.unpack(tr) for cls in classes_of(tr, item, function)]
    if value.is_constant() and isinstance(value.as_constant(), types.UnionType):
        return [type(None) if arg is None else arg for arg in value.as_constant().__args__]
    if type(value).exact_operators and type_lookup(value.python_type(), _RULES[function]) is None:
        refuse(tr, function, [tr.constant(int), value], {})
    raise GraphBreak(INSTANCE_CHECK, value.describe())


def subclass_check(
    tr: Tracer, cls: type, of: type, instance: Source | None = None, function: object = isinstance
) -> bool:
    """Return `issubclass` of real classes, without running user code. `instance`: source of an object of the class."""
    if of in _PLAIN_CHECKS or is_plain_parameter_class(of):
        return of in cls.__mro__
    if type(of) is not type:
        guard_class(tr, type(of), class_source(tr, of))
    check = type_lookup(type(of), _RULES[function])
    if check is None or check.owner is type:
        return of in cls.__mro__
    hook = type_lookup(of, "__subclasshook__")
    if check.owner is ABCMeta and hook is not None and (hook.owner is object or is_trusted(hook.owner.__module__)):
        return registration_check(tr, cls, of, instance)
    raise GraphBreak(INSTANCE_CHECK, f"{of.__module__}.{of.__qualname__}")


def registration_check(tr: Tracer, cls: type, of: type, instance: Source | None) -> bool:
    """Return the answer of an abstract class, which knows subclasses by registration and by their methods."""
    guard_class(tr, cls, instance)
    guard_class(tr, of)
    answer = issubclass(cls, of)
    source = class_source(tr, cls, instance)
    if not answer and source is not None:
        tr.guard(source, "NOT_SUBCLASS", of)
    elif not answer:
        raise GraphBreak(NO_SOURCE, f"the class {cls.__module__}.{cls.__qualname__}")
    return answer


@handles(isinstance)
def _isinstance(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    obj, classes = between(tr, isinstance, args, kwargs, 2, 2)
    return tr.constant(any(instance_check(tr, obj, cls) for cls in classes_of(tr, classes, isinstance)))


def instance_check(tr: Tracer, obj: Value, of: type) -> bool:
    """Return the answer of `isinstance`, which reads the object's type, then its `__class__`."""
    own = obj.python_type()
    if subclass_check(tr, own, of, obj.source):
        return True
    entry = type_lookup(own, "__class__")
    plain = entry is not None and entry.owner is object and user_method(own, "__getattribute__") is None
    if plain and own not in weakref.ProxyTypes:
        return False
    named = attribute_or_none(tr, obj, "__class__")
    return isinstance(named, ClassValue) and named.cls is not own and subclass_check(tr, named.cls, of)


@handles(issubclass)
def _issubclass(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    cls, classes = between(tr, issubclass, args, kwargs, 2, 2)
    if not isinstance(cls, ClassValue):
        refuse(tr, issubclass, [cls, tr.constant(int)], {})
    guard_class(tr, cls.cls, cls.source)
    return tr.constant(
        any(subclass_check(tr, cls.cls, other, function=issubclass) for other in classes_of(tr, classes, issubclass))
    )


@handles(type)
def _type(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs:
        raise GraphBreak(CLASS_DEFINITION, "type(name, bases, dict)")
    return class_value(tr, args[0].python_type(), args[0].source)


@handles(callable)
def _callable(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    own = one(tr, callable, args, kwargs).python_type()
    return tr.constant(type_lookup(own, "__call__") is not None)


def attribute_name(tr: Tracer, value: Value, function: Any, *rest: Value) -> str:
    """Return the constant name of an attribute."""
    if not issubclass(value.python_type(), str):
        refuse(tr, function, [tr.constant(0), value, *rest], {})
    if not value.is_constant():
        raise GraphBreak(NOT_CONSTANT, "the name of an attribute")
    name: str = value.as_constant()
    return name


def attribute_or_none(tr: Tracer, obj: Value, name: str) -> Value | None:
    """Return `obj.name`, or None where Python would raise AttributeError."""
    try:
        return obj.getattr_(tr, name)
    except TracedRaise as raised:
        if issubclass(raised.value.python_type(), AttributeError):
            return None
        raise


@handles(getattr)
def _getattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    obj, name_value, *rest = between(tr, getattr, args, kwargs, 2, 3)
    name = attribute_name(tr, name_value, getattr)
    if not rest:
        return obj.getattr_(tr, name)
    found = attribute_or_none(tr, obj, name)
    return rest[0] if found is None else found


@handles(hasattr)
def _hasattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    obj, name = between(tr, hasattr, args, kwargs, 2, 2)
    return tr.constant(attribute_or_none(tr, obj, attribute_name(tr, name, hasattr)) is not None)


@handles(setattr)
def _setattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    obj, name, value = between(tr, setattr, args, kwargs, 3, 3)
    obj.setattr_(tr, attribute_name(tr, name, setattr, value), value)
    return tr.constant(None)


@handles(delattr)
def _delattr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    obj, name = between(tr, delattr, args, kwargs, 2, 2)
    obj.delattr_(tr, attribute_name(tr, name, delattr))
    return tr.constant(None)


@handles(vars)
def _vars(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not args and not kwargs:
        return own_variables(tr, vars)
    value = one(tr, vars, args, kwargs)
    found = attribute_or_none(tr, value, "__dict__")
    return refuse(tr, vars, args, {}) if found is None else found


def own_variables(tr: Tracer, function: Any) -> Value:
    """Return a dict of the calling function's variables; Python may update and return the same dict later."""
    found = tr.own_variables()
    if found is None:
        raise GraphBreak(READS_OWN_LOCALS, f"{function.__name__}() again")
    return new_dict(tr, [(tr.constant(name), value) for name, value in found.items()])


@handles(locals)
def _locals(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    between(tr, locals, args, kwargs, 0, 0)
    return own_variables(tr, locals)


@handles(dir)
def _dir(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not args and not kwargs:
        names = {name.as_constant() for name in own_variables(tr, dir).unpack(tr)}
        return new_list(tr, [tr.constant(name) for name in sorted(names)])
    value = one(tr, dir, args, kwargs)
    cls = value.python_type()
    found = type_lookup(cls, "__dir__")
    if found is None or found.owner is not object or value.is_constant():
        raise GraphBreak(INTERPRETER_ACCESS, f"dir() of {value.describe()}")
    guard_class(tr, cls, value.source)
    held = attribute_or_none(tr, value, "__dict__")
    own = [] if held is None else [name.as_constant() for name in held.unpack(tr)]
    names = set(own).union(*(class_dict(base) for base in mro(cls)))
    return new_list(tr, [tr.constant(name) for name in sorted(names)])


@handles(globals)
def _globals(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    between(tr, globals, args, kwargs, 0, 0)
    return ModuleDictValue(tr, tr.globals)


@handles(id)
def _id(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """The number of an object that every call has to have; others end the graph: a new one has no number yet."""
    value = one(tr, id, args, kwargs)
    if not isinstance(value, ObjectValue) or value.is_new or value.source is None:
        raise GraphBreak(OBJECT_ID, value.describe())
    tr.guard(value.source, "ID_MATCH", value.obj)
    return tr.constant(id(value.obj))


@handles(hash)
def _hash(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = one(tr, hash, args, kwargs)
    method = special_method(tr, value, "__hash__")
    if method is not None:
        return answered(tr, hash, "__hash__", value, tr.call(method, [value], {}))
    if not value.can_be_constant():
        value.hash_key(tr)  # the program's TypeError for an unhashable object
        if value.python_type() in FROZEN_DICTS:
            return fold(tr, hash, (plain(value),))
        raise GraphBreak(OBJECT_ID, f"hash() of {value.describe()}")
    return fold(tr, hash, (value.as_constant(),))


# Strings


def as_string(tr: Tracer, value: Value, function: Any, methods: tuple[str, ...]) -> Value:
    """`str(value)` or `repr(value)`: of constants, of containers of constants, or by the class's own Python method.

    `methods` are tried in turn: `object`'s version of the first one calls the second.
    """
    for name in methods:
        method = special_method(tr, value, name)
        if method is not None:
            return _checked_string(tr, name, tr.call(method, [value], {}))
        found = type_lookup(value.python_type(), name)
        if found is not None and found.owner is not object:
            break
    return string_of(tr, function, value)


def _checked_string(tr: Tracer, method: str, text: Value) -> Value:
    if not issubclass(text.python_type(), str):
        tr.raise_(TypeError, f"{method} returned non-string (type {text.python_type().__name__})")
    return text


def string_of(tr: Tracer, function: Any, value: Value, *spec: Any) -> Value:
    """Return the string `function(value, *spec)`; breaks when the object is not known."""
    try:
        plain(value)
    except GraphBreak:
        raise GraphBreak(REPR_OF_OBJECT, value.describe()) from None
    return fold(tr, function, (value, *spec))


@handles(repr)
def _repr(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return as_string(tr, one(tr, repr, args, kwargs), repr, ("__repr__",))


@handles(ascii)
def _ascii(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return string_of(tr, ascii, one(tr, ascii, args, kwargs))


@handles(str)
def _str(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not args and not kwargs:
        return tr.constant("")
    if len(args) == 1 and not kwargs:
        return as_string(tr, args[0], str, ("__str__", "__repr__"))
    return fold(tr, str, args, kwargs)


@handles(format)
def _format(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value, *rest = between(tr, format, args, kwargs, 1, 2)
    spec = rest[0] if rest else tr.constant("")
    if not issubclass(spec.python_type(), str):
        refuse(tr, format, args, kwargs)
    method = special_method(tr, value, "__format__")
    if method is not None:
        return _checked_string(tr, "__format__", tr.call(method, [value, spec], {}))
    if spec.as_constant() == "":
        return tr.call(tr.constant(str), [value], {})
    return string_of(tr, format, value, spec)
