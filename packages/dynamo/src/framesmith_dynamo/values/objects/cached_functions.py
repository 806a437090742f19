"""Functions with `functools.lru_cache`: the result of a call, and its effect on the cache, as in CPython.

Note [Cached calls]: compiled code repeats each call, in order with the journal's changes, so that the cache counts,
keeps and drops the same entries. The result is known before. If it is in the cache when the function is compiled, it is
an object found at a source, the cache. Otherwise the body is interpreted, which may change nothing and compute nothing
in the graph; the guard is that later the cache holds no entry of the call (the body computes it) or an equal object
(computed by the same body), never one computed from other state. The call in compiled code makes that object, not the
journal: the trace may read it; where it is needed afterwards the trace restarts and the call ends the graph.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, CacheUse, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.callables import find_handler
from framesmith_dynamo.values.constants.constant import plain_arguments
from framesmith_dynamo.values.constants.symbolic import SymbolicNumber
from framesmith_dynamo.values.containers import DictValue, ListValue, SizeValue, TupleValue
from framesmith_dynamo.values.known import KnownValue
from framesmith_dynamo.values.lookup.entries import value_at, value_by_name
from framesmith_dynamo.values.lookup.libraries import is_trusted
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.objects import ObjectValue
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type
from framesmith_guards import AttrSource, CachedResultSource, GuardError, is_constant
from framesmith_guards.sources.caches import (
    ABSENT,
    CACHE,
    CachedCall,
    CallKey,
    Computed,
    Entries,
    Instance,
    Items,
    cached_entry,
    call_key,
    sources_of,
    why_unknown,
)
from framesmith_guards.values.refs import Ref
from framesmith_sideeffects import DELETED, MutationRefused

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

CACHED_FUNCTION = register_break(
    "cached-function",
    what="a function with functools.cache or lru_cache is called",
    why="the call fills the cache with an object that only the call itself can make, or has a symbolic key",
    hint="call it with constants and plain objects; the result is read from the cache once it is there",
)

STALE: Final = "the cached result differs from that of a new call"
"""The reason not to trace a call whose cached result was computed from other state."""

#: Cached methods of libraries' loggers that send a message the first time they receive it.
ONCE: Final = frozenset({"warning_once", "info_once"})


class CachedFunctionValue(KnownValue):
    """The result of `functools.lru_cache`. A library's own is folded for constants."""

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
        if not is_trusted(self.obj.__module__):
            return _Call(tr, self, args, kwargs).value()
        if self.obj.__name__ in ONCE and not kwargs:
            return self._later(tr, args)
        if not all(arg.can_be_constant() for arg in (*args, *kwargs.values())):
            raise GraphBreak(CACHED_FUNCTION, self.describe())
        plain_args, plain_kwargs = plain_arguments(args, kwargs)
        try:
            return build(tr, self.obj(*plain_args, **plain_kwargs))
        except GraphBreak:
            raise
        except Exception as error:
            tr.raise_(type(error), *error.args)

    def _later(self, tr: Tracer, args: Args) -> Value:
        """Send a message to the log, once and without a result: compiled code sends it after its graph."""
        if not all(arg.can_be_constant() or arg.source is not None for arg in args):
            raise GraphBreak(CACHED_FUNCTION, self.describe())
        tr.journal.record_call(self.obj, *args)
        return tr.constant(None)


class _Call:
    """One call of a user's cached function; see Note [Cached calls]."""

    def __init__(self, tr: Tracer, cached: CachedFunctionValue, args: Args, kwargs: Kwargs) -> None:
        self.tr, self.cached, self.args, self.kwargs = tr, cached, args, kwargs
        self.function = cached.obj
        self.use = tr.facts.caches.setdefault(id(self.function), CacheUse())

    def value(self) -> Value:
        """Return the result of the call; its repetition is recorded."""
        source = self.cached.source
        why = why_unknown(self.function)
        if why is not None or source is None:
            raise self._broken(why or "it is found nowhere")
        key = CallKey(tuple(map(self._part, self.args)), tuple((n, self._part(v)) for n, v in self.kwargs.items()))
        filed = call_key(self.function, key.args, key.kwargs)
        value = self.use.results.get(filed)
        if value is None:
            value = self._first(key, source)
            self._remember(filed, value)
        self._call_again(call_again)
        return value

    def _call_again(self, how: Callable[..., None]) -> None:
        """Repeat the call in compiled code, unless another such call does."""
        if self.tr.facts.body.cached_calls:
            return
        results = self.tr.facts.cached_results
        given = (*self.args, *self.kwargs.values())
        calls = [results[id(arg)][1] if id(arg) in results else None for arg in given]
        if any(call is not None and call.sources for call in calls):
            raise self._broken("an argument was made by a call that depends on sizes")
        args = [arg if call is None else HeldResult(call) for arg, call in zip(given, calls, strict=True)]
        self.tr.journal.record_call(how, self.cached, self.tr.constant(tuple(self.kwargs)), *args)

    def _part(self, value: Value) -> Any:
        """Return the cache's key of an argument: a constant, a handle of an object, or the result of another call."""
        symbol = self._symbolic(value)
        if symbol is not None:
            return symbol
        key = operations.hash_key(self.tr, value)
        made = self.tr.facts.cached_results.get(id(value))
        if made is not None:
            return made[1]
        if value.can_be_constant():
            found = value.as_constant()
            if is_constant(found):
                return found
        elif key is value and isinstance(value, ObjectValue) and not value.is_new and value.source is not None:
            found = value.obj
            self.tr.guard(value.source, "ID_MATCH", found)
        else:
            raise self._broken(f"{value.describe()} as an argument")
        if type_lookup(type(found), "__eq__") != type_lookup(object, "__eq__"):
            raise self._broken(f"{value.describe()} as an argument")
        try:
            return Ref(found)
        except GuardError as error:
            raise self._broken(str(error)) from None

    def _symbolic(self, value: Value) -> Any:
        """Return an int that is a symbol, or a tuple with such, computed at each call; None of other values."""
        if type(value) in (TupleValue, SizeValue) and any(self._finds_symbols(item) for item in value.unpack(self.tr)):
            return Items(value.python_type(), tuple(map(self._part, value.unpack(self.tr))))
        if not isinstance(value, SymbolicNumber) or value.is_constant() or value.python_type() is not int:
            return None
        expression = self.tr.expression(value.number)
        return None if expression is None else Computed(str(expression), expression.sources, expression.value)

    def _finds_symbols(self, value: Value) -> bool:
        held = value.unpack(self.tr) if isinstance(value, TupleValue) else ()
        return value.is_symbolic() or any(map(self._finds_symbols, held))

    def _broken(self, why: str, *conditions: tuple[Source, str, object]) -> GraphBreak:
        broken = GraphBreak(CACHED_FUNCTION, f"{self.cached.describe()}: {why}")
        broken.conditions = conditions
        return broken

    def _remember(self, filed: Any, value: Value) -> None:
        """Record that the cache holds the result until `maxsize` other calls have been made."""
        size = self.function.cache_parameters()["maxsize"]
        if size == 0:
            return
        if size is not None and len(self.use.results) >= size:
            raise self._broken("more calls than it keeps results of")
        self.use.results[filed] = value

    def _first(self, key: CallKey, source: Source) -> Value:
        """The first call by a key in this trace."""
        if sources_of(*key.args, *(part for _, part in key.kwargs)):
            return self._interpreted(key, source)
        try:
            found = cached_entry(self.function, key.of(self.function))
        except LookupError:
            found = ABSENT
        unbounded = self.function.cache_parameters()["maxsize"] is None
        if found is not ABSENT and (unbounded or not self.use.missed):
            return self.tr.wrap(found, CachedResultSource(source, key))
        self.use.missed = True
        return self._interpreted(key, source)

    def _interpreted(self, key: CallKey, source: Source) -> Value:
        """Return the result of the function's body, for a call without an entry in the cache, or with an equal one.

        Where the body ends the graph, the entry is for a cache without the call, so that another entry reads the result
        later. By a symbolic key, the cache cannot be read: that entry serves all calls.
        """
        function = Ref(self.function)
        nothing = CachedCall(function, key, ABSENT)
        nothing_held = (source, "CACHED_CALL", nothing)
        conditions = (nothing_held,) if not nothing.sources and self._now(nothing) else ()
        if id(self.function) in self.tr.facts.called_for_real:
            raise self._broken("the object that it makes is needed afterwards", *conditions)
        try:
            value = self._run_body()
            call = CachedCall(function, key, self._snapshot(value))
        except MutationRefused as error:
            raise self._broken(str(error), *conditions) from error
        except TracedRaise as error:
            if not self._now(nothing):
                raise self._broken(STALE) from error
            self.tr.guard(*nothing_held)
            self._call_again(call_that_raises)
            raise
        except GraphBreak as error:
            raise self._broken(str(error), *conditions) from error
        if not self._now(call):
            raise self._broken(STALE)
        self.tr.guard(source, "CACHED_CALL", call)
        self._lend(value, call)
        return value

    def _now(self, call: CachedCall) -> bool:
        """Check that the cache is as expected for the traced call."""
        return call.holds(self.function, *map(self.tr.hint_at, call.sources))

    def _run_body(self) -> Value:
        body, before = self.tr.facts.body, self.tr.operations
        body.cached_calls += 1
        try:
            with self.tr.journal.nested(self.cached.describe()):
                value = self.tr.call(self.cached.getattr_(self.tr, "__wrapped__"), self.args, self.kwargs)
        finally:
            body.cached_calls -= 1
        if self.tr.operations != before:
            raise GraphBreak(CACHED_FUNCTION, "it computes with tensors")
        return value

    def _snapshot(self, value: Value) -> Any:
        """Return the result in the form that a guard compares."""
        if type(value) is ObjectValue and value.is_new:
            pairs = self.tr.journal.pending_attrs(value)
            slots = [type_lookup(value.cls, name) for name in pairs]
            if any(found is not None and isinstance(found.raw, MemberDescriptorType) for found in slots):
                raise GraphBreak(CACHED_FUNCTION, f"it gives {value.describe()}, which has slots")
            held = [(name, self._snapshot(item)) for name, item in pairs.items() if item is not DELETED]
            return Instance(Ref(value.cls), tuple(held))
        symbol = self._symbolic(value)
        if isinstance(symbol, Computed):
            return symbol
        if type(value) in (TupleValue, ListValue):
            return Items(value.python_type(), tuple(map(self._snapshot, value.unpack(self.tr))))
        if type(value) is DictValue:
            found = [pair.unpack(self.tr) for pair in value.call_method(self.tr, "items", (), {}).unpack(self.tr)]
            return Entries(tuple((self._constant(key), self._snapshot(item)) for key, item in found))
        return self._constant(value)

    def _constant(self, value: Value) -> Any:
        found = value.as_plain()
        if not is_constant(found):
            raise GraphBreak(CACHED_FUNCTION, f"it gives {value.describe()}")
        return found

    def _lend(self, value: Value, call: CachedCall) -> None:
        """Mark the object as made by the call when the compiled code runs; the trace may only read it."""
        lent = False
        waiting: list[Any] = [value]
        while waiting:
            part = waiting.pop()
            waiting.extend(self.tr.journal.held_values(part))
            if part.is_new:
                self.tr.journal.lend(part, self.cached)
                lent = True
        if lent:
            self.tr.facts.cached_results[id(value)] = (value, call)


class HeldResult(Value):
    """The result of an earlier call, as an argument of a call in compiled code: the cache has it by then."""

    python_types = (CachedCall,)
    __slots__ = ("call_held",)

    def __init__(self, call: CachedCall) -> None:
        super().__init__()
        self.call_held = call

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.load_const(self.call_held)


def call_again(function: Callable[..., Any], names: tuple[str, ...], *args: Any) -> None:
    """Called by compiled code: call a cached function for its effect on the cache."""
    if CachedCall in map(type, args):
        args = tuple(arg.held() if type(arg) is CachedCall else arg for arg in args)
    if not names:
        function(*args)
        return
    first = len(args) - len(names)
    function(*args[:first], **dict(zip(names, args[first:], strict=True)))


def call_that_raises(function: Callable[..., Any], names: tuple[str, ...], *args: Any) -> None:
    """Called by compiled code: make a call that raises, as the trace knows; the cache counts it."""
    with contextlib.suppress(Exception):
        call_again(function, names, *args)


@wraps_type(functools._lru_cache_wrapper)
def wrap_cached(tr: Tracer, obj: Any, source: Source) -> Value:
    tr.guard(source, "ID_MATCH", obj)
    return CachedFunctionValue(obj, source=source)


builds_type(CACHE)(value_by_name)
