"""What the C methods of `object`, `__new__` among them, mean for an object value."""

from __future__ import annotations

import functools
from typing import Any, Final

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Args, Found, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.errors import refused
from framesmith_dynamo.values.holders import class_dict, entry_value, type_lookup, user_method
from framesmith_dynamo.values.objects.classes import CONSTRUCTION
from framesmith_dynamo.values.objects.layouts import has_plain_layout
from framesmith_dynamo.values.objects.objects import family_of

#: The names that a class has to define yet. When they are set, `type` notes whether there are any.
ABSTRACT: Final = "__abstractmethods__"
#: `Py_TPFLAGS_IS_ABSTRACT`: that note.
IS_ABSTRACT: Final = 1 << 20


@c_method("__new__", object)
def _new(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    if (args or kwargs) and user_method(cls, "__init__") is None and user_method(cls, "__new__") is None:
        tr.raise_(TypeError, f"{cls.__name__}() takes no arguments")
    if ABSTRACT in class_dict(cls):
        entry_value(tr, cls, Found(cls, class_dict(cls)[ABSTRACT]), ABSTRACT, None).bool_(tr)
    if cls.__flags__ & IS_ABSTRACT:
        refused(tr, functools.partial(object.__new__, cls))
    if not has_plain_layout(cls) or type_lookup(cls, "__del__") is not None:
        raise GraphBreak(CONSTRUCTION, f"{cls.__module__}.{cls.__qualname__}")
    value = family_of(cls)(cls)
    value.track(tr)
    return value


@c_method("__setattr__", object)
def _setattr(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    name, value = args
    self.generic_setattr(tr, name.as_constant(), value)
    return tr.constant(None)


@c_method("__getattribute__", object)
def _getattribute(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    return self.generic_getattr(tr, args[0].as_constant())  # type: ignore[no-any-return]


@c_method("__delattr__", object)
def _delattr(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    self.generic_delattr(tr, args[0].as_constant())
    return tr.constant(None)


@c_method("__init__", object)
def _init(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs:
        tr.raise_(
            TypeError,
            f"{self.python_type().__name__}.__init__() takes exactly one argument (the instance to initialize)",
        )
    return tr.constant(None)


@c_method("__init_subclass__", object)
def _init_subclass(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    return tr.constant(None)


@c_method("__eq__", object)
def _eq(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    return tr.constant(True if args[0] is self else NotImplemented)
