"""0-d tensors whose integer the trace knows: sizes that a program puts into `torch.tensor`, counts that it sets.

Results of operators on them are known as well, and what is added in place, as long as nothing else writes to the
tensor; `item()` and conversions to an index return the original number, not an unbacked one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from framesmith_aten.layouts import share_storage
from framesmith_dynamo.values import operations
from framesmith_dynamo.values.tensors.tensor_object import TensorObject

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import TensorRef
    from framesmith_dynamo.values.base import Tracer, Value

#: Operators that are the same for 64-bit integers and Python's, for numbers such as sizes; divisions by positive
#: constants.
ARITHMETIC = frozenset({"+", "-", "*"})
DIVISIONS = frozenset({"//", "%"})


def note_item(tr: Tracer, tensor: Value | None, number: Value) -> None:
    """Record the item of a tensor, if it is a 0-d integer or bool tensor whose version counts writes."""
    if not isinstance(tensor, TensorObject) or tensor.fake.is_inference():
        return
    held = torch.bool if number.python_type() is bool else torch.int64
    if tensor.fake.dim() == 0 and tensor.fake.dtype is held:
        tr.facts.tensor_items[id(tensor.ref)] = (tensor, tensor.fake._version, number)


def item_of(tr: Tracer, value: Value) -> Value | None:
    """Return the item that a tensor is known to have; None of all others."""
    if not isinstance(value, TensorObject):
        return None
    known = tr.facts.tensor_items.get(id(value.ref))
    if known is None or known[1] != value.fake._version or _is_shared(tr.builder.inputs, value):
        return None
    return known[2]


def _is_shared(inputs: Sequence[TensorRef], value: TensorObject) -> bool:
    """Whether a tensor is an input, and another input shows its memory, which the trace may have written to.

    That a written input shares no memory at other calls is guarded, see `framesmith_dynamo.residual.shared_memory`.
    """
    real = value.ref.real
    if real is None:
        return False
    others = (ref.real for ref in inputs if ref is not value.ref)
    return any(other is not None and share_storage(real, other) for other in others)


def note_write(tr: Tracer, tensor: Value, op: str, operands: Sequence[Value], before: Value | None) -> None:
    """Record the item of a tensor behind a write in place: "=" of a number, or an operator to its item `before`."""
    if len(operands) != 1 or (number := _plain_int(operands[0])) is None:
        return
    if op == "=":
        note_item(tr, tensor, number)
    elif before is not None and _is_followed(op, before, number):
        made = operations.binary(tr, op, before, number)
        if made.is_symbolic() or abs(made.as_constant()) < 2**63:
            note_item(tr, tensor, made)


def note_result(tr: Tracer, result: Value, op: str, operands: Sequence[Value]) -> None:
    """Record the item of an operator's result, if those of all operands are known."""
    known = [item_of(tr, operand) or _plain_int(operand) for operand in operands]
    numbers = [number for number in known if number is not None]
    if len(numbers) < len(known):
        return
    if op in operations.COMPARE:
        note_item(tr, result, operations.compare(tr, op, numbers[0], numbers[1]))
    elif len(numbers) == 1 and op == "-":
        note_item(tr, result, numbers[0].unary_op(tr, op))
    elif len(numbers) == 2 and _is_followed(op, *numbers):
        number = operations.binary(tr, op, *numbers)
        if number.is_symbolic() or abs(number.as_constant()) < 2**63:
            note_item(tr, result, number)


def _is_followed(op: str, left: Value, right: Value) -> bool:
    """Whether Python's result is that of 64-bit integers; unknown for two symbols multiplied."""
    if op == "*" and left.is_symbolic() and right.is_symbolic():
        return False
    return op in ARITHMETIC or (op in DIVISIONS and not right.is_symbolic() and bool(right.as_constant() > 0))


def forget_item(tr: Tracer, tensor: TensorObject) -> None:
    """Forget a tensor's item, which may change from now on without a new version: through its `.data`."""
    tr.facts.tensor_items.pop(id(tensor.ref), None)


def forget_written(tr: Tracer, written: Sequence[torch.Tensor]) -> None:
    """Forget the items of tensors that a call writes to: of a list's tensors it may count no new version."""
    items = tr.facts.tensor_items
    for key, (tensor, _, _) in [*items.items()]:
        assert isinstance(tensor, TensorObject)
        if any(one.layout is torch.strided and share_storage(one, tensor.fake) for one in written):
            del items[key]


def _plain_int(value: Value) -> Value | None:
    return value if value.python_type() is int and value.can_be_constant() else None
