"""Making objects in the trace: the `__new__` of `object` and of exceptions, `super()`, and calls of
`object.__new__` by name.
"""

from __future__ import annotations

from types import MappingProxyType

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.holders import type_lookup, user_method
from framesmith_dynamo.values.objects.classes import CONSTRUCTION, ClassValue, constructs, makes
from framesmith_dynamo.values.objects.exceptions import ExceptionValue
from framesmith_dynamo.values.objects.mapping_proxies import MappingProxyValue
from framesmith_dynamo.values.objects.objects import family_of, has_plain_layout
from framesmith_dynamo.values.objects.supers import SuperValue


@makes(object)
def make_object(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`object.__new__(cls)`."""
    if (args or kwargs) and user_method(cls, "__init__") is None and user_method(cls, "__new__") is None:
        tr.raise_(TypeError, f"{cls.__name__}() takes no arguments")
    if getattr(cls, "__abstractmethods__", None):
        names = ", ".join(sorted(cls.__abstractmethods__))  # type: ignore[attr-defined]
        tr.raise_(TypeError, f"Can't instantiate abstract class {cls.__name__} with abstract methods {names}")
    if not has_plain_layout(cls) or type_lookup(cls, "__del__") is not None:
        raise GraphBreak(CONSTRUCTION, f"{cls.__module__}.{cls.__qualname__}")
    value = family_of(cls)(cls)
    value.track(tr)
    return value


@makes(BaseException)
def make_exception(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`BaseException.__new__(cls, *args)`."""
    return ExceptionValue.new(tr, cls, args)


@constructs(MappingProxyType)
def make_mapping_proxy(tr: Tracer, self: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """`MappingProxyType(mapping)`."""
    if len(args) != 1 or kwargs:
        raise GraphBreak(CONSTRUCTION, f"{self.describe()} with other than one argument")
    return MappingProxyValue(args[0])


@constructs(super)
def make_super(tr: Tracer, self: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """`super()` and `super(cls, obj)`."""
    if not args:
        args = tr.super_arguments()
    if len(args) != 2 or not args[0].is_constant():
        raise GraphBreak(CONSTRUCTION, "super() with one argument")
    return SuperValue(args[0].as_constant(), args[1])
