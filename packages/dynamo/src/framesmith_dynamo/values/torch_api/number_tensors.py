"""Tensors in the place of numbers: torch's optimizers keep their numbers in 0-d tensors while they are compiled.

Note [Numbers in tensors]: eager mode reads a Python number off a tensor (`_get_value`, in Adafactor `item()`), a
compiler keeps the tensor, by torch's own convention. So in torch's code a 0-d tensor may stand where a number is meant:
`max` of it and a number is the tensor of the greater one, a list of such tensors is one of scalars, and an expression
that chooses by data chooses between two of them. The counts of steps are float32 tensors, and Python's numbers doubles:
float32 is used here as well, unless a branch depends on it. Then the trace starts again with doubles.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

import torch

from framesmith_dynamo.admission.owners import part_of_torch
from framesmith_dynamo.values.c_methods import c_method
from framesmith_dynamo.values.callables import Handler, handles, named
from framesmith_dynamo.values.containers import ListValue
from framesmith_dynamo.values.tensors.tensor import TensorValue, item_in
from framesmith_guards.needs import of_torch

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

_GET_VALUE: Final = of_torch("torch.optim.optimizer._get_value")


def is_expected(tr: Tracer) -> bool:
    """Whether the running function may keep numbers in tensors: it is torch's."""
    return part_of_torch(str(tr.globals.get("__name__"))) is not None


def stands_for_number(value: Value) -> bool:
    """Whether a value is a number, or a tensor that may stand for one."""
    if isinstance(value, TensorValue):
        return value.fake.dim() == 0 and value.fake.is_floating_point() and value.fake.grad_fn is None
    return value.is_constant() and value.python_type() in (int, float)


def greatest(tr: Tracer, op: str, one: Value, other: Value) -> Value:
    """Return the greater one (op ">") of two numbers, or the lesser one, as a tensor; the second where none is."""
    answer = tr.call_torch(operator.gt if op == ">" else operator.lt, (one, other), {})
    return chosen(tr, answer, one, other)


def chosen(tr: Tracer, condition: Value, one: Value, other: Value) -> Value:
    """Return the number that a condition chooses, as a tensor."""
    if not isinstance(one, TensorValue) and not isinstance(other, TensorValue):
        one = tr.call_torch(torch.scalar_tensor, (one,), {"dtype": tr.constant(torch.float64)})
    return tr.call_torch(torch.where, (condition, one, other), {})


@handles(_GET_VALUE)
def get_value(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """The number in a tensor: the tensor itself, or doubles of it where a branch depends on them."""
    given = named(tr, _GET_VALUE, args, kwargs, ("x",), 1)["x"]
    return _kept(tr, given) if isinstance(given, TensorValue) else given


@c_method("item", torch.Tensor)
def item(tr: Tracer, self: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """The number in a tensor; torch's optimizers that ask for it by this method are given what `get_value` gives."""
    if args or kwargs:
        return tr.call_torch("item", (self, *args), kwargs)
    module = part_of_torch(str(tr.globals.get("__name__"))) or ""
    in_optimizer = module.startswith("optim.") and stands_for_number(self)
    return _kept(tr, self) if in_optimizer else item_in(tr, self)


def _kept(tr: Tracer, tensor: TensorValue) -> Value:
    """The tensor in the place of its number, in the precision that the trace needs."""
    if tensor.fake.dtype == torch.float64:
        return tensor
    tr.facts.has_narrow_numbers |= not tr.facts.wide_numbers
    return tensor.call_method(tr, "double", (), {}) if tr.facts.wide_numbers else tensor


def _of_scalars(name: str) -> Handler:
    """Return the handler of a function of lists whose last argument are scalars."""
    function = getattr(torch, name)

    def handler(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        last = args[-1] if len(args) == 4 and not kwargs else None
        if isinstance(last, ListValue) and is_expected(tr):
            items = last.unpack(tr)
            if items and all(isinstance(one, TensorValue) and stands_for_number(one) for one in items):
                args = (*args[:-1], tr.call_torch(torch.stack, (last,), {}))
        return tr.call_torch(function, args, kwargs)

    return handler


for _name in ("_foreach_addcdiv_", "_foreach_addcmul_", "_foreach_addcdiv", "_foreach_addcmul"):
    handles(getattr(torch, _name))(_of_scalars(_name))
