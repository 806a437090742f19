"""The meaning of each guard kind, as a plain predicate of a value and an expectation: the reference.

None of them runs user code on values that passed the type guard before them; any exception means a miss.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from operator import length_hint
from types import CodeType, MappingProxyType
from typing import Any, Final

from framesmith_guards.sources import mapping_behind
from framesmith_guards.torch_adapter import unstable
from framesmith_guards.values.classes import ClassLayout
from framesmith_guards.values.constants import FROZEN_DICTS, dict_kind, same_constant
from framesmith_guards.values.refs import Ref

TUPLE_ITERATORS: Final[tuple[type, ...]] = (type(iter(())), type(iter([])), type(reversed([])))
RANGE_ITERATOR: Final = type(iter(range(0)))


def same_ref(value: object, expected: Ref) -> bool:
    return expected.refers_to(value)


def has_type(value: object, expected: Ref) -> bool:
    return expected.refers_to(type(value))


def length_of(value: Any) -> int:
    """Return the number of items of a list, tuple, dict or frozendict past its class's `__len__`; `len` of others."""
    kinds = (list, tuple, dict, *FROZEN_DICTS)
    kind: Any = next((kind for kind in kinds if issubclass(type(value), kind)), None)
    return len(value) if kind is None else kind.__len__(value)


def has_length(value: Any, expected: int) -> bool:
    return length_of(value) == expected


def keys_of(value: Any) -> tuple[object, ...]:
    """Return the keys of a dict or frozendict, or of a mappingproxy's, in order; TypeError for anything else."""
    if type(value) is MappingProxyType:
        value = mapping_behind(value)  # the proxy's own methods would run those of a user's mapping
    return tuple(OrderedDict.keys(value) if isinstance(value, OrderedDict) else dict_kind(value).keys(value))


def same_keys(value: object, expected: tuple[object, ...]) -> bool:
    """Whether a dict or frozendict has exactly the expected keys in that order; others than constants by identity.

    Expected keys are constants, handles of objects, or weak references to such, which C compares by itself.
    """
    keys = keys_of(value)
    if len(keys) != len(expected):
        return False
    for found, wanted in zip(keys, expected, strict=True):
        if found is wanted:
            continue
        if isinstance(wanted, weakref.ref):
            same = found is not None and wanted() is found
        else:
            same = wanted.refers_to(found) if isinstance(wanted, Ref) else same_constant(found, wanted)
        if not same:
            return False
    return True


def positions_of(value: OrderedDict[Any, Any]) -> tuple[int, ...]:
    """Return the position of each item in the dict's table, in the order of iteration, which `move_to_end` changes."""
    order, table = tuple(OrderedDict.keys(value)), tuple(dict.keys(value))
    if order == table:
        return tuple(range(len(order)))
    position = {key: at for at, key in enumerate(table)}
    return tuple(position[key] for key in order)


def has_numbered_keys(value: Any, expected: tuple[int, ...]) -> bool:
    """Whether an OrderedDict has plain integers as keys, and its items at these positions."""
    if type(value) is not OrderedDict or dict.__len__(value) != len(expected):
        return False
    return all(type(key) is int for key in dict.keys(value)) and positions_of(value) == expected


def has_key(value: Any, expected: object) -> bool:
    """Whether a dict or frozendict (past its class) or set has a constant; never by iterating: that may consume it."""
    kind: Any = next((kind for kind in (dict, *FROZEN_DICTS) if issubclass(type(value), kind)), type(value))
    return bool(kind.__contains__(value, expected))


def has_code(value: Any, expected: Ref) -> bool:
    return expected.refers_to(code_of(value))


def code_of(value: Any) -> CodeType | None:
    """Return the code object of a function; None for anything else."""
    code = value.__code__
    return code if type(code) is CodeType else None


def is_alive(value: Any) -> bool:
    """Whether a weak reference's object is alive; TypeError for anything else, which is not called."""
    return weakref.ref.__call__(value) is not None


def items_left(value: object) -> int:
    """Return the number of items left in a tuple or list iterator; TypeError for anything else."""
    if type(value) not in TUPLE_ITERATORS:
        raise TypeError(f"not a tuple or list iterator: {type(value).__name__}")
    return length_hint(value)


def range_left(value: Any) -> range:
    """Return the numbers left in a range iterator; TypeError for anything else."""
    if type(value) is not RANGE_ITERATOR:
        raise TypeError(f"not a range iterator: {type(value).__name__}")
    reduced: Any = value.__reduce__()
    whole: range = reduced[1][0]
    return whole[(reduced[2] if len(reduced) > 2 else 0) or 0 :]


def flatten_metadata(value: Any) -> tuple[object, ...]:
    """Return (names of inner tensors, context) of a traceable wrapper subclass, by its `__tensor_flatten__`."""
    with unstable.DisableTorchFunction():
        names, context = value.__tensor_flatten__()
    return tuple(names), context


def same_layout(value: object, expected: ClassLayout) -> bool:
    """Whether a class and its bases are the expected ones and have the expected entries."""
    return expected.holds(value)


def not_subclass(value: Any, expected: Ref) -> bool:
    """Whether a class is no subclass of another, by the other's metaclass. For abstract classes."""
    return not issubclass(value, expected.get())  # type: ignore[arg-type]


def same_metadata(value: Any, expected: tuple[object, ...]) -> bool:
    """Whether a wrapper subclass flattens to the same inner names and context."""
    return same_constant(flatten_metadata(value), expected)


def all_distinct(value: object, _expected: object, *others: object) -> bool:
    values = (value, *others)
    return len({id(item) for item in values}) == len(values)
