"""The C methods of `object`, `__new__` included, called on an object value."""

from __future__ import annotations

import functools
from typing import Any, Final

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.errors import refuse, refuse_positional
from framesmith_dynamo.values.lookup.entries import entry_value
from framesmith_dynamo.values.lookup.layouts import has_plain_layout
from framesmith_dynamo.values.lookup.static import type_lookup, user_method
from framesmith_dynamo.values.objects.classes import CONSTRUCTION
from framesmith_dynamo.values.objects.objects import family_of
from framesmith_guards.values.classes import class_dict

#: The names of abstract methods. When they are set, `type` records whether there are any,
ABSTRACT: Final = "__abstractmethods__"
#: in `Py_TPFLAGS_IS_ABSTRACT`.
IS_ABSTRACT: Final = 1 << 20


@c_method("__new__", object)
def _new(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    if (args or kwargs) and user_method(cls, "__init__") is None and user_method(cls, "__new__") is None:
        tr.raise_(TypeError, f"{cls.__name__}() takes no arguments")
    if ABSTRACT in class_dict(cls):
        entry_value(tr, cls, Found(cls, class_dict(cls)[ABSTRACT]), ABSTRACT, None).bool_(tr)
    if cls.__flags__ & IS_ABSTRACT:
        refuse_positional(tr, functools.partial(object.__new__, cls))
    if not has_plain_layout(cls) or type_lookup(cls, "__del__") is not None:
        raise GraphBreak(CONSTRUCTION, f"{cls.__module__}.{cls.__qualname__}")
    value = family_of(cls)(cls)
    value.track(tr)
    return value


def _taken(tr: Tracer, method: Any, self: Any, args: Args, kwargs: Kwargs, names: int = 0) -> Args:
    """Return a method's arguments, the first `names` of which are names; raises the program's TypeError otherwise."""
    count = 2 if method is object.__setattr__ else 1
    if kwargs or len(args) != count or not all(issubclass(arg.python_type(), str) for arg in args[:names]):
        refuse(tr, method, (self, *args), kwargs)
    return args


@c_method("__setattr__", object)
def _setattr(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    name, value = _taken(tr, object.__setattr__, self, args, kwargs, 1)
    self.generic_setattr(tr, name.as_constant(), value)
    return tr.constant(None)


@c_method("__getattribute__", object)
def _getattribute(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    (name,) = _taken(tr, object.__getattribute__, self, args, kwargs, 1)
    return self.generic_getattr(tr, name.as_constant())  # type: ignore[no-any-return]


@c_method("__delattr__", object)
def _delattr(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    (name,) = _taken(tr, object.__delattr__, self, args, kwargs, 1)
    self.generic_delattr(tr, name.as_constant())
    return tr.constant(None)


@c_method("__init__", object)
def _init(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    own, made = (type_lookup(self.python_type(), name) for name in ("__init__", "__new__"))
    overridden = own is not None and own.owner is not object
    if (args or kwargs) and (overridden or (made is not None and made.owner is object)):
        name = "object" if overridden else self.python_type().__name__
        tr.raise_(TypeError, f"{name}.__init__() takes exactly one argument (the instance to initialize)")
    return tr.constant(None)


@c_method("__init_subclass__", object)
def _init_subclass(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    return tr.constant(None)


@c_method("__eq__", object)
def _eq(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    (other,) = _taken(tr, object.__eq__, self, args, kwargs)
    return tr.constant(True if other is self else NotImplemented)
