"""Subscripts of tensors with symbolic integers: torch would specialise them, `select` does not.

The order in which integers of a key are applied is irrelevant: each has a dimension of its own, and tensors in the key
are applied after all integers, slices and Nones have made a view.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.symbolic import is_unbacked
from framesmith_dynamo.values.constants.symbolic import SymbolicNumber
from framesmith_dynamo.values.containers import ListValue, TupleValue
from framesmith_dynamo.values.containers.slices import SliceValue
from framesmith_dynamo.values.tensors.scalar_tensors import item_of
from framesmith_dynamo.values.tensors.tensor_object import TensorObject
from framesmith_guards.torch_adapter import aten

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import fx

    from framesmith_dynamo.values.base import Tracer, Value

#: Dtypes of masks, which consume as many dimensions as they have.
MASKS: Final = (torch.bool, torch.uint8)


def selected(tr: Tracer, tensor: Value, dims: int, key: Value) -> tuple[Value, Value | None]:
    """Return the tensor, of `dims` dimensions, selected by a key's symbols, and the rest of the key: None if empty."""
    items = [_decided(tr, item) for item in (key.unpack(tr) if isinstance(key, TupleValue) else [key])]
    key = TupleValue(items) if isinstance(key, TupleValue) else items[0]
    symbols = [at for at, item in enumerate(items) if _is_symbol(item)]
    if any(is_unbacked(items[at].number) for at in symbols) and _leads_to_input(tensor):  # type: ignore[attr-defined]
        return tensor, key
    lengths = _dims_consumed(tr, items, dims) if symbols else None
    if lengths is None:
        return tensor, key
    rest: list[Value] = [item for at, item in enumerate(items) if at not in symbols]
    if rest and all(map(_is_basic, rest)):  # all of it first: the stride of a new dimension is its right neighbour's
        whole = SliceValue(*[tr.constant(None)] * 3)
        masked = [whole if at in symbols else item for at, item in enumerate(items)]
        tensor = tr.call_torch(operator.getitem, (tensor, TupleValue(masked)), {})
        lengths = [_rank_after(item, length) for item, length in zip(masked, lengths, strict=True)]
        rest = []
    for at in reversed(symbols):
        dim = sum(lengths[:at])
        tensor = tr.call_torch("select", (tensor, tr.constant(dim), _checked_index(tr, tensor, dim, items[at])), {})
    return tensor, TupleValue(rest) if rest else None


def _checked_index(tr: Tracer, tensor: Value, dim: int, index: Any) -> Value:
    """Return a symbol as an index, guarded to be in range; raises the program's IndexError otherwise.

    Fakes of torch 2.11 do not check the range of an index into a symbolic size.
    """
    if not isinstance(tensor, TensorObject) or is_unbacked(index.number):
        return index  # type: ignore[no-any-return]
    size = tensor.fake.shape[dim]
    if not -size <= index.number < size:
        where = f"dimension {dim} with size {int(size)}"
        tr.raise_(IndexError, f"index {int(index.number)} is out of bounds for {where}")
    return index  # type: ignore[no-any-return]


def read_at(tr: Tracer, tensor: Any, indices: Sequence[Any]) -> Value:
    """Return the elements, or parts, of a tensor at indices given by tensors."""
    return tr.call_torch(aten.index.Tensor, (tensor, [*indices]), {})


def is_read(node: fx.Node) -> bool:
    """Whether the node was recorded by `read_at`."""
    return node.target is aten.index.Tensor


def gathered(tr: Tracer, tensor: TensorObject, key: Value) -> Value | None:
    """Return `tensor[key]` if the key consists of integers, with 0-d tensors among them; None of other keys.

    Otherwise torch reads the items of these tensors; in a function of single elements they are indices. Integers that
    index the result of such a read are indices as well.
    """
    items = list(key.unpack(tr)) if isinstance(key, TupleValue) else [key]
    within = tensor.ref.is_used and is_read(tensor.ref.node)
    if len(items) > tensor.fake.dim() or not all(map(_is_index, items)):
        return None
    if not within and not any(isinstance(item, TensorObject) for item in items):
        return None
    options = {"dtype": tr.constant(torch.int64), "device": tr.constant(tensor.fake.device)}
    indices = [
        item if isinstance(item, TensorObject) else tr.call_torch(torch.full, (tr.constant(()), item), options)
        for item in items
    ]
    return read_at(tr, tensor, indices)


def _is_index(item: Value) -> bool:
    if isinstance(item, TensorObject):
        fake = item.fake
        return fake.dim() == 0 and fake.dtype not in MASKS and not fake.is_floating_point() and not fake.is_complex()
    return item.python_type() is int


def _decided(tr: Tracer, item: Value) -> Value:
    """Return an item of a key; a condition on symbols, which torch does not take for a bool, is decided.

    Ends of a slice that are 0-d tensors become their items, if known.
    """
    if isinstance(item, SliceValue) and tr.facts.tensor_items:
        return SliceValue(*(item_of(tr, part) or part for part in item.referents()))
    return tr.constant(item.bool_(tr)) if item.is_symbolic() and item.python_type() is bool else item


def _is_symbol(item: Value) -> bool:
    return isinstance(item, SymbolicNumber) and isinstance(item.number, torch.SymInt) and not item.is_constant()


def _leads_to_input(tensor: Value) -> bool:
    """Whether gradients of views of the tensor are those of an input.

    Such a view is made before the graph that reads it, where the unbacked number is not available.
    """
    if not isinstance(tensor, TensorObject):
        return False
    builder, fake = tensor.ref.builder, tensor.fake
    recorded = fake.requires_grad and torch.is_grad_enabled()
    return recorded and (builder.is_input(fake) or builder.is_view_of_input(fake))


def _is_basic(item: Value) -> bool:
    """Whether an item of a key makes a view."""
    return isinstance(item, SliceValue) or item.python_type() in (int, type(None), type(...))


def _rank_after(item: Value, length: int) -> int:
    """Return the number of dimensions after a basic index, of `length` before."""
    return {int: 0, type(None): 1}.get(item.python_type(), length)


def _dims_consumed(tr: Tracer, items: Sequence[Value], dims: int) -> list[int] | None:
    """Return the number of dimensions that each item of a key consumes; None of an invalid or unusual key."""
    lengths = [_dims_of(tr, item) for item in items]
    wide = [at for at, item in enumerate(items) if item.python_type() is type(...)]
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths) or len(wide) > 1 or sum(known) > dims:
        return None
    if wide:
        known[wide[0]] = dims - sum(known)
    return known


def _dims_of(tr: Tracer, item: Value) -> int | None:
    if isinstance(item, TensorObject):
        return item.fake.dim() if item.fake.dtype in MASKS else 1
    if isinstance(item, ListValue | TupleValue):
        return _dims_of_list(item.unpack(tr))
    cls = item.python_type()
    if isinstance(item, SliceValue) or (cls is int and item.can_be_constant()):
        return 1
    return 0 if cls in (bool, type(None), type(...)) else None


def _dims_of_list(items: Collection[Value]) -> int | None:
    """Return the same for a list of numbers, which is a tensor of indices; other lists are unusual."""
    return 1 if items and all(item.python_type() is int for item in items) else None
