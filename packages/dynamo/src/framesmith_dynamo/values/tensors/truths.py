"""Truth of tensors' data: conditions that the graph computes, as tensors and as numbers of the trace."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from framesmith_dynamo.breaks import DATA_DEPENDENT_BRANCH, GraphBreak
from framesmith_dynamo.values.constants.symbolic import SymbolicNumber
from framesmith_dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Tracer, Value


def truth(tr: Tracer, value: Value) -> Value:
    """Return `bool(value)`; of a tensor's data a symbolic one."""
    try:
        return tr.constant(value.bool_(tr))
    except GraphBreak as broken:
        if broken.kind is not DATA_DEPENDENT_BRANCH or not is_data(value):
            raise
    condition = condition_of(tr, value)
    number = condition.call_method(tr, "item", (), {})
    if isinstance(number, SymbolicNumber):
        tr.facts.truths[number.number.node.expr] = condition
    return number


def negated(tr: Tracer, value: Value) -> Value:
    """Return `not value`."""
    found = truth(tr, value)
    if not isinstance(found, SymbolicNumber) or found.is_constant():
        return tr.constant(not found.as_constant())
    return truth(tr, tr.call_torch(torch.logical_not, (condition_of(tr, found),), {}))


def is_data(value: Value) -> bool:
    """Whether a value's truth may be known only when the graph runs."""
    if isinstance(value, TensorValue):
        return value.fake.numel() == 1 and value.fake.layout is torch.strided
    return isinstance(value, SymbolicNumber)


def condition_of(tr: Tracer, value: Value) -> Value:
    """Return the truth of data as a 0-d tensor of bools."""
    if isinstance(value, TensorValue):
        found = tr.call_torch(operator.ne, (value, tr.constant(0)), {})
        return found.call_method(tr, "reshape", (tr.constant(()),), {}) if value.fake.dim() else found
    assert isinstance(value, SymbolicNumber)
    known = tr.facts.truths.get(value.number.node.expr)
    if known is not None:
        return known
    if isinstance(value.number, torch.SymBool):
        return tr.call_torch(torch.scalar_tensor, (value,), {"dtype": tr.constant(torch.bool)})
    dtype = torch.float64 if isinstance(value.number, torch.SymFloat) else torch.int64
    made = tr.call_torch(torch.scalar_tensor, (value,), {"dtype": tr.constant(dtype)})
    return tr.call_torch(operator.ne, (made, tr.constant(0)), {})
