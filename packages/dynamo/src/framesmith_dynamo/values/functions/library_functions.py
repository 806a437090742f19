"""Python functions of the standard library that the tracer answers itself: introspection, wrappers, caches."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.callables import find_handler, folding, handles
from framesmith_dynamo.values.constants.constant import plain, plain_arguments
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_dynamo.values.holders import at_home, is_trusted, value_at
from framesmith_dynamo.values.known import KnownValue
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type
from framesmith_guards import AttrSource

if TYPE_CHECKING:
    from framesmith_guards import Source

INTROSPECTION = register_break(
    "introspection",
    what="a function's signature or source is asked for while tracing",
    why="the function was made in the trace, or is not a plain Python function",
    hint="ask outside the compiled function",
)
CACHED_FUNCTION = register_break(
    "cached-function",
    what="a function with functools.cache or lru_cache is called",
    why="calling it fills a cache that other code shares",
    hint="call it outside the compiled function, or with constants only when it belongs to a library",
)


@handles(functools.update_wrapper)
def update_wrapper(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`functools.update_wrapper(wrapper, wrapped)`: attributes of any callable, given to a function."""
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
    """What is in the `__dict__` of a callable, if it has one."""
    if isinstance(value, FunctionValue):
        return value.own_attributes(tr)
    entries = _attribute(tr, value, "__dict__")
    pairs = [] if entries is None else entries.call_method(tr, "items", (), {}).unpack(tr)
    return [(name.as_constant(), entry) for name, entry in (pair.unpack(tr) for pair in pairs)]


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
    return args[1] if len(args) > 1 else kwargs["val"]


@handles(typing.assert_type)
def assert_type(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`typing.assert_type(value, type)`: the value."""
    return args[0]


#: Cached methods of libraries' loggers that send a message the first time they get it.
ONCE: Final = frozenset({"warning_once", "info_once"})


class CachedFunctionValue(KnownValue):
    """What `functools.lru_cache` makes. A library's own is folded for constants; other calls break."""

    __slots__ = ()

    def describe(self) -> str:
        return f"cached function {self.obj.__wrapped__.__qualname__}"

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "__wrapped__":
            source = AttrSource(self.source, name) if self.source is not None else None
            return value_at(tr, self.obj.__wrapped__, source)
        return super().getattr_(tr, name)

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        handler = find_handler(self.obj)
        if handler is not None:
            return handler(tr, args, kwargs)
        if self.obj.__name__ in ONCE and is_trusted(self.obj.__module__) and not kwargs:
            return self._later(tr, args)
        constant = all(arg.can_be_constant() for arg in (*args, *kwargs.values()))
        if not is_trusted(self.obj.__module__) or not constant:
            raise GraphBreak(CACHED_FUNCTION, self.describe())
        plain_args, plain_kwargs = plain_arguments(args, kwargs)
        try:
            return build(tr, self.obj(*plain_args, **plain_kwargs))
        except GraphBreak:
            raise
        except Exception as error:
            tr.raise_(type(error), *error.args)

    def _later(self, tr: Tracer, args: Args) -> Value:
        """A message to the log, given once and without a result: the compiled code sends it after its graph."""
        if not all(arg.can_be_constant() or arg.source is not None for arg in args):
            raise GraphBreak(CACHED_FUNCTION, self.describe())
        tr.journal.record_call(self.obj, *args)
        return tr.constant(None)


@wraps_type(functools._lru_cache_wrapper)
def wrap_cached(tr: Tracer, obj: Any, source: Source) -> Value:
    """A cached function met at a source."""
    tr.guard(source, "ID_MATCH", obj)
    return CachedFunctionValue(obj, source=source)


builds_type(functools._lru_cache_wrapper)(at_home)
