"""Constants: values whose object is known at compile time and immutable; conversion of objects to values.

`fold` calls pure functions of constants.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from framesmith_aten.symbolic import LARGEST_SYMBOL
from framesmith_dynamo.breaks import NOT_CONSTANT, GraphBreak
from framesmith_dynamo.python_behaviour import SHARED_INTEGERS
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.c_methods import C_METHODS, c_method
from framesmith_dynamo.values.errors import refuse, refuse_positional
from framesmith_dynamo.values.iteration.consuming import as_sequence
from framesmith_dynamo.values.iteration.iterators import SequenceIterator, tracked
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.operations import BINARY, COMPARE, UNARY
from framesmith_dynamo.values.wrap_registry import build, builds_type, wraps_type
from framesmith_guards.kinds.shapes import EXACT

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source

#: Types whose objects are constants at any source: immutable, compared by value or identity.
CONSTANT_TYPES: Final = (
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
#: Constants that guards do not compare; they have no source.
NUMERIC_INFO_TYPES: Final = (torch.finfo, torch.iinfo)

_NO_SINGLETONS: Final = frozenset({int, float, complex, str, bytes})
#: Folding gives up beyond this many items or characters, so that a trace builds no huge constants.
MAX_FOLDED: Final = 1_000_000


def raise_like(tr: Tracer, error: Exception) -> NoReturn:
    """Raise in the program the error raised by folding."""
    tr.raise_(type(error), *error.args)


def fold(
    tr: Tracer, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Value:
    """Call a pure function now; its exception becomes the program's.

    Arguments are real objects, or values, of which the real objects are passed. A result that is one of the arguments
    has that argument's value: `s.strip()` may be `s`.
    """
    keywords = kwargs or {}
    if not keywords and (computed := _computed(tr, function, args)) is not None:
        return computed
    given = [(arg, plain(arg)) for arg in (*args, *keywords.values()) if isinstance(arg, Value)]
    real = {id(arg): obj for arg, obj in given}
    try:
        result = function(
            *(real.get(id(arg), arg) for arg in args),
            **{name: real.get(id(arg), arg) for name, arg in keywords.items()},
        )
    except (GraphBreak, TracedRaise):
        raise
    except Exception as error:
        raise_like(tr, error)
    same = (arg for arg, obj in given if obj is result and arg.can_be_constant())
    return next(same, None) or build(tr, result)


#: Functions computed in the graph for symbolic numbers, by their names in guards.
COMPUTED_FUNCTIONS: Final[dict[Any, str]] = {function: name for name, function in EXACT.items()}


def _computed(tr: Tracer, function: Callable[..., Any], args: Sequence[Any]) -> Value | None:
    """Return the result of a function of numbers computed in the graph; None if none is symbolic or it must be
    known.
    """
    if not any(isinstance(arg, Value) and arg.is_symbolic() for arg in args) or function not in COMPUTED_FUNCTIONS:
        return None
    numbers = [arg.as_number() if isinstance(arg, ConstantValue) else arg for arg in args]
    if any(number is None or isinstance(number, Value) for number in numbers):
        return None
    return tr.compute_number(function, COMPUTED_FUNCTIONS[function], numbers)


def all_constant(args: Args, kwargs: Kwargs) -> bool:
    return all(arg.can_be_constant() for arg in args) and all(arg.can_be_constant() for arg in kwargs.values())


class ConstantValue(Value):
    """A number, string, dtype, None ... known at compile time."""

    python_types = CONSTANT_TYPES
    exact_operators = True
    __slots__ = ("value",)

    def __init__(self, value: Any, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def as_number(self) -> Any:
        """The number or symbol that graphs compute with; None for objects that no symbol can represent."""
        number = self.value
        if type(number) is float:
            return number if math.isfinite(number) else None
        return int(number) if type(number) in (int, bool) and abs(number) < LARGEST_SYMBOL else None

    def real_object(self) -> Any:
        return None if is_singleton(self.value) else self.value

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.value

    def as_proxy(self) -> Any:
        return self.value

    def describe(self) -> str:
        text = repr(self.value)
        return f"the constant {text if len(text) <= 60 else text[:57] + '...'}"

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None and not is_singleton(self.value):
            super().reconstruct(codegen)  # the caller's own object, not an equal one
        else:
            codegen.load_const(self.value)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        try:
            found = getattr(self.value, name)
        except AttributeError as error:
            raise_like(tr, error)
        if callable(found) and not isinstance(found, type):
            return BuiltinMethodValue(self, name)
        return tr.constant(found)

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        refuse_positional(tr, setattr, self, tr.constant(name), value)

    def delattr_(self, tr: Tracer, name: str) -> None:
        refuse_positional(tr, delattr, self, tr.constant(name))

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        tr.raise_(TypeError, f"'{type(self.value).__name__}' object is not callable")

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        special = C_METHODS.get((type(self.value), name))
        if special is not None:
            return special(tr, self, args, kwargs)
        method = self.getattr_(tr, name)
        if not isinstance(method, BuiltinMethodValue):
            return tr.call(method, args, kwargs)
        return fold(tr, _method(name), (self, *args), kwargs)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        return fold(tr, operator.getitem, (self, key))

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        refuse_positional(tr, operator.setitem, self, key, value)

    def delitem(self, tr: Tracer, key: Value) -> None:
        refuse_positional(tr, operator.delitem, self, key)

    def iter_(self, tr: Tracer) -> Value:
        self._items(tr)
        return tracked(tr, SequenceIterator(self))

    def size_now(self) -> int:
        return len(self.value)

    def item_now(self, tr: Tracer, index: int) -> Value:
        return tr.constant(self.value[index])

    def unpack(self, tr: Tracer) -> list[Value]:
        return [tr.constant(item) for item in self._items(tr)]

    def _items(self, tr: Tracer) -> list[Any]:
        if not isinstance(self.value, str | bytes):
            refuse_positional(tr, iter, self)
        return list(self.value)

    def len_(self, tr: Tracer) -> Value:
        return fold(tr, len, (self.value,))

    def bool_(self, tr: Tracer) -> bool:
        return bool(self.value)

    def contains(self, tr: Tracer, item: Value) -> Value:
        if isinstance(self.value, str | bytes) and not item.can_be_constant():
            raise GraphBreak(NOT_CONSTANT, f"{item.describe()} in {self.describe()}")
        return fold(tr, operator.contains, (self, item))

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if isinstance(self.value, str) and op == "%":
            return fold(tr, operator.mod, (self, other))
        if not isinstance(other, ConstantValue) or other.is_symbolic() or _is_too_large(op, self.value, other.value):
            return None
        try:
            return fold(tr, BINARY[op], (self, other))
        except TracedRaise as raised:
            if raised.value.python_type() is TypeError:
                return None  # `+` and `+=` have different messages
            raise

    def unary_op(self, tr: Tracer, op: str) -> Value:
        return fold(tr, UNARY[op], (self,))

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if not isinstance(other, ConstantValue) or other.is_symbolic():
            return None
        return fold(tr, COMPARE[op], (self.value, other.value))

    def hash_key(self, tr: Tracer) -> object:
        return self.value


def is_singleton(obj: Any) -> bool:
    """Whether all equal constants of this type and value are one object: CPython shares small integers."""
    return type(obj) not in _NO_SINGLETONS or (type(obj) is int and obj in SHARED_INTEGERS)


def _method(name: str) -> Callable[..., Any]:
    """Return the function that loads and calls a method at once: its messages name the class that has it."""

    def call(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = getattr(type(owner), name)
        if isinstance(found, MethodDescriptorType | WrapperDescriptorType):
            return found(owner, *args, **kwargs)
        return getattr(owner, name)(*args, **kwargs)

    return call


def _is_too_large(op: str, left: Any, right: Any) -> bool:
    """Whether folding would build something huge: the program then runs it itself."""
    if op == "*" and isinstance(left, str | bytes) != isinstance(right, str | bytes):
        text, count = (left, right) if isinstance(left, str | bytes) else (right, left)
        too_large = isinstance(count, int) and len(text) * count > MAX_FOLDED
    elif op in ("**", "<<") and type(left) is int and type(right) is int:
        bits = left.bit_length() * right if op == "**" else left.bit_length() + right
        too_large = bits > MAX_FOLDED
    else:
        too_large = False
    if too_large:
        raise GraphBreak(NOT_CONSTANT, f"{op} would build a constant of more than {MAX_FOLDED} items")
    return False


# Real objects from values


def plain(value: Value) -> Any:
    """Return the real object of a value made of constants throughout; containers are copies, for pure functions.

    Raises GraphBreak when a part of it is not known.
    """
    if value.can_be_constant():
        return value.as_constant()
    try:
        return value.as_plain()
    except RecursionError:
        raise GraphBreak(NOT_CONSTANT, f"{value.describe()}, which contains itself") from None


def plain_arguments(args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    """Return `plain` of each argument."""
    return [plain(arg) for arg in args], {name: plain(arg) for name, arg in kwargs.items()}


# Values from real objects


@builds_type(*CONSTANT_TYPES, *NUMERIC_INFO_TYPES)
def _build_constant(tr: Tracer, obj: Any) -> Value:
    return ConstantValue(obj)


@wraps_type(*(kind for kind in CONSTANT_TYPES if kind not in (str, bytes)))  # those: see strings.py
def wrap_constant(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap a constant found at a source, guarded by value."""
    if obj is None:
        tr.guard(source, "NONE_MATCH")
    elif type(obj) is bool:
        tr.guard(source, "BOOL_MATCH", obj)
    elif type(obj) in (int, float) and (symbolic := tr.number_input(obj, source)) is not None:
        return symbolic
    else:
        tr.guard(source, "EQUALS_MATCH", obj)
    return ConstantValue(obj, source=source)


@wraps_type(*NUMERIC_INFO_TYPES)
def wrap_folded(tr: Tracer, obj: Any, source: Source) -> Value:
    """Wrap an immutable object without a comparison that guards may use, guarded by identity."""
    tr.guard(source, "ID_MATCH", obj)
    return ConstantValue(obj, source=source)


# Methods that accept non-constant arguments


@c_method("join", str, bytes)
def _join(tr: Tracer, self: ConstantValue, args: Args, kwargs: Kwargs) -> Value:
    iterable = (args and type_lookup(args[0].python_type(), name) for name in ("__iter__", "__getitem__"))
    if len(args) != 1 or kwargs or not any(iterable):
        refuse(tr, type(self.value).join, (self, *args), kwargs)
    return fold(tr, lambda *items: self.value.join(items), as_sequence(tr, args[0]))
