"""Tensors: a fake with dtype, device and shape, and a graph node that computes the data.

Methods and operators are recorded in the graph; reading data breaks. See `tensor_object` for the tensor as a Python
object.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.checks.plain_tensors import OTHER_LAYOUT, is_inference_leaf, why_no_fake
from framesmith_dynamo.breaks import DATA_DEPENDENT, DATA_DEPENDENT_BRANCH, UNSUPPORTED_CALL, GraphBreak, register_break
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.c_methods import C_METHODS, CMethod, c_method
from framesmith_dynamo.values.constants.constant import raise_like
from framesmith_dynamo.values.containers import new_list
from framesmith_dynamo.values.operations import BINARY, COMPARE, INPLACE, UNARY
from framesmith_dynamo.values.tensors.scalar_tensors import forget_item, item_of, note_result, note_write
from framesmith_dynamo.values.tensors.set_data import set_data
from framesmith_dynamo.values.tensors.storage_offsets import guarded_offsets
from framesmith_dynamo.values.tensors.subscripts import gathered, selected
from framesmith_dynamo.values.tensors.tensor_object import TENSOR_ATTRIBUTE, TensorObject, is_plain_parameter_class
from framesmith_dynamo.values.tensors.tensor_tables import (
    ASKED_IN_BODY,
    AUTOGRAD_STATE,
    BREAKING_METHODS,
    FOLDED_METHODS,
    STORAGE_ACCESS,
)
from framesmith_dynamo.values.wrap_registry import Family, wraps_family
from framesmith_guards.values.tensors import PLAIN_TYPES

if TYPE_CHECKING:
    from framesmith_guards import Source

TENSOR_SUBCLASS = register_break(
    "tensor-subclass",
    what="a tensor subclass is used",
    why="its __torch_function__ and __torch_dispatch__ may run any code",
    hint="use plain tensors inside the compiled function",
)
MEMORYLESS = register_break(
    "tensor-without-memory",
    what="a tensor of zeros that has no memory is used",
    why="autograd gives such gradients (that of `sgn`); a kernel reads memory",
    hint="clone it before",
)
OTHER_TENSOR = register_break(
    OTHER_LAYOUT,
    what="a tensor is used or made that is not strided memory of plain numbers: sparse, nested, quantized, mkldnn",
    why="torch's fake tensors do not support such a tensor, so a graph can neither take nor make one",
    hint="convert to a dense tensor (`to_dense()`, `dequantize()`, `to_padded_tensor()`) outside the compiled function",
)
NEGATIVE_SIZE = register_break(
    "tensor-of-negative-size",
    what="an empty tensor one of whose sizes is negative is used",
    why="eager mode makes one (`expand(-4, -1)` of no elements), and then rejects nearly every operation on it",
    hint="give expand() sizes that are not negative",
)

_NUMBERS = (int, float, complex, bool)


def is_operand(value: Value) -> bool:
    """Whether a tensor operator accepts this value: a tensor or a Python number."""
    return isinstance(value, TensorValue) or (value.can_be_constant() and issubclass(value.python_type(), _NUMBERS))


class TensorValue(TensorObject):
    """A tensor as an operand."""

    python_types = PLAIN_TYPES
    __slots__ = ()

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        tr.raise_(TypeError, f"'{self.cls.__name__}' object is not callable")

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        try:
            return self.call_method_first(tr, name, args, kwargs)
        except GraphBreak as broken:
            broken.before_effects = False  # the caller of the method may have had effects
            raise

    def call_method_first(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if tr.facts.body.level:
            self.check_asked(tr, name)
        special = C_METHODS.get((torch.Tensor, name))
        if _is_misused(name, args, kwargs):
            raise GraphBreak(UNSUPPORTED_CALL, f"{name} of {self.describe()} with these arguments")
        if special is not None:
            return special(tr, self, args, kwargs)
        kind = BREAKING_METHODS.get(name)
        if kind is not None:
            raise GraphBreak(kind, f"{name}() of {self.describe()}", before_effects=True)
        folded = FOLDED_METHODS.get(name)
        if folded is not None and all(_folds(v) for v in (*args, *kwargs.values())):
            try:
                found = folded(self.fake, *map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})
            except (IndexError, TypeError) as error:  # no such dimension: torch's own error
                raise_like(tr, error)
            return tr.constant(found)
        if not callable(getattr(torch.Tensor, name, None)):
            return tr.call(self.getattr_(tr, name), args, kwargs)
        return tr.call_torch(name, (self, *args), kwargs)

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "data":
            forget_item(tr, self)
        return super().getattr_(tr, name)

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        if name == "data" and isinstance(value, TensorValue):
            set_data(tr, self, value)
        else:
            super().setattr_(tr, name, value)

    # Items

    def getitem(self, tr: Tracer, key: Value) -> Value:
        if tr.facts.body.elementwise_subscripts and (element := gathered(tr, self, key)) is not None:
            return element
        tensor, rest = selected(tr, self, self.fake.dim(), key)
        return tensor if rest is None else tr.call_torch(operator.getitem, (tensor, rest), {})

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        tensor, rest = selected(tr, self, self.fake.dim(), key)
        tr.call_torch(operator.setitem, (tensor, tr.constant(...) if rest is None else rest, value), {})

    def iter_(self, tr: Tracer) -> Value:
        if self.fake.dim() == 0:
            tr.raise_(TypeError, "iteration over a 0-d tensor")
        return tr.call_torch(torch.unbind, (self,), {}).iter_(tr)

    def unpack(self, tr: Tracer) -> list[Value]:
        if self.fake.dim() == 0:
            tr.raise_(TypeError, "iteration over a 0-d tensor")
        return tr.call_torch(torch.unbind, (self,), {}).unpack(tr)

    def len_(self, tr: Tracer) -> Value:
        if self.fake.dim() == 0:
            tr.raise_(TypeError, "len() of a 0-d tensor")
        return tr.constant(self.fake.shape[0])

    def contains(self, tr: Tracer, item: Value) -> Value:
        raise GraphBreak(DATA_DEPENDENT_BRANCH, f"`in` on {self.describe()}")

    def bool_(self, tr: Tracer) -> bool:
        if tr.facts.body.level:
            raise GraphBreak(ASKED_IN_BODY, f"truth of {self.describe()}")
        if self.fake.numel() > 1:
            tr.raise_(RuntimeError, "Boolean value of Tensor with more than one value is ambiguous")
        known = item_of(tr, self)
        if known is not None:
            return known.bool_(tr)
        raise GraphBreak(DATA_DEPENDENT_BRANCH, f"truth of {self.describe()}")

    def hash_key(self, tr: Tracer) -> object:
        return self

    # Operators

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._computed(tr, op, BINARY[op], self, other) if is_operand(other) else None

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._computed(tr, op, BINARY[op], other, self) if is_operand(other) else None

    def _computed(self, tr: Tracer, op: str, function: Any, *operands: Value) -> Value:
        """Return the result of an operator, and record its item if known."""
        result = tr.call_torch(function, operands, {})
        if tr.facts.tensor_items:
            note_result(tr, result, op, operands)
        return result

    def inplace_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        return self._written(tr, INPLACE[op], op, (other,), {}) if is_operand(other) else None

    def _written(self, tr: Tracer, target: Any, op: str, args: Args, kwargs: Kwargs) -> Value:
        """Return the result of a call that writes to the tensor, and record the tensor's item if known."""
        before = item_of(tr, self)
        result = tr.call_torch(target, (self, *args), kwargs)
        if not kwargs:
            note_write(tr, self, op, args, before)
        return result

    def unary_op(self, tr: Tracer, op: str) -> Value:
        return self._computed(tr, op, UNARY[op], self)

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        if is_operand(other):
            return self._computed(tr, op, COMPARE[op], self, other)
        if op in ("==", "!=") and other.can_be_constant():
            return tr.constant(op == "!=")  # torch rejects the operand, and identity decides
        return None


#: The numbers of arguments of the special methods implemented here, and those whose first argument is a name.
_ARITY: Final = {
    **dict.fromkeys(("__len__", "__iter__", "__bool__", "__hash__", "__int__", "__float__", "__index__"), 0),
    **dict.fromkeys(("__getitem__", "__contains__", "__getattribute__", "__delattr__"), 1),
    **dict.fromkeys(("__setitem__", "__setattr__"), 2),
}
_BY_NAME: Final = frozenset({"__getattribute__", "__setattr__", "__delattr__"})


def _is_misused(name: str, args: Args, kwargs: Kwargs) -> bool:
    """Whether a special method gets arguments that Python rejects before the call."""
    if name not in _ARITY:
        return False
    return bool(kwargs) or len(args) != _ARITY[name] or (name in _BY_NAME and args[0].python_type() is not str)


def _folds(value: Value) -> bool:
    return value.can_be_constant() or isinstance(value, TensorValue)


def _plain(value: Value) -> Any:
    return value.fake if isinstance(value, TensorValue) else value.as_constant()


@c_method("type", torch.Tensor)
def _type_method(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs:
        return tr.call_torch("type", (self, *args), kwargs)
    return tr.constant(self.fake.type())


def _writing(name: str, op: str) -> CMethod:
    return lambda tr, self, args, kwargs: self._written(tr, name, op, args, kwargs)


for _name, _op in {"fill_": "=", "add_": "+", "sub_": "-", "mul_": "*"}.items():
    c_method(_name, torch.Tensor)(_writing(_name, _op))


@c_method("zero_", torch.Tensor)
def _zero(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    result = tr.call_torch("zero_", (self, *args), kwargs)
    note_write(tr, self, "=", (tr.constant(0), *args), None)
    return result


@c_method("storage_offset", torch.Tensor)
def _storage_offset(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`storage_offset()`, guarded for the inputs whose memory the tensor shares.

    Diagonals without elements have their tensor's offset, which fakes of symbolic sizes do not know.
    """
    if self.fake.fake_mode.shape_env is not None and self.fake.numel() == 0:  # type: ignore[attr-defined]
        raise GraphBreak(STORAGE_ACCESS, f"storage_offset() of {self.describe()}, which has no elements")
    skipped = [0, *guarded_offsets(tr, self.ref.builder, self.fake)][-1]
    offset = int(self.fake.storage_offset(*args, **kwargs))
    return tr.constant(offset + skipped // self.fake.element_size())


def item_in(tr: Tracer, tensor: TensorValue) -> Value:
    """Return the tensor's one item."""
    return item_of(tr, tensor) or tr.call_torch("item", (tensor,), {})


def _converted(convert: type, *, whole: bool = False) -> CMethod:
    """`int(tensor)` and the like: the tensor's one item, converted; `whole`: a float is an error."""

    def method(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        if self.fake.numel() != 1 or self.fake.dtype.is_complex or (whole and self.fake.dtype.is_floating_point):
            raise GraphBreak(DATA_DEPENDENT, f"{convert.__name__}() of {self.describe()}")
        return tr.call(tr.constant(convert), [item_in(tr, self)], {})

    return method


c_method("__int__", torch.Tensor)(_converted(int))
c_method("__float__", torch.Tensor)(_converted(float))
c_method("__index__", torch.Tensor)(_converted(int, whole=True))

#: Tensors of more elements are not converted to lists of numbers in a graph.
MAX_LISTED: Final = 64


@c_method("tolist", torch.Tensor)
def _tolist(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs or self.fake.numel() > MAX_LISTED or self.fake.dtype.is_complex:
        raise GraphBreak(DATA_DEPENDENT, f"tolist() of {self.describe()}")
    if self.fake.dim() == 0:
        return item_in(tr, self)
    items = [item.call_method(tr, "tolist", (), {}) for item in self.unpack(tr)]
    return new_list(tr, items)


@c_method("new", torch.Tensor)
def _new_tensor_like(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreak(TENSOR_ATTRIBUTE, f"Tensor.new on {self.describe()}; use new_zeros, new_full ...")


@c_method("__setitem__", torch.Tensor)
def _setitem_method(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    self.setitem(tr, *args)
    return tr.constant(None)


@c_method("__setattr__", torch.Tensor)
def _setattr_method(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    self.setattr_(tr, args[0].as_constant(), args[1])
    return tr.constant(None)


@c_method("__delattr__", torch.Tensor)
def _delattr_method(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    self.delattr_(tr, args[0].as_constant())
    return tr.constant(None)


for _name, _meaning in {
    "__len__": lambda tr, self, args, kwargs: self.len_(tr),
    "__iter__": lambda tr, self, args, kwargs: self.iter_(tr),
    "__getitem__": lambda tr, self, args, kwargs: self.getitem(tr, args[0]),
    "__bool__": lambda tr, self, args, kwargs: tr.constant(self.bool_(tr)),
    "__contains__": lambda tr, self, args, kwargs: self.contains(tr, args[0]),
    "__getattribute__": lambda tr, self, args, kwargs: self.getattr_(tr, args[0].as_constant()),
    "__hash__": lambda tr, self, args, kwargs: self.unsupported("hash()"),
}.items():
    c_method(_name, torch.Tensor)(_meaning)


def _is_tensor(obj: Any) -> bool:
    return issubclass(type(obj), torch.Tensor)


@wraps_family(Family.TENSOR, _is_tensor)
def wrap_tensor(tr: Tracer, obj: torch.Tensor, source: Source) -> Value:
    """Wrap a tensor input. Subclasses break, except for Parameter and its own."""
    if type(obj) not in TensorValue.python_types and not is_plain_parameter_class(type(obj)):
        raise GraphBreak(TENSOR_SUBCLASS, f"{type(obj).__qualname__} at {source.name}")
    if obj._is_zerotensor():
        raise GraphBreak(MEMORYLESS, source.name)
    if (kind := why_no_fake(obj)) is not None:
        raise GraphBreak(OTHER_TENSOR, f"{kind} at {source.name}")
    if is_inference_leaf(obj) and torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
        raise GraphBreak(AUTOGRAD_STATE, f"{source.name} was made in inference mode and requires a gradient")
    if min(obj.shape, default=0) < 0:
        raise GraphBreak(NEGATIVE_SIZE, f"{tuple(obj.shape)} of {source.name}")
    hidden = next((name for name in vars(obj) if hasattr(type(obj), name)), None)
    if hidden is not None:
        raise GraphBreak(TENSOR_ATTRIBUTE, f"{hidden!r}, which torch.Tensor has too, of {source.name}")
    return tr.tensor_input(obj, source)
