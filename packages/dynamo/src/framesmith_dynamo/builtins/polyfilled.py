"""Which C callables are inlined as Python: the table of polyfills, and `functools.partial`."""

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
from typing import Any

from framesmith_dynamo.builtins.registry import POLYFILLS, between
from framesmith_dynamo.polyfills import functional, iteration, ordering
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.containers import new_dict
from framesmith_dynamo.values.functions.functions import MethodValue
from framesmith_dynamo.values.functions.partials import PartialValue
from framesmith_dynamo.values.objects.classes import ClassValue, Constructor, constructs

#: Types of itertools, functools and operator: calling one makes an iterator or a callable.
CLASSES: Mapping[type, Callable[..., Any]] = {
    **{
        getattr(itertools, name): getattr(iteration, name)
        for name in (
            "accumulate",
            "chain",
            "combinations",
            "combinations_with_replacement",
            "compress",
            "cycle",
            "dropwhile",
            "filterfalse",
            "groupby",
            "islice",
            "pairwise",
            "permutations",
            "product",
            "starmap",
            "takewhile",
            "zip_longest",
        )
    },
    operator.itemgetter: functional.itemgetter,
    operator.attrgetter: functional.attrgetter,
    operator.methodcaller: functional.methodcaller,
}
FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    itertools.chain.from_iterable: iteration.chain_from_iterable,
    itertools.tee: iteration.tee,
    functools.reduce: functional.reduce,
    functools.cmp_to_key: functional.cmp_to_key,
    operator.countOf: functional.count_of,
    operator.indexOf: functional.index_of,
    operator.concat: functional.concat,
    operator.iconcat: functional.iconcat,
    math.prod: functional.prod,
    collections._count_elements: ordering.count_elements,  # type: ignore[attr-defined]
    **{getattr(_heapq, name): getattr(ordering, name) for name in ("heappush", "heappop", "heapify", "heapreplace")},
    _heapq.heappushpop: ordering.heappushpop,
    _heapq._heapify_max: ordering.heapify_max,  # type: ignore[attr-defined]
    _heapq._heapreplace_max: ordering.heapreplace_max,  # type: ignore[attr-defined]
    _bisect.bisect_left: ordering.bisect_left,
    _bisect.bisect_right: ordering.bisect_right,
    _bisect.insort_left: ordering.insort_left,
    _bisect.insort_right: ordering.insort_right,
}


def _inlined(polyfill: Callable[..., Any]) -> Constructor:
    def construct(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
        return tr.call(tr.constant(polyfill), args, kwargs)

    return construct


for _cls, _polyfill in CLASSES.items():
    constructs(_cls)(_inlined(_polyfill))
if hasattr(itertools, "batched"):
    constructs(itertools.batched)(_inlined(iteration.batched))
POLYFILLS.update(FUNCTIONS)


@constructs(MethodType)
def _method(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    function, owner = between(tr, "method", args, kwargs, 2, 2)
    return MethodValue(function, owner)


@constructs(functools.partial)
def _partial(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        tr.raise_(TypeError, "type 'partial' takes at least one argument")
    inner, first, given = args[0], args[1:], dict(kwargs)
    if isinstance(inner, PartialValue):
        first, given = (*inner.args, *first), {**inner.keywords_now(tr), **given}
        inner = inner.function
    return PartialValue(inner, first, new_dict(tr, [(tr.constant(key), value) for key, value in given.items()]))
