"""Items of tensors by integers that are symbols: torch asks them for a number, `select` takes them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeGuard

import torch

from framesmith_aten.symbolic import is_told_by_data
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.constants.symbolic import SymbolicNumber
from framesmith_dynamo.values.containers import TupleValue
from framesmith_dynamo.values.containers.slices import SliceValue
from framesmith_dynamo.values.tensors.tensor_object import TensorObject

#: Tensors of these types are masks as indices, and stand for as many dimensions as they have.
MASKS: Final = (torch.bool, torch.uint8)


def without_symbols(tr: Tracer, tensor: Value, key: Value) -> tuple[Value, Value | None]:
    """(what is selected of the tensor by the symbolic integers in the key, the rest of the key or None).

    The tensor and the key themselves where there are none, and where torch has to say what it makes of the key. Torch
    takes integers first, whatever else is in the key: `x[n, places]` is `x.select(0, n)[places]`.
    """
    items = key.unpack(tr) if type(key) is TupleValue else [key]
    if not any(map(_is_symbol, items)):
        return tensor, key
    if not isinstance(tensor, TensorObject) or (any(map(_is_told_by_data, items)) and _leads_to_input(tensor)):
        return tensor, key
    dims = _dims(items, tensor.fake.dim())
    if dims is None:
        return tensor, key
    for item, dim in reversed([*zip(items, dims, strict=True)]):  # from the last on: those before keep their places
        if _is_symbol(item):
            tensor = tr.call_torch("select", (tensor, tr.constant(dim), item), {})
    rest = [item for item in items if not _is_symbol(item)]
    return tensor, TupleValue(rest) if rest else None


def _is_symbol(item: Value) -> TypeGuard[SymbolicNumber]:
    return isinstance(item, SymbolicNumber) and item.python_type() is int


def _is_told_by_data(item: Value) -> bool:
    return _is_symbol(item) and is_told_by_data(item.number)


def _leads_to_input(tensor: TensorObject) -> bool:
    """Whether gradients of views of the tensor are those of an input.

    Such a view is made before the graph that reads it, and by then nobody knows what the data tell.
    """
    builder, fake = tensor.ref.builder, tensor.fake
    recorded = fake.requires_grad and torch.is_grad_enabled()
    return recorded and (builder.is_input(fake) or builder.is_view_of_input(fake))


def _dims(items: Sequence[Value], dim: int) -> list[int] | None:
    """For each item of a key the first of the tensor's dimensions that it stands for; None where torch has to say."""
    taken = [_taken(item) for item in items]
    known = [count for count in taken if count is not None]
    whole = [at for at, item in enumerate(items) if _is_ellipsis(item)]
    if len(whole) > 1 or len(known) + len(whole) < len(taken) or sum(known) > dim:
        return None
    counts = [dim - sum(known) if count is None else count for count in taken]
    return [sum(counts[:at]) for at in range(len(counts))]


def _is_ellipsis(item: Value) -> bool:
    return item.python_type() is type(...)


def _taken(item: Value) -> int | None:
    """How many dimensions an item stands for; None of `...`, and of what torch makes a tensor of first."""
    if isinstance(item, TensorObject):
        return item.fake.dim() if item.fake.dtype in MASKS else 1
    if isinstance(item, SliceValue):
        return 1
    return {int: 1, bool: 0, type(None): 0}.get(item.python_type())
