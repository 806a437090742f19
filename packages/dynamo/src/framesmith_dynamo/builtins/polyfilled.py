"""C callables inlined as Python code: the table of polyfills, and `functools.partial`."""

from __future__ import annotations

import _bisect
import _heapq
import collections
import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.polyfills import functional, iteration, ordering
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import Handler, between, handles, inlining
from framesmith_dynamo.values.containers import new_dict
from framesmith_dynamo.values.errors import refuse, takes
from framesmith_dynamo.values.functions.functions import MethodValue
from framesmith_dynamo.values.functions.partials import PartialValue, filled, is_placeholder
from framesmith_dynamo.values.lookup.static import type_lookup

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen

#: Types of itertools: a call makes an iterator.
CLASSES: dict[Any, Callable[..., Any]] = {
    cls: getattr(iteration, name)
    for name, cls in vars(itertools).items()
    if isinstance(cls, type) and not name.startswith("_") and hasattr(iteration, name)
}
#: Callables that return callables of a type of their own.
MAKERS: Mapping[Any, Callable[..., Any]] = {
    operator.itemgetter: functional.itemgetter,
    operator.attrgetter: functional.attrgetter,
    operator.methodcaller: functional.methodcaller,
    functools.cmp_to_key: functional.cmp_to_key,
}
#: Functions of heaps; those of max-heaps are private on older versions.
HEAPS: dict[Any, Callable[..., Any]] = {
    function: getattr(ordering, name.removeprefix("_"))
    for name, function in vars(_heapq).items()
    if "heap" in name and hasattr(ordering, name.removeprefix("_"))
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    itertools.chain.from_iterable: iteration.chain_from_iterable,
    itertools.tee: iteration.tee,
    functools.reduce: functional.reduce,
    operator.countOf: functional.count_of,
    operator.indexOf: functional.index_of,
    math.prod: functional.prod,
    collections._count_elements: ordering.count_elements,  # type: ignore[attr-defined]
    **HEAPS,
    _bisect.bisect_left: ordering.bisect_left,
    _bisect.bisect_right: ordering.bisect_right,
    _bisect.insort_left: ordering.insort_left,
    _bisect.insort_right: ordering.insort_right,
}


#: Functions with error messages of their own for an argument: its position, and methods of which it has one.
ITERABLE = ("__iter__", "__getitem__")
REQUIRED: Mapping[Any, tuple[int, *tuple[str, ...]]] = {
    functools.reduce: (1, *ITERABLE),
    operator.countOf: (0, *ITERABLE),
    operator.indexOf: (0, *ITERABLE),
    **dict.fromkeys(HEAPS, (0, "sort")),
}

for _function, _polyfill in (CLASSES | FUNCTIONS).items():
    handles(_function)(inlining(_function, _polyfill, *REQUIRED.get(_function, ())))


class MadeCallable(Value):
    """The result of `maker(*args, **kwargs)`, one of `MAKERS`: `meaning` is called in its place."""

    exact_operators = True
    __slots__ = ("args", "kwargs", "maker", "meaning")

    def __init__(self, maker: Any, args: Args, kwargs: Kwargs, meaning: Value) -> None:
        super().__init__()
        self.maker = maker
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.meaning = meaning

    def python_type(self) -> type:
        return self.maker if isinstance(self.maker, type) else type(self.maker(None))

    def hash_key(self, tr: Tracer) -> object:
        return self

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if kwargs or len(args) != 1:
            refuse(tr, self.maker("real"), args, kwargs)
        return tr.call(self.meaning, args, kwargs)

    def referents(self) -> tuple[Value, ...]:
        return (*self.args, *self.kwargs.values())

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_function(self.maker)
        for value in self.referents():
            codegen(value)
        codegen.call(len(self.args) + len(self.kwargs), tuple(self.kwargs))


def _makes_callables(maker: Any, polyfill: Callable[..., Any]) -> Handler:
    def make(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        names = [arg.python_type() for arg in (args if maker is operator.attrgetter else args[:1])]
        texts = maker in (operator.attrgetter, operator.methodcaller)
        if not takes(polyfill, *args, **kwargs) or (texts and not all(issubclass(cls, str) for cls in names)):
            refuse(tr, maker, args, kwargs)
        made = MadeCallable(maker, args, kwargs, tr.call(tr.constant(polyfill), args, kwargs))
        tr.journal.track_new(made)
        return made

    return make


for _maker, _polyfill in MAKERS.items():
    handles(_maker)(_makes_callables(_maker, _polyfill))


@handles(MethodType)
def _method(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    function, owner = between(tr, MethodType, args, kwargs, 2, 2)
    if owner.is_none() or type_lookup(function.python_type(), "__call__") is None:
        refuse(tr, MethodType, args, kwargs)
    return MethodValue(function, owner)


@handles(functools.partial)
def _partial(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not args or type_lookup(args[0].python_type(), "__call__") is None:
        refuse(tr, functools.partial, args, kwargs)
    inner, first, given = args[0], list(args[1:]), dict(kwargs)
    if (first and is_placeholder(first[-1])) or any(map(is_placeholder, given.values())):
        refuse(tr, functools.partial, args, kwargs)
    if isinstance(inner, PartialValue):
        first, given = filled(inner.args, first), {**inner.keywords_now(tr), **given}
        inner = inner.function
    return PartialValue(inner, first, new_dict(tr, [(tr.constant(key), value) for key, value in given.items()]))
