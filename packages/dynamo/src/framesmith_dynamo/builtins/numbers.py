"""Builtins about numbers and order: abs, min, max, sum, round, int, float and their like; pure functions of math."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from types import BuiltinFunctionType
from typing import Any

import torch

from framesmith_aten.assumptions import Asserted
from framesmith_dynamo.breaks import NOT_CONSTANT, GraphBreak
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import Handler, between, folding, handles, named, one
from framesmith_dynamo.values.constants.constant import ConstantValue, fold
from framesmith_dynamo.values.containers import TupleValue, new_list
from framesmith_dynamo.values.errors import answered, refuse
from framesmith_dynamo.values.iteration.consuming import each
from framesmith_dynamo.values.lookup.entries import special_method
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.tensors.truths import truth
from framesmith_dynamo.values.torch_api import number_tensors
from framesmith_dynamo.values.torch_api.checks import holds


def special(tr: Tracer, value: Value, name: str, args: Args = ()) -> Value:
    """Call `type(value).name(value, *args)`; breaks if the tracer cannot call the type's method."""
    if type_lookup(value.python_type(), name) is None:
        raise GraphBreak(NOT_CONSTANT, f"{name} of {value.describe()}")
    method = special_method(tr, value, name)
    return value.call_method(tr, name, args, {}) if method is None else tr.call(method, (value, *args), {})


@handles(len)
def _len(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return one(tr, len, args, kwargs).len_(tr)


@handles(abs)
def _abs(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = one(tr, abs, args, kwargs)
    if value.is_symbolic() and value.python_type() is float:  # there are two zeros
        return tr.call(tr.constant(math.fabs), (value,), {})
    if value.is_symbolic():
        negative = operations.compare(tr, "<", value, tr.constant(0)).bool_(tr)
        return value.unary_op(tr, "-" if negative else "+")
    return fold(tr, abs, (value,)) if value.can_be_constant() else special(tr, value, "__abs__")


@handles(round)
def _round(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = named(tr, round, args, kwargs, ("number", "ndigits"), 1)
    digits = [given["ndigits"]] if "ndigits" in given and not given["ndigits"].is_none() else []
    if not digits and given["number"].is_symbolic() and given["number"].python_type() is int:
        return given["number"]
    if all(arg.can_be_constant() for arg in given.values()):
        return fold(tr, round, args, kwargs)
    return special(tr, given["number"], "__round__", digits)


@handles(divmod)
def _divmod(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    left, right = between(tr, divmod, args, kwargs, 2, 2)
    if left.is_symbolic() or right.is_symbolic():
        return TupleValue([operations.binary(tr, op, left, right) for op in ("//", "%")])
    if left.can_be_constant() and right.can_be_constant():
        return fold(tr, divmod, (left, right))
    for value, other, name in ((left, right, "__divmod__"), (right, left, "__rdivmod__")):
        if type_lookup(value.python_type(), name) is not None:
            answer = value.call_method(tr, name, [other], {})
            if not (answer.is_constant() and answer.as_constant() is NotImplemented):
                return answer
    return refuse(tr, divmod, args, kwargs)


@handles(pow)
def _pow(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = named(tr, pow, args, kwargs, ("base", "exp", "mod"), 2)
    if "mod" not in given or given["mod"].is_none():
        return operations.binary(tr, "**", given["base"], given["exp"])
    return fold(tr, pow, [given["base"], given["exp"], given["mod"]])


def _wins(tr: Tracer, op: str, item: Value, best: Value) -> bool:
    """Whether an item replaces the best one so far.

    Of a tensor and a number (`max(t, 0)`) the tensor is assumed to win: a call in which it does not runs eagerly, and
    returns the number.
    """
    answer = operations.compare(tr, op, item, best)
    tensors = [isinstance(value, TensorValue) for value in (item, best)]
    if isinstance(answer, TensorValue) and answer.fake.numel() == 1 and tensors.count(True) == 1:
        item = answer.call_method(tr, "to", (tr.constant(torch.int64),), {}).call_method(tr, "item", (), {})
        chosen = operations.compare(tr, "==", item, tr.constant(int(tensors[0])))
        text = f"{'min' if op == '<' else 'max'}() of a tensor and a number gives the tensor, not the number"
        return holds(tr, chosen, Asserted.CHOICE, text) == tensors[0]
    return answer.bool_(tr)


def _chosen(tr: Tracer, op: str, item: Value, key: Value, best: tuple[Value, Value]) -> tuple[Value, Value] | None:
    """Return the better one, where data choose between numbers (not NaN, which is not greater); None elsewhere."""
    pair = item, best[0]
    if key is not item or best[1] is not best[0]:
        return None
    if any(isinstance(one, TensorValue) for one in pair):
        if not number_tensors.is_expected(tr) or not all(map(number_tensors.stands_for_number, pair)):
            return None
        made = number_tensors.greatest(tr, op, *pair)
        return made, made
    return None


def extreme(tr: Tracer, function: Any, op: str, args: Args, kwargs: Kwargs) -> Value:
    """`min` (op "<") or `max` (op ">"): the first item that no other beats."""
    if set(kwargs) - {"key", "default"} or not args or (len(args) > 1 and "default" in kwargs):
        refuse(tr, function, args, kwargs)
    key = kwargs.get("key")
    keyed = key is not None and not key.is_none()
    best: tuple[Value, Value] | None = None
    for item in each(tr, args[0]) if len(args) == 1 else args:
        item_key = tr.call(key, [item], {}) if keyed and key is not None else item
        if best is not None and (chosen := _chosen(tr, op, item, item_key, best)) is not None:
            best = chosen
            continue
        if best is None or _wins(tr, op, item_key, best[1]):
            best = item, item_key
    if best is not None:
        return best[0]
    return kwargs["default"] if "default" in kwargs else refuse(tr, function, [new_list(tr, [])], kwargs)


@handles(min)
def _min(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return extreme(tr, min, "<", args, kwargs)


@handles(max)
def _max(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return extreme(tr, max, ">", args, kwargs)


@handles(sum)
def _sum(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    given = named(tr, sum, args, kwargs, ("iterable", "start"), 1)
    if "iterable" in kwargs:
        refuse(tr, sum, args, kwargs)
    total = given.get("start", tr.constant(0))
    if issubclass(total.python_type(), str | bytes | bytearray):
        args[0].iter_(tr)
        refuse(tr, sum, [new_list(tr, []), total], {})
    run: list[Value] = []
    for item in each(tr, args[0]):
        if _is_number(item) and _is_number(total):
            run.append(item)
        else:
            total = operations.binary(tr, "+", _added(tr, total, run), item)
            run = []
    return _added(tr, total, run)


def _is_number(value: Value) -> bool:
    """Whether adding the value to a number runs none of the program's code."""
    return isinstance(value, ConstantValue) and value.python_type() in (bool, int, float, complex)


def _added(tr: Tracer, total: Value, items: list[Value]) -> Value:
    """Return the sum of numbers."""
    known = next((at for at, item in enumerate(items) if item.is_symbolic()), len(items))
    if known and not total.is_symbolic():  # sum() adds floats more exactly than `+` since 3.12
        total = fold(tr, sum, ([item.as_constant() for item in items[:known]], total))
        items = items[known:]
    if len(items) > 1 and (integers := _integers([total, *items])) is not None:
        # one expression, where `+` makes one of each partial sum
        return tr.constant(torch.sym_sum(integers))  # type: ignore[no-untyped-call]
    for item in items:
        total = operations.binary(tr, "+", total, item)
    return total


def _integers(values: Sequence[Value]) -> list[int | torch.SymInt] | None:
    """Return the values as exact integers, symbolic or not; None if one is something else."""
    found: list[int | torch.SymInt] = []
    for value in values:
        number = value.as_number() if isinstance(value, ConstantValue) else None
        if not isinstance(number, int | torch.SymInt):
            return None
        found.append(number)
    return found


def _number(cls: type, method: str) -> Handler:
    """A constructor of numbers: constants fold; other objects call their special method."""

    def construct(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if len(args) == 1 and args[0].is_symbolic() and args[0].python_type() is cls:
            return args[0]
        if all(arg.can_be_constant() for arg in (*args, *kwargs.values())):
            return fold(tr, cls, args, kwargs)
        if len(args) == 1 and not kwargs:
            return answered(tr, cls, method, args[0], special(tr, args[0], method))
        raise GraphBreak(NOT_CONSTANT, f"{cls.__name__}() of {args[0].describe()}")

    return construct


for _cls, _method in ((int, "__int__"), (float, "__float__"), (complex, "__complex__")):
    handles(_cls)(_number(_cls, _method))


@handles(bool)
def _bool(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    (*rest,) = between(tr, bool, args, kwargs, 0, 1)
    return truth(tr, rest[0]) if rest else tr.constant(False)


def _rounding(function: Any) -> Handler:
    """`math.floor` and its like: an int is returned as it is."""

    def rounded(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        whole = len(args) == 1 and not kwargs and args[0].is_symbolic() and args[0].python_type() is int
        return args[0] if whole else fold(tr, function, args, kwargs)

    return rounded


_ROUNDING = (math.floor, math.ceil, math.trunc)
for _function in _ROUNDING:
    handles(_function)(_rounding(_function))

#: Pure functions. `math.prod` is not among them: it multiplies objects of any type.
_PURE = (bin, oct, hex, ord, chr, int.from_bytes, float.fromhex, str.maketrans, bytes.fromhex)
for _function in (*_PURE, *vars(math).values(), *vars(cmath).values()):
    if isinstance(_function, BuiltinFunctionType) and _function not in (math.prod, *_ROUNDING):
        handles(_function)(folding(_function))
