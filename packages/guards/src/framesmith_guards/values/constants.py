"""Constants: the values that guards may compare by content, their exact comparison and frozen copies.

Note [Safe comparison]: `==` is never called on a value whose class may define it in Python. Two values are the
same constant when their classes are identical and their contents are, recursively; floats compare by sign and
value, every NaN equals every other NaN, and -0.0 differs from 0.0. Containers are compared element by element,
and at most MAX_ELEMENTS of them, so that a check cannot become slower than the call it protects.
"""

from __future__ import annotations

import builtins
import enum
import functools
import math
import sys
import types
import typing
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from framesmith_guards.errors import GuardError

MAX_ELEMENTS: Final = 4096


def builtin_type(name: str) -> tuple[type, ...]:
    """Return a builtin type as a tuple; an empty one where this CPython does not have it."""
    found = getattr(builtins, name, None)
    return () if found is None else (found,)


#: The types of single objects of the library: `functools.Placeholder` (3.14), `typing.NoDefault` (3.13).
SINGLETON_TYPES: Final = tuple(
    type(getattr(module, name))
    for module, name in ((functools, "Placeholder"), (typing, "NoDefault"))
    if hasattr(module, name)
)
_BY_EQUALITY: Final = frozenset({bool, int, str, bytes, torch.device})
_BY_IDENTITY: Final = (
    types.NoneType,
    types.EllipsisType,
    types.NotImplementedType,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.qscheme,
    enum.Enum,
    type,
    types.BuiltinFunctionType,
    types.ModuleType,
    *builtin_type("sentinel"),
    *SINGLETON_TYPES,
)
#: Dicts that never change: frozendict, where this CPython has it.
FROZEN_DICTS: Final[tuple[Any, ...]] = builtin_type("frozendict")
_MAPPINGS: Final[tuple[type, ...]] = (dict, OrderedDict, *FROZEN_DICTS)


def dict_kind(value: object) -> Any:
    """Return dict or frozendict, whose methods read the value past its own class; TypeError for anything else."""
    kind = next((kind for kind in (dict, *FROZEN_DICTS) if issubclass(type(value), kind)), None)
    if kind is None:
        raise TypeError(f"not a dict: {type(value).__name__}")
    return kind


def _same_float(a: float, b: float) -> bool:
    return (a == b and math.copysign(1.0, a) == math.copysign(1.0, b)) or (a != a and b != b)


def _same_complex(a: complex, b: complex) -> bool:
    return _same_float(a.real, b.real) and _same_float(a.imag, b.imag)


def _same_items(a: Iterable[object], b: Iterable[object]) -> bool:
    left, right = list(a), list(b)
    return len(left) == len(right) and all(map(same_constant, left, right))


def _same_mapping(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    return len(a) == len(b) and _same_items(a.keys(), b.keys()) and _same_items(a.values(), b.values())


def _same_set(a: Iterable[object], b: Iterable[object]) -> bool:
    return {typed_key(item) for item in a} == {typed_key(item) for item in b}


def _same_range(a: Any, b: Any) -> bool:
    return _same_items((a.start, a.stop, a.step), (b.start, b.stop, b.step))


_STRUCTURAL: Final[dict[type, Callable[[Any, Any], bool]]] = {
    float: _same_float,
    complex: _same_complex,
    tuple: _same_items,
    torch.Size: _same_items,
    list: _same_items,
    deque: _same_items,
    **dict.fromkeys(_MAPPINGS, _same_mapping),
    set: _same_set,
    frozenset: _same_set,
    range: _same_range,
    slice: _same_range,
}


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and cls.__eq__ is tuple.__eq__ and cls.__iter__ is tuple.__iter__


def _is_numpy_scalar(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and type(value) is not numpy.object_


def same_constant(a: object, b: object) -> bool:
    """Whether two values are the same constant, by the rule of Note [Safe comparison]. Never runs user code."""
    cls = type(a)
    if cls is not type(b):
        return False
    if cls in _BY_EQUALITY:
        return a == b
    compare = _STRUCTURAL.get(cls)
    if compare is not None:
        return compare(a, b)
    if a is b:
        return True
    if _is_named_tuple(cls):
        return _same_items(a, b)  # type: ignore[arg-type]
    if _is_numpy_scalar(a):
        return bool(a.tobytes() == b.tobytes())  # type: ignore[attr-defined]
    return False


def why_not_constant(value: object) -> str | None:
    """Return why `value` cannot be compared by content, or None if it can."""
    count = 0
    pending = [value]
    while pending:
        item = pending.pop()
        count += 1
        if count > MAX_ELEMENTS:
            return f"it has more than {MAX_ELEMENTS} elements; guard its LENGTH and the elements that were used"
        cls = type(item)
        if cls in _MAPPINGS:
            pending += [*item.keys(), *item.values()]  # type: ignore[attr-defined]
        elif cls in (range, slice):
            pending += [item.start, item.stop, item.step]  # type: ignore[attr-defined]
        elif cls in (float, complex) or cls in _BY_EQUALITY or isinstance(item, _BY_IDENTITY):
            continue
        elif cls in _STRUCTURAL or _is_named_tuple(cls):
            pending += item  # type: ignore[arg-type]
        elif not _is_numpy_scalar(item):
            return f"{cls.__module__}.{cls.__qualname__} is not a constant: its == may run user code; use ID_MATCH"
    return None


def is_constant(value: object) -> bool:
    return why_not_constant(value) is None


def freeze(value: object) -> object:
    """Return a snapshot of a constant that later mutation of the original cannot reach.

    Raises GuardError for a value that is not a constant.
    """
    reason = why_not_constant(value)
    if reason is not None:
        raise GuardError(f"cannot compare a value by content: {reason}")
    return _copy(value)


def _copy(value: Any) -> Any:
    cls = type(value)
    if cls in (list, set, frozenset, tuple):
        return cls(map(_copy, value))
    if cls is deque:
        return deque(map(_copy, value), value.maxlen)
    if cls in _MAPPINGS:
        return cls((_copy(key), _copy(item)) for key, item in value.items())
    if _is_named_tuple(cls) and cls is not torch.Size:
        return _copy_named_tuple(value)
    return value


def _copy_named_tuple(value: Any) -> Any:
    items = list(map(_copy, value))
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    # A structseq takes one sequence; a class made by namedtuple takes its fields, maybe in a __new__ of its own.
    return type(value)(items) if not hasattr(value, "_fields") else tuple.__new__(type(value), items)


def typed_key(value: Any) -> object:
    """Return a hashable key, equal for two constants exactly when they are the same constant.

    Values that are not constants are keyed by identity (the caller keeps them alive).
    """
    cls = type(value)
    if cls in _BY_EQUALITY:
        return (cls, value)
    if cls is float:
        return (cls, "nan" if value != value else value.hex())
    if cls is complex:
        return (cls, typed_key(value.real), typed_key(value.imag))
    if cls in _MAPPINGS:
        return (cls, tuple((typed_key(k), typed_key(v)) for k, v in value.items()))
    if cls in (set, frozenset):
        return (cls, frozenset(map(typed_key, value)))
    if cls in (range, slice):
        return (cls, typed_key(value.start), typed_key(value.stop), typed_key(value.step))
    if cls in _STRUCTURAL or _is_named_tuple(cls):
        return (cls, tuple(map(typed_key, value)))
    if _is_numpy_scalar(value):
        return (cls, value.tobytes())
    return (cls, id(value))
