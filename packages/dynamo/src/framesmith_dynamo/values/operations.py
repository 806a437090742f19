"""Python's operator protocol over values: order of operands, NotImplemented, identity, equality.

Handlers, containers and builtins all use it: `a < b` means the same in code, in `sorted` and in `list.index`.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

from framesmith_dynamo.breaks import UNSUPPORTED_OPERATION, GraphBreak, register_break
from framesmith_dynamo.python_behaviour import SHARED_INTEGERS
from framesmith_dynamo.values.base import TracedRaise, Tracer, Value
from framesmith_dynamo.values.errors import refuse_key, refuse_positional
from framesmith_dynamo.values.lookup.static import type_lookup, user_method

EQUAL_OBJECTS = register_break(
    "equal-objects",
    what="`is` compares two equal numbers or strings, one of them from outside the compiled function",
    why="equal objects can differ in identity at a later call, which no guard on their values detects",
    hint="compare with `==`, or compare with an object that both sides take from the same source",
)

#: Types whose `+=` extends them only after the other operand's `__radd__` has been tried.
_WITHOUT_NUMBER_SLOTS: Final = (list, deque)
#: The reflected operator of each comparison.
SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
#: The special method of each comparison, without underscores.
COMPARE_SLOTS: Final = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}
#: The special method of each binary operator, without underscores.
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
#: The special method of each unary operator.
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
    """`a is b`. A mutable object usually has one value; constants are compared as objects."""
    if a.is_same(b):
        return True
    if not (a.is_constant() and b.is_constant()):
        return False
    left, right = a.as_constant(), b.as_constant()
    if left is right:
        return True
    return type(left) is type(right) is tuple and not left and not right


def identity(tr: Tracer, a: Value, b: Value) -> bool:
    """The result of `a is b`; two objects found at two sources are guarded to remain distinct, or identical."""
    if a is not b and a.python_type() is b.python_type():
        a.guard_identity(tr)
        b.guard_identity(tr)
    known = _compare_found(tr, a, b)
    if known is not None:
        return known
    if a.is_same(b):
        return True
    if a.is_symbolic() or b.is_symbolic():
        return _same_number(tr, a, b)
    same = same_object(a, b)
    if a.is_constant() and b.is_constant():
        _guard_object(tr, a, b, same)
    elif not same and a.source is not None and b.source is not None and a.python_type() is b.python_type():
        tr.guard(a.source, "NOT_ALIASED", (b.source,))
    return same


def _same_number(tr: Tracer, a: Value, b: Value) -> bool:
    """`a is b` where one is a symbolic number: if they are equal, the objects at this call decide, and are guarded.

    The result of arithmetic is an object of its own, except for the integers that CPython shares.
    """
    if a.python_type() is not b.python_type() or a.python_type() not in (int, bool, float):
        return False
    if not compare(tr, "==", a, b).bool_(tr):
        return False
    if _shares_object(tr, a):
        return True
    left, right = _object_at(a), _object_at(b)
    if left is None or right is None:
        return False
    _guard_object(tr, a, b, left is right)
    return left is right


def _shares_object(tr: Tracer, number: Value) -> bool:
    """Whether all numbers of this value are one object: CPython shares truth values and small integers."""
    if number.python_type() is not int:
        return number.python_type() is bool
    bounds = ((">=", SHARED_INTEGERS.start), ("<", SHARED_INTEGERS.stop))
    return all(compare(tr, op, number, tr.constant(bound)).bool_(tr) for op, bound in bounds)


def _object_at(value: Value) -> Any:
    """Return the object of a constant, or of a symbolic number found at a source; None of a computed one."""
    return value.real_object() if value.is_symbolic() else value.as_constant()


def _guard_object(tr: Tracer, a: Value, b: Value, same: bool) -> None:
    """Guard the identity of an object found at a source, where its value does not decide whether it is the other one.

    One of the two is a constant of the code, or computed while tracing: no guard says that another object is found.
    """
    found = next((value for value in (a, b) if value.source is not None and value.real_object() is not None), None)
    if found is None:
        return
    if same:
        assert found.source is not None
        tr.guard(found.source, "ID_MATCH", found.real_object())
    elif _are_equal(_object_at(a), _object_at(b)):
        raise GraphBreak(EQUAL_OBJECTS, f"{a.describe()} and {b.describe()}")


def _are_equal(left: Any, right: Any) -> bool:
    """Whether two objects are equal numbers or strings of one type."""
    if type(left) is not type(right) or type(left) not in (int, float, complex, str, bytes):
        return False
    return bool(left == right) or (left != left and right != right)


def _compare_found(tr: Tracer, a: Value, b: Value) -> bool | None:
    """`a is b` of tuples, numbers, `__dict__` ... found at two sources, with a value for each. None: another kind."""
    left, right = a.real_object(), b.real_object()
    if a.is_same(b) or a.source is None or b.source is None or type(left) is not type(right) or left is None:
        return None
    if left is right:
        tr.guard(a.source, "DUPLICATE_INPUT", b.source)
    else:
        tr.guard(a.source, "NOT_ALIASED", (b.source,))
    return left is right


def hash_key(tr: Tracer, value: Value, holder: type | None = None) -> object:
    """Return the key of a value in dicts and sets. Existing objects as keys are guarded to be distinct.

    `holder`: dict or set, which may name the use in the error for an object that has no hash.
    """
    try:
        key = value.hash_key(tr)
    except TracedRaise as raised:
        if holder is None or raised.value.python_type() is not TypeError:
            raise
        refuse_key(tr, value, raised.value.getattr_(tr, "args").as_plain(), holder)
    if key is value and value.source is not None:
        tr.facts.identity_keys[id(value)] = value
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
    """Whether a class has the default equality, or one written in Python, which has returned NotImplemented."""
    found = type_lookup(cls, "__eq__")
    return found is not None and (found.owner in (object, type) or isinstance(found.raw, FunctionType))


def equal(tr: Tracer, a: Value, b: Value) -> bool:
    """Whether containers would consider the two equal: the same object, or `==` is true."""
    if _is_nan(a) and _is_nan(b):
        return identity(tr, a, b)
    try:
        return same_object(a, b) or compare(tr, "==", a, b).bool_(tr)
    except RecursionError:
        raise GraphBreak(UNSUPPORTED_OPERATION, f"== of {a.describe()}, which contains itself") from None


def _is_nan(value: Value) -> bool:
    """Whether this is a number that is not equal to itself."""
    if value.is_symbolic() or not issubclass(value.python_type(), float | complex) or not value.is_constant():
        return False
    number = value.as_constant()
    return bool(number != number)


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
    """`a <op>= b`: the value to which the left side is bound. `op` is written without its `=`."""
    result = None
    if (
        a.python_type() in _WITHOUT_NUMBER_SLOTS
        and user_method(b.python_type(), f"__r{BINARY_SLOTS[op]}__") is not None
    ):
        result = b.reflected_op(tr, op, a)
    if result is None:
        result = a.inplace_op(tr, op, b)
    if result is None:
        result = _binary(tr, op, a, b)
    return _refused(tr, op, f"__i{BINARY_SLOTS[op]}__", a, b) if result is None else result


def _reflected_first(a: Value, b: Value) -> bool:
    left, right = a.python_type(), b.python_type()
    return left is not right and issubclass(right, left) and left is not object


def _refused(tr: Tracer, op: str, function: str, a: Value, b: Value) -> Value:
    if a.exact_operators and b.exact_operators:
        refuse_positional(tr, getattr(operator, function), a, b)
    raise GraphBreak(UNSUPPORTED_OPERATION, f"{op} between {a.describe()} and {b.describe()}")
