"""`copy.deepcopy` and `copy.copy` of objects, implemented on values: the real module looks objects up by `id()`."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.attribute_dicts.instance_dict import InstanceDictValue
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.constants.constant import ConstantValue
from framesmith_dynamo.values.containers import (
    DictValue,
    FoundList,
    FrozenSetValue,
    ListValue,
    TupleValue,
    frozenset_of,
    new_dict,
    new_list,
)
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.attributes import lookup_or_none
from framesmith_dynamo.values.objects.objects import ObjectValue

COPY = register_break(
    "deepcopy",
    what="an object that the tracer cannot copy is deep-copied",
    why="its class has its own rule for copies, or hides data in C",
    hint="copy it outside the compiled function",
)
_HOOKS = (
    "__deepcopy__",
    "__copy__",
    "__getstate__",
    "__setstate__",
    "__reduce__",
    "__reduce_ex__",
    "__getnewargs__",
    "__getnewargs_ex__",
)

Memo = dict[int, Value]


@handles(copy.deepcopy)
def deepcopy(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`copy.deepcopy(x)` without a memo of the caller's."""
    if len(args) != 1 or kwargs:
        raise GraphBreak(COPY, "with a memo")
    return deep(tr, args[0], {})


@handles(copy.copy)
def shallow(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`copy.copy(x)`."""
    if len(args) != 1 or kwargs:
        raise GraphBreak(COPY, "with keywords")
    value = args[0]
    if isinstance(value, InstanceDictValue):
        return value.snapshot(tr)
    if value.can_be_constant() or isinstance(value, TupleValue):
        return value
    if type(value) in (ListValue, FoundList, DictValue):
        return value.call_method(tr, "copy", (), {})
    copier = lookup_or_none(tr, value, "__copy__") if isinstance(value, ObjectValue) else None
    if copier is not None:
        return tr.call(copier, (), {})
    if type(value) is ObjectValue and _copies_plainly(value.cls):
        return _copy_object(tr, value, lambda own: own)
    raise GraphBreak(COPY, value.describe())


def deep(tr: Tracer, value: Value, memo: Memo) -> Value:
    """Return a deep copy; `memo` maps the id of each value to its copy, so that shared objects stay shared."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, ConstantValue):
        return value
    if type(value) is FrozenSetValue and value.can_be_constant():
        return memo.setdefault(id(value), frozenset_of(tr, new_list(tr, value.unpack(tr))))
    if value.can_be_constant() and type(value) is not TupleValue:
        value.as_constant()  # that all in it stays constant is guarded
        return value
    if isinstance(value, InstanceDictValue):
        value = value.snapshot(tr)
    if type(value) is TupleValue:
        items = value.unpack(tr)
        copies = [deep(tr, item, memo) for item in items]
        return TupleValue(copies) if any(own is not new for own, new in zip(items, copies, strict=True)) else value
    if type(value) in (ListValue, FoundList):
        copied = memo[id(value)] = new_list(tr, [])
        for item in value.unpack(tr):
            copied.call_method(tr, "append", (deep(tr, item, memo),), {})
        return copied
    if type(value) is DictValue and value.python_type() in (dict, OrderedDict):
        fresh = memo[id(value)] = new_dict(tr, (), value.python_type())
        for key in value.unpack(tr):
            fresh.setitem(tr, deep(tr, key, memo), deep(tr, value.getitem(tr, key), memo))
        return fresh
    if type(value) is ObjectValue and _copies_plainly(value.cls):
        return _copy_object(tr, value, lambda own: deep(tr, own, memo), memo)
    raise GraphBreak(COPY, value.describe())


def _copies_plainly(cls: type) -> bool:
    for name in _HOOKS:
        found = type_lookup(cls, name)
        if found is not None and found.owner is not object:
            return False
    return type_lookup(cls, "__dict__") is not None and not hasattr(cls, "__slots__")


def _copy_object(
    tr: Tracer, value: ObjectValue, of_attribute: Callable[[Value], Value], memo: Memo | None = None
) -> Value:
    copied = ObjectValue(value.cls)
    copied.track(tr)
    if memo is not None:
        memo[id(value)] = copied
    for name in InstanceDictValue(tr, value).names(tr):
        own = value.own_attribute(tr, name)
        assert own is not None
        copied.store_own(tr, name, of_attribute(own))
    return copied
