"""Dicts that exist already: their keys are known from the start, their items wrapped when they are looked at."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer
from framesmith_dynamo.values.constants.constant import ConstantValue
from framesmith_dynamo.values.containers.dict import DictValue, Entry
from framesmith_dynamo.values.containers.items import LazyItem
from framesmith_dynamo.values.wrap_registry import wraps_type
from framesmith_guards import AttrSource, DictKeySource, DictValueSource, ItemSource, is_constant

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Value
    from framesmith_guards import Source


@wraps_type(dict, OrderedDict, defaultdict)
def wrap_dict(tr: Tracer, obj: dict[Any, Any], source: Source) -> Value:
    """A dict met at a source: its type is guarded; keys and items when they are looked at."""
    tr.guard(source, "TYPE_MATCH", type(obj))
    value = DictValue(type(obj), source=source)
    if isinstance(obj, defaultdict):
        value.factory = tr.wrap(obj.default_factory, AttrSource(source, "default_factory"))
    fill_from(tr, value, obj, source)
    tr.journal.track_existing(value, obj)
    return value


def fill_from(
    tr: Tracer, value: DictValue, obj: dict[Any, Any], source: Source, step: Callable[..., Source] = ItemSource
) -> None:
    """Enter an existing dict's items: by key if that is a constant, else by position under a guard on all keys.

    The order is the one in which it is iterated over; positions are those of its table, which `move_to_end` leaves.
    `step` is the way to an item: `StoredItemSource` past the class's own `__getitem__`.
    """
    rows = list(enumerate(dict.items(obj)))
    value.real_keys = tuple(dict.keys(obj))
    if isinstance(obj, OrderedDict) and (order := tuple(OrderedDict.keys(obj))) != value.real_keys:
        at = {id(key): place for place, key in enumerate(order)}
        rows.sort(key=lambda row: at[id(row[1][0])])
        value.real_keys = order
    for index, (key, item) in rows:
        if type(key) is str:  # the usual case, and there may be many
            value.entries[key] = Entry(ConstantValue(key), LazyItem(tr, item, source, key, step))
            value.found.add(key)
            continue
        if is_constant(key):
            key_value = tr.constant(key)
            entry = Entry(key_value, LazyItem(tr, item, source, key, step))
        else:
            value.fix_keys(tr)
            key_value = tr.wrap(key, DictKeySource(source, index))
            entry = Entry(key_value, LazyItem(tr, item, source, index, DictValueSource))
        hashed = operations.hash_key(tr, key_value)
        value.entries[hashed] = entry
        value.found.add(hashed)
