"""Checks and snapshots of guards' expectations, one function per kind of expectation."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch

from framesmith_guards.errors import GuardError
from framesmith_guards.kinds.predicates import flatten_metadata
from framesmith_guards.kinds.shapes import ShapeExpr
from framesmith_guards.sources import Source
from framesmith_guards.sources.caches import ABSENT, CachedCall, is_result
from framesmith_guards.values.classes import ClassLayout
from framesmith_guards.values.constants import freeze, is_constant
from framesmith_guards.values.refs import Ref, describe
from framesmith_guards.values.tensors import TensorSpec


def identity(value: object) -> Ref:
    """Return a handle to any object that can be weakly referenced or lives forever."""
    return value if isinstance(value, Ref) else Ref(value)


def a_type(value: object) -> Ref:
    if isinstance(value, Ref):
        return value
    if not isinstance(value, type):
        raise GuardError(f"this kind of guard expects a type, not {describe(value)}; pass type(value)")
    return Ref(value)


def constant(value: object) -> object:
    return freeze(value)


def nothing(value: object) -> None:
    if value is not None:
        raise GuardError(f"this kind of guard expects nothing, not {describe(value)}")


def boolean(value: object) -> bool:
    if type(value) is not bool:
        raise GuardError(f"BOOL_MATCH expects True or False, not {describe(value)}")
    return value


def count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise GuardError(f"a length is a non-negative int, not {describe(value)}")
    return value


def attribute(value: object) -> str:
    if type(value) is not str:
        raise GuardError(f"an attribute's name is a str, not {describe(value)}")
    return value


def keys(value: Any) -> tuple[object, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise GuardError(f"DICT_KEYS expects a dict or its keys, not {describe(value)}")
    return tuple(key if isinstance(key, Ref) or is_constant(key) else Ref(key) for key in value)


def positions(value: Any) -> tuple[int, ...]:
    """Return positions in a dict's table, one for each of its items, in the order of iteration."""
    if type(value) is not tuple or sorted(value) != [*range(len(value))]:
        raise GuardError(f"NUMBERED_KEYS expects the positions of a dict's items, not {describe(value)}")
    return value


def class_layout(value: Any) -> ClassLayout:
    """Return a class's layout, from a layout or a class."""
    return value if isinstance(value, ClassLayout) else ClassLayout.of(value)


def tensor(value: object) -> TensorSpec:
    """Return a tensor's spec, from a spec or a tensor."""
    return value if isinstance(value, TensorSpec) else TensorSpec.of(value)  # type: ignore[arg-type]


def metadata(value: Any) -> object:
    """Return a wrapper subclass's flattened metadata, from that or the tensor."""
    return freeze(flatten_metadata(value) if isinstance(value, torch.Tensor) else value)


def code(value: object) -> Ref:
    """Return a handle to a code object, from that or a function."""
    value = getattr(value, "__code__", value)
    if isinstance(value, Ref):
        return value
    if not isinstance(value, types.CodeType):
        raise GuardError(f"FUNCTION_CODE expects a function or a code object, not {describe(value)}")
    return Ref(value)


def a_dtype(value: object) -> torch.dtype:
    if not isinstance(value, torch.dtype):
        raise GuardError(f"PLAIN_LEAF expects the dtype of the gradients, not {describe(value)}")
    return value


def a_range(value: object) -> range:
    if type(value) is not range:
        raise GuardError(f"RANGE_ITERATOR expects the range still to be given, not {describe(value)}")
    return value


def a_source(value: object) -> Source:
    if not isinstance(value, Source):
        raise GuardError(f"this kind of guard expects the Source of another value, not {describe(value)}")
    return value


def some_sources(value: Any) -> tuple[Source, ...]:
    found = (value,) if isinstance(value, Source) else tuple(value)
    for item in found:
        a_source(item)
    return found


def shape(value: object) -> ShapeExpr:
    if not isinstance(value, ShapeExpr):
        raise GuardError(f"SHAPE expects a ShapeExpr, not {describe(value)}; use ShapeExpr.of(expr, sources)")
    return value


def cached_call(value: object) -> CachedCall:
    if not isinstance(value, CachedCall) or not (value.result is ABSENT or is_result(value.result)):
        raise GuardError(f"CACHED_CALL expects a CachedCall that gives a constant, not {describe(value)}")
    return value


def state(value: object) -> object:
    """Return a value that a state field read; handles stay handles."""
    return value
