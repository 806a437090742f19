"""Tensors made of numbers, some symbolic: `torch.tensor([n, 1.0])` and its kin.

torch reads the numbers while it makes the tensor, which would specialise a symbol. The graph makes 0-d tensors of the
symbols instead and stacks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.constants.constant import ConstantValue
from framesmith_dynamo.values.containers.sequence import SequenceValue
from framesmith_dynamo.values.tensors.scalar_tensors import note_item
from framesmith_dynamo.values.tensors.tensor import TensorValue

#: The dtype of each number before conversion to the tensor's dtype, in which it might not fit: as in `torch.tensor`.
WIDEST: Final[dict[type, torch.dtype]] = {int: torch.int64, float: torch.float64}


@handles(torch.tensor)
def tensor(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.tensor(data, *, dtype, device, requires_grad, pin_memory)`."""
    made = _made(tr, {"data": args[0]} if args else {}, kwargs) if len(args) < 2 else None
    made = tr.call_torch(torch.tensor, args, kwargs) if made is None else made
    if len(args) == 1 and args[0].python_type() is int and args[0].can_be_constant():
        note_item(tr, made, args[0])
    return made


@handles(torch.as_tensor)
def as_tensor(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`torch.as_tensor(data, dtype, device)`."""
    made = _made(tr, dict(zip(("data", "dtype", "device"), args, strict=False)), kwargs) if len(args) <= 3 else None
    return tr.call_torch(torch.as_tensor, args, kwargs) if made is None else made


def _made(tr: Tracer, given: dict[str, Value], kwargs: Kwargs) -> Value | None:
    """Return a tensor stacked from 0-d ones; None where torch can make it itself."""
    given |= {name: value for name, value in kwargs.items() if not value.is_none()}
    data = given.pop("data", None)
    if data is None or set(given) - {"dtype", "device"}:
        return None
    numbers = list(_numbers(data))
    if not any(number is not None and number.is_symbolic() for number in numbers):
        return None
    kinds = {type(None) if number is None else number.python_type() for number in numbers}
    if not kinds <= set(WIDEST):
        return None
    widest = WIDEST[float if float in kinds else int]
    dtype = torch.get_default_dtype() if widest is torch.float64 else widest
    if "dtype" in given:
        dtype = given["dtype"].as_constant()
    if dtype is not torch.int64 and not dtype.is_floating_point:
        return None  # torch raises for numbers that do not fit
    if dtype is torch.int64 and widest is not torch.int64:
        return None
    device = {name: value for name, value in given.items() if name == "device"}
    made = _stacked(tr, data, {"dtype": tr.constant(widest), **device})
    return made if made is None or dtype is widest else tr.call_torch("to", [made, tr.constant(dtype)], {})


def _numbers(data: Value) -> Iterator[ConstantValue | None]:
    """Return the numbers in nested lists and tuples; None for other data."""
    if isinstance(data, SequenceValue):
        for item in data.items:
            yield from _numbers(item)
    else:
        yield data if isinstance(data, ConstantValue) else None


def _stacked(tr: Tracer, data: Value, kwargs: dict[str, Value]) -> Value | None:
    """Return None for lists of different lengths: torch raises the error."""
    if not isinstance(data, SequenceValue):
        return tr.call_torch(torch.scalar_tensor, [data], kwargs)
    parts: list[Any] = [_stacked(tr, item, kwargs) for item in data.items]
    shapes = {part.fake.shape if isinstance(part, TensorValue) else None for part in parts}
    return tr.call_torch(torch.stack, [parts], {}) if len(shapes) == 1 and None not in shapes else None
