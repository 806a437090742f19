"""Python's containers as values, one module per family."""

from framesmith_dynamo.values.containers.base import ContainerValue, MutableContainer
from framesmith_dynamo.values.containers.deque import DequeValue, new_deque
from framesmith_dynamo.values.containers.dict import DictValue, Entry, new_dict
from framesmith_dynamo.values.containers.dict_found import fill_from
from framesmith_dynamo.values.containers.dict_views import DictView, KeysView
from framesmith_dynamo.values.containers.items import LazyItem, resolved
from framesmith_dynamo.values.containers.list import FoundList, ListValue, new_list, sorted_items
from framesmith_dynamo.values.containers.named import (
    NamedTupleValue,
    is_namedtuple_class,
)
from framesmith_dynamo.values.containers.sequence import SequenceValue, index_of, subscript
from framesmith_dynamo.values.containers.sets import (
    FrozenSetValue,
    SetLike,
    SetValue,
    frozenset_of,
    new_set,
    set_of,
)
from framesmith_dynamo.values.containers.slices import RangeValue, SliceValue
from framesmith_dynamo.values.containers.tuple import SizeValue, TupleValue

__all__ = [
    "ContainerValue",
    "DequeValue",
    "DictValue",
    "DictView",
    "Entry",
    "FoundList",
    "FrozenSetValue",
    "KeysView",
    "LazyItem",
    "ListValue",
    "MutableContainer",
    "NamedTupleValue",
    "RangeValue",
    "SequenceValue",
    "SetLike",
    "SetValue",
    "SizeValue",
    "SliceValue",
    "TupleValue",
    "fill_from",
    "frozenset_of",
    "index_of",
    "is_namedtuple_class",
    "new_deque",
    "new_dict",
    "new_list",
    "new_set",
    "resolved",
    "set_of",
    "sorted_items",
    "subscript",
]
