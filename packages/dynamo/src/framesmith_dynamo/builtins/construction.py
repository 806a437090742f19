"""Constructors of containers: list, tuple, dict, set and their like, and named tuples."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque

import torch

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak
from framesmith_dynamo.builtins.registry import between, handles
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.constants.constant import fold
from framesmith_dynamo.values.containers import (
    NamedTupleValue,
    SizeValue,
    SliceValue,
    TupleValue,
    construct_named,
    frozenset_of,
    index_of,
    is_namedtuple_class,
    new_deque,
    new_dict,
    new_list,
    new_set,
    pairs_of,
    set_of,
)
from framesmith_dynamo.values.objects.classes import ClassValue, constructs, constructs_family, makes


@constructs(list)
def _list(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, "list", args, kwargs, 0, 1)
    return new_list(tr, given[0].unpack(tr) if given else [])


@constructs(tuple)
def _tuple(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, "tuple", args, kwargs, 0, 1)
    if given and type(given[0]) is TupleValue:
        return given[0]
    return TupleValue(given[0].unpack(tr) if given else [])


@constructs(torch.Size)
def _size(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, "torch.Size", args, kwargs, 0, 1)
    items = given[0].unpack(tr) if given else []
    return SizeValue([tr.constant(index_of(tr, item)) for item in items])


@constructs(set)
def _set(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, "set", args, kwargs, 0, 1)
    return set_of(tr, given[0]) if given else new_set(tr)


@constructs(frozenset)
def _frozenset(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, "frozenset", args, kwargs, 0, 1)
    return frozenset_of(tr, given[0]) if given else tr.constant(frozenset())


@constructs(dict, OrderedDict)
def _dict(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    between(tr, cls.cls.__name__, args, {}, 0, 1)
    pairs = pairs_of(tr, args[0]) if args else []
    named = [(tr.constant(name), value) for name, value in kwargs.items()]
    return new_dict(tr, [*pairs, *named], cls.cls)


@constructs(defaultdict)
def _defaultdict(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    between(tr, "defaultdict", args, {}, 0, 2)
    factory = args[0] if args else tr.constant(None)
    pairs = pairs_of(tr, args[1]) if len(args) == 2 else []
    named = [(tr.constant(name), value) for name, value in kwargs.items()]
    return new_dict(tr, [*pairs, *named], defaultdict, factory=factory)


@handles(dict.fromkeys, OrderedDict.fromkeys)
def _fromkeys(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    keys, *rest = between(tr, "fromkeys", args, kwargs, 1, 2)
    filler = rest[0] if rest else tr.constant(None)
    return new_dict(tr, [(key, filler) for key in keys.unpack(tr)])


@constructs(deque)
def _deque(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(("iterable", "maxlen"), args, strict=False)) | dict(kwargs)
    if set(given) - {"iterable", "maxlen"} or len(args) > 2:
        tr.raise_(TypeError, "deque() takes an iterable and a maximum length")
    bound = given.get("maxlen")
    maxlen = None if bound is None or (bound.is_constant() and bound.as_constant() is None) else index_of(tr, bound)
    if maxlen is not None and maxlen < 0:
        tr.raise_(ValueError, "maxlen must be non-negative")
    return new_deque(tr, given["iterable"].unpack(tr) if "iterable" in given else [], maxlen)


@constructs(slice)
def _slice(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = list(between(tr, "slice", args, kwargs, 1, 3))
    nothing = tr.constant(None)
    if len(given) == 1:
        return SliceValue(nothing, given[0], nothing)
    return SliceValue(given[0], given[1], given[2] if len(given) == 3 else nothing)


@constructs(torch.device, torch.finfo, torch.iinfo)
def _folded(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    return fold(tr, cls.cls, args, kwargs)


@constructs_family(is_namedtuple_class)
def _named(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    return construct_named(tr, cls.cls, list(args), dict(kwargs))


@makes(tuple)
def _new_tuple(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`tuple.__new__(cls, items)`: what `_make` of a named tuple calls."""
    items = args[0].unpack(tr) if args else []
    if cls is tuple:
        return TupleValue(items)
    if not is_namedtuple_class(cls):
        raise GraphBreak(UNSUPPORTED_CALL, f"tuple.__new__({cls.__qualname__})")
    return NamedTupleValue(items, cls)
