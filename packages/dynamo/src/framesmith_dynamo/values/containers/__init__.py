"""Python's containers, one module per family. Importing loads every table."""

from framesmith_dynamo.values.containers.deque import new_deque
from framesmith_dynamo.values.containers.dict import DictValue, new_dict
from framesmith_dynamo.values.containers.frozen_dict import FrozenDictValue, frozen_of
from framesmith_dynamo.values.containers.list import FoundList, ListValue, new_list, sorted_items
from framesmith_dynamo.values.containers.mappings import MappingValue
from framesmith_dynamo.values.containers.mutable_sets import frozenset_of, new_set, set_of
from framesmith_dynamo.values.containers.named_tuples import NamedTupleValue, has_named_items, is_namedtuple_class
from framesmith_dynamo.values.containers.sequence import index_of
from framesmith_dynamo.values.containers.sets import FrozenSetValue
from framesmith_dynamo.values.containers.slices import SliceValue
from framesmith_dynamo.values.containers.tuple import SizeValue, TupleValue

__all__ = [
    "DictValue",
    "FoundList",
    "FrozenDictValue",
    "FrozenSetValue",
    "ListValue",
    "MappingValue",
    "NamedTupleValue",
    "SizeValue",
    "SliceValue",
    "TupleValue",
    "frozen_of",
    "frozenset_of",
    "has_named_items",
    "index_of",
    "is_namedtuple_class",
    "new_deque",
    "new_dict",
    "new_list",
    "new_set",
    "set_of",
    "sorted_items",
]
