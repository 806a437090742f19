"""Python's operator protocol over values: who is asked first, what a refusal means, identity, equality.

Handlers, containers and builtins all go through here: `a < b` means the same in code, in `sorted` and in `list.index`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, GraphBreak
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.errors import refused
from framesmith_dynamo.values.holders import type_lookup

#: What `b <op> a` asks when `a <op> b` was refused.
SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
#: The special method behind each comparison, without underscores.
COMPARE_SLOTS: Final = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}
#: The special method behind each binary operator, without underscores.
BINARY_SLOTS: Final = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
}
#: The special method behind each unary operator.
UNARY_SLOTS: Final = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}
#: The function of the `operator` module for each operator.
BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    op: getattr(operator, f"__{name}__") for op, name in BINARY_SLOTS.items()
}
INPLACE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    op: getattr(operator, f"__i{name}__") for op, name in BINARY_SLOTS.items()
}
COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    op: getattr(operator, f"__{name}__") for op, name in COMPARE_SLOTS.items()
}
UNARY: Final[Mapping[str, Callable[[Any], Any]]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}


def same_object(a: Value, b: Value) -> bool:
    """`a is b`. One mutable object is one value, mostly; constants are compared as objects."""
    if a.is_same(b):
        return True
    if not (a.is_constant() and b.is_constant()):
        return False
    left, right = a.as_constant(), b.as_constant()
    if left is right:
        return True
    return type(left) is type(right) is tuple and not left and not right


def identity(tr: Tracer, a: Value, b: Value) -> bool:
    """The answer of `a is b`; two objects found at two sources are guarded to stay two."""
    if a is not b and a.python_type() is b.python_type():
        a.pin(tr)
        b.pin(tr)
    known = _compare_found(tr, a, b)
    if known is not None:
        return known
    if same_object(a, b):
        return True
    if a.is_symbolic() or b.is_symbolic():
        return _same_number(tr, a, b)
    if a.source is None or b.source is None or a.is_constant() or b.is_constant():
        return False
    if a.python_type() is b.python_type():
        tr.guard(a.source, "NOT_ALIASED", (b.source,))
    return False


def _same_number(tr: Tracer, a: Value, b: Value) -> bool:
    """`a is b` where one is a number that changes: of equal ones it is asked which objects they are at this call."""
    if a.python_type() is not b.python_type() or a.python_type() not in (int, bool, float):
        return False
    if a.python_type() is not float and not compare(tr, "==", a, b).bool_(tr):  # no NaN is equal to itself
        return False
    return same_object(tr.constant(a.as_constant()), tr.constant(b.as_constant()))


def _compare_found(tr: Tracer, a: Value, b: Value) -> bool | None:
    """`a is b` of tuples, numbers, `__dict__` ... met at two sources, with a value for each. None: another kind."""
    left, right = a.real_object(), b.real_object()
    if a.is_same(b) or a.source is None or b.source is None or type(left) is not type(right) or left is None:
        return None
    if left is right:
        tr.guard(a.source, "DUPLICATE_INPUT", b.source)
    else:
        tr.guard(a.source, "NOT_ALIASED", (b.source,))
    return left is right


def hash_key(tr: Tracer, value: Value) -> object:
    """The key of a value in dicts and sets. Existing objects that are keys by identity are guarded to stay distinct."""
    key = value.hash_key(tr)
    if key is value and value.source is not None:
        tr.memo.identity_keys[id(value)] = value
    return key


def compare(tr: Tracer, op: str, a: Value, b: Value) -> Value:
    """`a <op> b` for the six comparison operators."""
    if _reflected_first(a, b):
        result = b.compare(tr, SWAPPED[op], a)
        if result is None:
            result = a.compare(tr, op, b)
    else:
        result = a.compare(tr, op, b)
        if result is None:
            result = b.compare(tr, SWAPPED[op], a)
    if result is not None:
        return result
    if op in ("==", "!="):
        return _compare_identity(tr, op, a, b)
    return _refused(tr, op, f"__{COMPARE_SLOTS[op]}__", a, b)


def _compare_identity(tr: Tracer, op: str, a: Value, b: Value) -> Value:
    for value in (a, b):
        if not (value.exact_operators or _was_asked(value.python_type())):
            raise GraphBreak(UNSUPPORTED_OPERATION, f"{op} between {a.describe()} and {b.describe()}")
    return tr.constant(identity(tr, a, b) is (op == "=="))


def _was_asked(cls: type) -> bool:
    """Whether a class has the default equality, or one written in Python, which has been interpreted and refused."""
    found = type_lookup(cls, "__eq__")
    return found is not None and (found.owner in (object, type) or isinstance(found.raw, FunctionType))


def equal(tr: Tracer, a: Value, b: Value) -> bool:
    """Whether containers would treat the two as equal: the same object, or `==` is true."""
    try:
        return same_object(a, b) or compare(tr, "==", a, b).bool_(tr)
    except RecursionError:
        raise GraphBreak(UNSUPPORTED_OPERATION, f"== of {a.describe()}, which contains itself") from None


def binary(tr: Tracer, op: str, a: Value, b: Value) -> Value:
    """`a <op> b` for the arithmetic and bit operators."""
    result = _binary(tr, op, a, b)
    return _refused(tr, op, f"__{BINARY_SLOTS[op]}__", a, b) if result is None else result


def _binary(tr: Tracer, op: str, a: Value, b: Value) -> Value | None:
    if _reflected_first(a, b):
        result = b.reflected_op(tr, op, a)
        return a.binary_op(tr, op, b) if result is None else result
    result = a.binary_op(tr, op, b)
    return b.reflected_op(tr, op, a) if result is None else result


def inplace(tr: Tracer, op: str, a: Value, b: Value) -> Value:
    """`a <op>= b`: the value that the left side is bound to afterwards. `op` is written without its `=`."""
    result = a.inplace_op(tr, op, b)
    if result is None:
        result = _binary(tr, op, a, b)
    return _refused(tr, op, f"__i{BINARY_SLOTS[op]}__", a, b) if result is None else result


def _reflected_first(a: Value, b: Value) -> bool:
    left, right = a.python_type(), b.python_type()
    return left is not right and issubclass(right, left) and left is not object


def _refused(tr: Tracer, op: str, function: str, a: Value, b: Value) -> Value:
    if a.exact_operators and b.exact_operators:
        refused(tr, getattr(operator, function), a, b)
    raise GraphBreak(UNSUPPORTED_OPERATION, f"{op} between {a.describe()} and {b.describe()}")
