"""Builtins about numbers and order: abs, min, max, sum, round, int, float and their like; pure functions of math."""

from __future__ import annotations

import cmath
import math
from typing import Any

from framesmith_dynamo.breaks import NOT_CONSTANT, GraphBreak
from framesmith_dynamo.builtins.registry import between, declare_pure, handles, one
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.constants.constant import fold
from framesmith_dynamo.values.holders import type_lookup
from framesmith_dynamo.values.objects.classes import ClassValue, constructs


def special(tr: Tracer, value: Value, name: str, args: Args = ()) -> Value:
    """`type(value).name(value, *args)`; breaks when the type has no such method the tracer could call."""
    if type_lookup(value.python_type(), name) is None:
        raise GraphBreak(NOT_CONSTANT, f"{name} of {value.describe()}")
    return value.call_method(tr, name, args, {})


@handles(len)
def _len(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return one(tr, "len", args, kwargs).len_(tr)


@handles(abs)
def _abs(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = one(tr, "abs", args, kwargs)
    return fold(tr, abs, (value,)) if value.is_constant() else special(tr, value, "__abs__")


@handles(round)
def _round(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if all(arg.is_constant() for arg in (*args, *kwargs.values())):
        return fold(tr, round, args, kwargs)
    return special(tr, args[0], "__round__", args[1:])


@handles(divmod)
def _divmod(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    left, right = between(tr, "divmod", args, kwargs, 2, 2)
    if left.is_constant() and right.is_constant():
        return fold(tr, divmod, (left, right))
    return special(tr, left, "__divmod__", [right])


@handles(pow)
def _pow(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = [*args, *(kwargs[name] for name in ("base", "exp", "mod")[len(args) :] if name in kwargs)]
    if len(given) == 2:
        return operations.binary(tr, "**", given[0], given[1])
    return fold(tr, pow, given)


def extreme(tr: Tracer, name: str, op: str, args: Args, kwargs: Kwargs) -> Value:
    """`min` (op "<") or `max` (op ">"): the first item that no other beats."""
    unknown = set(kwargs) - {"key", "default"}
    if unknown or not args:
        tr.raise_(TypeError, f"{name}() got wrong arguments")
    items = args[0].unpack(tr) if len(args) == 1 else list(args)
    key = kwargs.get("key")
    if not items:
        if "default" in kwargs:
            return kwargs["default"]
        tr.raise_(ValueError, f"{name}() iterable argument is empty")
    keyed = key is not None and not (key.is_constant() and key.as_constant() is None)
    best, best_key = items[0], tr.call(key, [items[0]], {}) if keyed and key is not None else items[0]
    for item in items[1:]:
        item_key = tr.call(key, [item], {}) if keyed and key is not None else item
        if operations.truth(tr, operations.compare(tr, op, item_key, best_key)):
            best, best_key = item, item_key
    return best


@handles(min)
def _min(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return extreme(tr, "min", "<", args, kwargs)


@handles(max)
def _max(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return extreme(tr, "max", ">", args, kwargs)


@handles(sum)
def _sum(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not 1 <= len(args) <= 2 or set(kwargs) - {"start"}:
        tr.raise_(TypeError, "sum() takes an iterable and an optional start")
    total = args[1] if len(args) == 2 else kwargs.get("start", tr.constant(0))
    if total.python_type() in (str, bytes):
        tr.raise_(TypeError, "sum() can't sum strings [use ''.join(seq) instead]")
    items = args[0].unpack(tr)
    known = next((at for at, item in enumerate(items) if not item.is_constant()), len(items))
    if total.is_constant():  # sum() adds floats more exactly than `+` since 3.12
        total = fold(tr, sum, ([item.as_constant() for item in items[:known]], total))
        items = items[known:]
    for item in items:
        total = operations.binary(tr, "+", total, item)
    return total


def _number(cls: type, method: str) -> Any:
    """A constructor of numbers: constants fold, other objects are asked for their special method."""

    def construct(tr: Tracer, value: ClassValue, args: Args, kwargs: Kwargs) -> Value:
        if all(arg.is_constant() for arg in (*args, *kwargs.values())):
            return fold(tr, cls, args, kwargs)
        if len(args) == 1 and not kwargs:
            return special(tr, args[0], method)
        raise GraphBreak(NOT_CONSTANT, f"{cls.__name__}() of {args[0].describe()}")

    return construct


for _cls, _method in ((int, "__int__"), (float, "__float__"), (complex, "__complex__")):
    constructs(_cls)(_number(_cls, _method))


@constructs(bool)
def _bool(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    (*rest,) = between(tr, "bool", args, kwargs, 0, 1)
    return tr.constant(operations.truth(tr, rest[0]) if rest else False)


@constructs(bytes)
def _bytes(tr: Tracer, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    return fold(tr, bytes, args, kwargs)


for _module in (math, cmath):
    declare_pure(function for function in vars(_module).values() if callable(function))
declare_pure((bin, oct, hex, ord, chr, int.from_bytes, float.fromhex, str.maketrans, bytes.fromhex))
