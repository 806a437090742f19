"""Symbolic numbers: dynamic sizes and arguments, and results computed from them.

See docs/design/frontend/0015-dynamic-shapes.md. Integers use torch's symbols; the result of a float operation is a new
symbol, computed in the graph. Any operation other than arithmetic and comparison reads the value at this call and adds
a guard: a symbolic number is a constant that has not been specialised yet.
"""

from __future__ import annotations

import math
import operator
from types import MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.symbolic import LARGEST_SYMBOL, known_value
from framesmith_dynamo.breaks import DATA_DEPENDENT, DATA_DEPENDENT_BRANCH, GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.constants.constant import ConstantValue, is_singleton
from framesmith_dynamo.values.operations import BINARY, BINARY_SLOTS, COMPARE, COMPARE_SLOTS
from framesmith_dynamo.values.wrap_registry import builds_type
from framesmith_guards.torch_adapter import GuardOnDataDependentSymNode
from framesmith_sideeffects import load_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from framesmith_bytecode import Codegen
    from framesmith_dynamo.graph.builder import NumberRef

#: The Python type of each class of torch's symbols.
PYTHON_TYPES: Final[dict[type, type]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
#: Operators of integers that sympy computes as Python does.
EXACT_OF_INTEGERS: Final = frozenset({"+", "-", "*", "//", "%"})
#: Operators computed in the graph if an operand or the result is a float.
COMPUTED: Final = frozenset({"+", "-", "*", "/", "//", "%", "**"})
#: Exponents of integer powers that sympy computes exactly.
POWERS: Final = range(2, 5)
#: Bit operators that are arithmetic for some constants.
_OF_BITS: Final = frozenset({"&", "<<", ">>"})
#: The attributes of an int that are numbers; None is the int itself.
_PARTS: Final = {"real": None, "imag": 0, "numerator": None, "denominator": 1}
#: The operand types of the special methods of a number, by its type; others give NotImplemented.
_TAKES: Final[dict[type, tuple[type, ...]]] = {int: (int, bool), float: (int, bool, float)}
#: Types that compare with numbers; all other constants are unequal and have no order.
_NUMBERS: Final = (int, float, bool, complex)
#: Integers up to this magnitude are exact as floats.
_EXACT_FLOATS: Final = 2**53
_DIVISIONS: Final = frozenset({"/", "//", "%"})


class SymbolicNumber(ConstantValue):
    """A number whose value is a symbol. Reading it as a constant specialises it for this trace.

    `real`: the object itself, of one found at a source.
    """

    __slots__ = ("real", "ref")

    def __init__(self, ref: NumberRef, real: int | float | None = None) -> None:
        Value.__init__(self, source=ref.source)
        self.ref = ref
        self.real = real

    @property
    def number(self) -> Any:
        """The symbol, or the number once it is specialised."""
        return self.ref.number

    @property
    def value(self) -> Any:
        """The number at this call, which is specialised from now on. Breaks for a number computed in the graph."""
        try:
            return PYTHON_TYPES[type(self.number)](self.number)
        except GuardOnDataDependentSymNode as error:
            raise GraphBreak(DATA_DEPENDENT, f"the number {self.number}") from error

    def as_number(self) -> Any:
        return self.number

    def python_type(self) -> type:
        return PYTHON_TYPES[type(self.number)]

    def is_constant(self) -> bool:
        return known_value(self.number) is not None

    def can_be_constant(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return True

    def real_object(self) -> Any:
        return None if is_singleton(self.real) else self.real

    def as_proxy(self) -> Any:
        return self.ref.node

    def describe(self) -> str:
        where = f" from {self.source.name}" if self.source is not None else ""
        return f"the {self.python_type().__name__} {self.number}{where}"

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            load_source(codegen, self.source)
        else:
            codegen.load_output(self.ref)

    def bool_(self, tr: Tracer) -> bool:
        try:
            return bool(self.number if isinstance(self.number, torch.SymBool) else self.number != 0)
        except GuardOnDataDependentSymNode as error:
            raise GraphBreak(DATA_DEPENDENT_BRANCH, f"truth of {self.describe()}") from error

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if not isinstance(other, ConstantValue):
            return None
        computed = compute(tr, op, self, other)
        return tr.constant(self.value).binary_op(tr, op, tr.constant(other.value)) if computed is None else computed

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if not isinstance(other, ConstantValue):
            return None
        computed = compute(tr, op, other, self)
        return tr.constant(other.value).binary_op(tr, op, tr.constant(self.value)) if computed is None else computed

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if not isinstance(other, ConstantValue):
            return None
        if other.python_type() not in _NUMBERS:
            return None
        if other.python_type() is complex:
            return self._compare_complex(tr, op, other.value)
        number = other.as_number()
        if number is None and (answer := self._compare_beyond(tr, op, other.value)) is not None:
            return answer
        same = isinstance(number, torch.SymFloat) and number is self.number  # at another call, it may be no number
        truth = any(isinstance(one, torch.SymBool) for one in (number, self.number))  # to torch, it is no number
        if number is None or same or truth:
            return tr.constant(self.value).compare(tr, op, tr.constant(other.value))
        return tr.constant(COMPARE[op](self.number, number))

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if isinstance(self.number, torch.SymInt) and name in _PARTS:
            part = _PARTS[name]
            return self if part is None else tr.constant(part)
        if isinstance(self.number, torch.SymFloat) and name == "real":
            return self
        if isinstance(getattr(self.python_type(), name, None), MethodDescriptorType | WrapperDescriptorType):
            return BuiltinMethodValue(self, name)
        return super().getattr_(tr, name)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        asked = _SPECIAL_METHODS.get(name)
        takes = _TAKES.get(self.python_type(), ())
        if asked is None or kwargs or len(args) != 1 or not takes:
            return super().call_method(tr, name, args, kwargs)
        answer = asked(self, tr, args[0]) if args[0].python_type() in takes else None
        return tr.constant(NotImplemented) if answer is None else answer

    def _compare_complex(self, tr: Tracer, op: str, number: complex) -> Value | None:
        if op not in ("==", "!="):
            return None
        return self.compare(tr, op, tr.constant(number.real)) if number.imag == 0 else tr.constant(op == "!=")

    def _compare_beyond(self, tr: Tracer, op: str, number: int | float) -> Value | None:
        """Compare with a number that graphs cannot compute with; None if this one must be specialised."""
        if math.isnan(number):
            return tr.constant(op == "!=")
        if isinstance(self.number, torch.SymInt):
            infinite = type(number) is float
            return tr.constant(COMPARE[op](0, number) if infinite else COMPARE[op](self.number, number))
        if isinstance(self.number, torch.SymFloat) and type(number) is int and abs(number) <= _EXACT_FLOATS:
            return tr.constant(COMPARE[op](self.number, number))
        return None

    def unary_op(self, tr: Tracer, op: str) -> Value:
        number = self.number
        if isinstance(number, torch.SymInt) and op == "~":
            return tr.constant(-number - 1)
        if isinstance(number, torch.SymInt) and op in "+-":
            return self if op == "+" else tr.constant(-number)
        if isinstance(number, torch.SymFloat) and op in "+-":
            return self if op == "+" else tr.compute_number(operator.neg, "exact_neg", (number,)) or self
        return super().unary_op(tr, op)


def _binary(op: str) -> Callable[[SymbolicNumber, Tracer, Value], Value | None]:
    return lambda self, tr, other: self.binary_op(tr, op, other)


def _reflected(op: str) -> Callable[[SymbolicNumber, Tracer, Value], Value | None]:
    return lambda self, tr, other: self.reflected_op(tr, op, other)


def _comparison(op: str) -> Callable[[SymbolicNumber, Tracer, Value], Value | None]:
    return lambda self, tr, other: self.compare(tr, op, other)


#: Special methods called by name, of one operand.
_SPECIAL_METHODS: Final = {
    **{f"__{name}__": _binary(op) for op, name in BINARY_SLOTS.items() if op != "@"},
    **{f"__r{name}__": _reflected(op) for op, name in BINARY_SLOTS.items() if op != "@"},
    **{f"__{name}__": _comparison(op) for op, name in COMPARE_SLOTS.items()},
}


def compute(tr: Tracer, op: str, left: Value, right: Value) -> Value | None:
    """Return `left <op> right`, where one is symbolic, as a number of the graph; None if it must be specialised."""
    if not (isinstance(left, ConstantValue) and isinstance(right, ConstantValue)):
        return None
    numbers = [left.as_number(), right.as_number()]
    if op in _OF_BITS:
        op, numbers = _as_arithmetic(op, *numbers)
    if op not in COMPUTED:
        return None
    if any(number is None or isinstance(number, torch.SymBool) for number in numbers):
        return None
    if op in _DIVISIONS and not _is_not_zero(numbers[1]):
        return None  # as constants, they raise
    integers = all(isinstance(number, int | torch.SymInt) for number in numbers)
    if op in ("//", "%") and not numbers[1] > 0:  # sympy takes (a // b) // -c for a // (b * -c)
        integers = False
    if integers and (op in EXACT_OF_INTEGERS or (op == "**" and type(numbers[1]) is int and numbers[1] in POWERS)):
        return tr.constant(BINARY[op](*numbers))
    return tr.compute_number(BINARY[op], f"exact_{BINARY_SLOTS[op]}", numbers)


def _as_arithmetic(op: str, left: Any, right: Any) -> tuple[str, list[Any]]:
    """Return arithmetic equal to a bit operator with a constant: Python's integers have unlimited bits."""
    if op == "&" and type(left) is int:
        left, right = right, left
    if isinstance(left, torch.SymInt) and type(right) is int and right >= 0:
        if op == "&" and not right & (right + 1):
            return "%", [left, right + 1]
        if op != "&" and right < LARGEST_SYMBOL.bit_length() - 1:
            return "//" if op == ">>" else "*", [left, 1 << right]
    return op, [left, right]


def _is_not_zero(number: Any) -> bool:
    try:
        return bool(number != 0)
    except GuardOnDataDependentSymNode:
        return False


@builds_type(torch.SymInt, torch.SymFloat, torch.SymBool)
def _build_symbolic(tr: Tracer, obj: Any) -> Value:
    """Return the value of a symbol; of a specialised one, the number."""
    known = known_value(obj)
    return tr.symbol(obj) if known is None else tr.constant(known)
