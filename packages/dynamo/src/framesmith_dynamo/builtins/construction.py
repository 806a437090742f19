"""Constructors of containers: list, tuple, dict, set and their like, and named tuples."""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict, defaultdict, deque

import torch

from framesmith_dynamo.breaks import UNSUPPORTED_CALL, GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.callables import between, folding, handles, named
from framesmith_dynamo.values.containers import (
    FrozenDictValue,
    NamedTupleValue,
    SizeValue,
    SliceValue,
    TupleValue,
    frozen_of,
    frozenset_of,
    has_named_items,
    index_of,
    is_namedtuple_class,
    new_deque,
    new_dict,
    new_list,
    new_set,
    set_of,
)
from framesmith_dynamo.values.containers.mappings import pairs_of
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.functions.binding import bind
from framesmith_dynamo.values.functions.functions import FunctionValue
from framesmith_dynamo.values.iteration.consuming import listed, tupled
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.classes import ClassValue, constructs_family
from framesmith_guards import AttrSource
from framesmith_guards.values.constants import FROZEN_DICTS


@handles(list)
def _list(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, list, args, kwargs, 0, 1)
    return new_list(tr, listed(tr, given[0]) if given else [])


@handles(tuple)
def _tuple(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, tuple, args, kwargs, 0, 1)
    if given and type(given[0]) is TupleValue:
        return given[0]
    return TupleValue(tupled(tr, given[0]) if given else [])


@handles(torch.Size)
def _size(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, torch.Size, args, kwargs, 0, 1)
    items = given[0].unpack(tr) if given else []
    return SizeValue([item if item.is_symbolic() else tr.constant(index_of(tr, item)) for item in items])


@handles(set)
def _set(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, set, args, kwargs, 0, 1)
    return set_of(tr, given[0]) if given else new_set(tr)


@handles(frozenset)
def _frozenset(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = between(tr, frozenset, args, kwargs, 0, 1)
    return frozenset_of(tr, given[0]) if given else tr.constant(frozenset())


def _dict(cls: type, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    between(tr, cls, args, {}, 0, 1)
    made = new_dict(tr, cls=cls)
    made.m_update(tr, *args, **kwargs)
    return made


for _cls in (dict, OrderedDict):
    handles(_cls)(functools.partial(_dict, _cls))


@handles(*FROZEN_DICTS)
def _frozen_dict(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    (cls,) = FROZEN_DICTS
    given = between(tr, cls, args, {}, 0, 1)
    if given and isinstance(given[0], FrozenDictValue) and not kwargs:
        return given[0]
    pairs = [] if not given else list(pairs_of(tr, given[0], cls))
    return frozen_of(tr, [*pairs, *((tr.constant(name), value) for name, value in kwargs.items())])


@handles(*(cls.fromkeys for cls in FROZEN_DICTS))
def _frozen_from_keys(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    keys, *rest = between(tr, FROZEN_DICTS[0].fromkeys, args, kwargs, 1, 2)
    return FrozenDictValue().m_fromkeys(tr, keys, *rest)


@handles(defaultdict)
def _defaultdict(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    factory = args[0] if args else tr.constant(None)
    if not factory.is_none() and type_lookup(factory.python_type(), "__call__") is None:
        refuse(tr, defaultdict, args, kwargs)
    between(tr, dict, args[1:], {}, 0, 1)
    made = new_dict(tr, cls=defaultdict, factory=factory)
    made.m_update(tr, *args[1:], **kwargs)
    return made


@handles(dict.fromkeys)
def _fromkeys(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    keys, *rest = between(tr, dict.fromkeys, args, kwargs, 1, 2)
    return new_dict(tr).m_fromkeys(tr, keys, *rest)


@handles(OrderedDict.fromkeys)
def _ordered_from_keys(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = named(tr, OrderedDict.fromkeys, args, kwargs, ("iterable", "value"), 1)
    return new_dict(tr, cls=OrderedDict).m_fromkeys(tr, *given.values())


@handles(defaultdict.fromkeys)
def _default_from_keys(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    keys, *rest = between(tr, defaultdict.fromkeys, args, kwargs, 1, 2)
    return new_dict(tr, cls=defaultdict, factory=tr.constant(None)).m_fromkeys(tr, keys, *rest)


@handles(deque)
def _deque(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = named(tr, deque, args, kwargs, ("iterable", "maxlen"), 0)
    bound = given.get("maxlen", tr.constant(None))
    maxlen = None
    if not bound.is_none():
        maxlen = index_of(tr, bound) if issubclass(bound.python_type(), int) else -1
    if maxlen is not None and not 0 <= maxlen <= sys.maxsize:
        refuse(tr, deque, (), {"maxlen": bound})
    return new_deque(tr, given["iterable"].unpack(tr) if "iterable" in given else [], maxlen)


@handles(slice)
def _slice(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = list(between(tr, slice, args, kwargs, 1, 3))
    nothing = tr.constant(None)
    if len(given) == 1:
        return SliceValue(nothing, given[0], nothing)
    return SliceValue(given[0], given[1], given[2] if len(given) == 3 else nothing)


for _folded in (torch.device, torch.finfo, torch.iinfo, bytes):
    handles(_folded)(folding(_folded))


@constructs_family(is_namedtuple_class)
def _named(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """The generated `__new__` binds the arguments; a default is the object that the class stores."""
    found = type_lookup(cls.cls, "__new__")
    initializer = type_lookup(cls.cls, "__init__")
    if found is None or initializer is None or initializer.owner is not object:
        raise GraphBreak(UNSUPPORTED_CALL, f"{cls.cls.__qualname__}(), which has its own __init__")
    function = getattr(found.raw, "__func__", found.raw)
    source = AttrSource(cls.source, "__new__") if cls.source is not None else None
    defaults = FunctionValue(function, source=source).default_makers(tr)
    bound = bind(tr, function.__code__, function.__qualname__, [cls, *args], kwargs, defaults)
    return NamedTupleValue([bound[name] for name in function.__code__.co_varnames[1 : len(bound)]], cls.cls)


@c_method("__new__", tuple)
def _new_tuple(tr: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`tuple.__new__(cls, items)`, which `_make` of a named tuple calls."""
    if cls is tuple:
        return _tuple(tr, args, kwargs)
    items = args[0].unpack(tr) if args else []
    if not has_named_items(cls):
        raise GraphBreak(UNSUPPORTED_CALL, f"tuple.__new__({cls.__qualname__})")
    return NamedTupleValue(items, cls)
