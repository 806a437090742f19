"""Python functions of the standard library with handlers: introspection, wrappers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.callables import Handler, between, folding, handles, named
from framesmith_dynamo.values.constants.constant import plain
from framesmith_dynamo.values.constants.folded import fold_strings
from framesmith_dynamo.values.functions.functions import FunctionValue, MethodValue
from framesmith_dynamo.values.lookup.static import type_lookup

INTROSPECTION = register_break(
    "introspection",
    what="a function's signature or source is read while tracing",
    why="the function was made in the trace, or is not a plain Python function",
    hint="read it outside the compiled function",
)


@handles(functools.update_wrapper)
def update_wrapper(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`functools.update_wrapper(wrapper, wrapped)`: copies attributes of any callable to a function."""
    given = dict(zip(("wrapper", "wrapped", "assigned", "updated"), args, strict=False)) | dict(kwargs)
    wrapper, wrapped = given["wrapper"], given["wrapped"]
    assigned = plain(given["assigned"]) if "assigned" in given else functools.WRAPPER_ASSIGNMENTS
    updated = plain(given["updated"]) if "updated" in given else functools.WRAPPER_UPDATES
    if not isinstance(wrapper, FunctionValue) or updated != functools.WRAPPER_UPDATES:
        raise GraphBreak(INTROSPECTION, wrapper.describe())
    for name in assigned:
        value = _attribute(tr, wrapped, name)
        if value is not None:
            wrapper.setattr_(tr, name, value)
    for name, value in _own_attributes(tr, wrapped):
        wrapper.setattr_(tr, name, value)
    wrapper.setattr_(tr, "__wrapped__", wrapped)
    return wrapper


def _attribute(tr: Tracer, value: Value, name: str) -> Value | None:
    try:
        return value.getattr_(tr, name)
    except TracedRaise as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
        return None


def _own_attributes(tr: Tracer, value: Value) -> list[tuple[str, Value]]:
    """Return the contents of the `__dict__` of a callable, if it has one."""
    if isinstance(value, MethodValue):  # whose attributes are its function's
        return _own_attributes(tr, value.function)
    if isinstance(value, FunctionValue):
        return value.own_attributes(tr)
    entries = _attribute(tr, value, "__dict__")
    pairs = [] if entries is None else entries.call_method(tr, "items", (), {}).unpack(tr)
    return [(name.as_constant(), entry) for name, entry in (pair.unpack(tr) for pair in pairs)]


def _lookup_special(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`contextlib._lookup_special(obj, name, default)`: a method that the class defines, bound; or the default."""
    owner, name, default = between(tr, _LOOKUP, args, kwargs, 3, 3)
    found = type_lookup(owner.python_type(), name.as_constant())
    if found is not None and not isinstance(found.raw, FunctionType):
        raise GraphBreak(UNSUPPORTED_CALL, f"contextlib._lookup_special of {owner.describe()}")
    method = _attribute(tr, tr.call(tr.constant(type), (owner,), {}), name.as_constant())
    return default if method is None else MethodValue(method, owner)


_LOOKUP: Final[Any] = getattr(contextlib, "_lookup_special", None)
if _LOOKUP is not None:
    handles(_LOOKUP)(_lookup_special)

#: Pure Python functions of the standard library that are called while tracing when all their arguments are constants.
FOLDED: Final = (
    typing.get_origin,
    typing.get_args,
    inspect.isclass,
    inspect.isfunction,
    inspect.ismethod,
    inspect.isbuiltin,
    inspect.isroutine,
    inspect.cleandoc,
    re.escape,
)


for _function in FOLDED:
    handles(_function)(folding(_function))


@handles(typing.cast)
def cast(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`typing.cast(type, value)`: the value."""
    return named(tr, typing.cast, args, kwargs, ("typ", "val"), 2)["val"]


@handles(typing.assert_type)
def assert_type(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`typing.assert_type(value, type)`: the value."""
    return between(tr, typing.assert_type, args, kwargs, 2, 2)[0]


def _folding_strings(function: Callable[..., Any]) -> Handler:
    return lambda tr, args, kwargs: fold_strings(tr, function, args, kwargs)


#: Functions of `re` without effects other than a cache of patterns.
STRING_FUNCTIONS: Final = (re.compile, re.match, re.fullmatch, re.search, re.sub, re.subn, re.split, re.findall)
for _of_texts in STRING_FUNCTIONS:
    handles(_of_texts)(_folding_strings(_of_texts))


@handles(os.fspath)
def _fspath(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`os.fspath(path)`: a string is returned unchanged."""
    if kwargs or len(args) != 1 or not issubclass(args[0].python_type(), str | bytes):
        raise GraphBreak(UNSUPPORTED_CALL, "os.fspath of a path")
    return args[0]
