"""The `operator` module: the same dispatch as the operators themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.callables import between, handles
from framesmith_dynamo.values.containers import index_of
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.lookup.static import type_lookup


def _of(function: Any, count: int) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Register a handler that takes a fixed number of values."""

    def register(meaning: Callable[..., Value]) -> Callable[..., Value]:
        handles(function)(lambda tr, args, kwargs: meaning(tr, *between(tr, function, args, kwargs, count, count)))
        return meaning

    return register


for _op in operations.BINARY:
    _of(operations.BINARY[_op], 2)(lambda tr, a, b, op=_op: operations.binary(tr, op, a, b))
    _of(operations.INPLACE[_op], 2)(lambda tr, a, b, op=_op: operations.inplace(tr, op, a, b))
for _op in operations.COMPARE:
    _of(operations.COMPARE[_op], 2)(lambda tr, a, b, op=_op: operations.compare(tr, op, a, b))
for _op in operations.UNARY:
    _of(operations.UNARY[_op], 1)(lambda tr, value, op=_op: value.unary_op(tr, op))
_of(operator.truth, 1)(lambda tr, value: tr.constant(value.bool_(tr)))
_of(operator.not_, 1)(lambda tr, value: tr.constant(not value.bool_(tr)))
_of(operator.is_, 2)(lambda tr, a, b: tr.constant(operations.identity(tr, a, b)))
_of(operator.is_not, 2)(lambda tr, a, b: tr.constant(not operations.identity(tr, a, b)))
_of(operator.getitem, 2)(lambda tr, obj, key: obj.getitem(tr, key))
_of(operator.contains, 2)(lambda tr, obj, item: obj.contains(tr, item))


def _joins(function: Any, combine: Callable[[Tracer, str, Value, Value], Value]) -> None:
    def join(tr: Tracer, a: Value, b: Value) -> Value:
        for value in (a, b):
            cls = value.python_type()
            if type_lookup(cls, "__getitem__") is None or issubclass(cls, dict):
                refuse(tr, function, [a, b], {})
        return combine(tr, "+", a, b)

    _of(function, 2)(join)


_joins(operator.concat, operations.binary)
_joins(operator.iconcat, operations.inplace)


@_of(operator.setitem, 3)
def _setitem(tr: Tracer, obj: Value, key: Value, value: Value) -> Value:
    obj.setitem(tr, key, value)
    return tr.constant(None)


@_of(operator.delitem, 2)
def _delitem(tr: Tracer, obj: Value, key: Value) -> Value:
    obj.delitem(tr, key)
    return tr.constant(None)


@_of(operator.index, 1)
def _index(tr: Tracer, value: Value) -> Value:
    if value.python_type() is int:
        return value
    return tr.constant(index_of(tr, value))
