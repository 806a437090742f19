"""Keys of tensors that hold integers which change between calls: torch asks them for their number, `select` does not.

In what order the integers of a key are taken does not matter: each has a dimension of its own, and tensors in the key
are looked at when all integers, slices and Nones have made a view.
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

#: Types of tensors that are masks, of as many dimensions as they have.
MASKS: Final = (torch.bool, torch.uint8)


def selected(tr: Tracer, tensor: Value, dims: int, key: Value) -> tuple[Value, Value | None]:
    """The tensor, of so many dimensions, selected by a key's symbols, and what is left of the key: None for nothing."""
    items = [_decided(tr, item) for item in (key.unpack(tr) if isinstance(key, TupleValue) else [key])]
    key = TupleValue(items) if isinstance(key, TupleValue) else items[0]
    symbols = [at for at, item in enumerate(items) if _is_symbol(item)]
    if any(is_unbacked(items[at].number) for at in symbols) and _leads_to_input(tensor):  # type: ignore[attr-defined]
        return tensor, key
    lengths = _lengths(tr, items, dims) if symbols else None
    if lengths is None:
        return tensor, key
    rest: list[Value] = [item for at, item in enumerate(items) if at not in symbols]
    if rest and all(map(_is_basic, rest)):  # all of it first: the stride of a new dimension is its right neighbour's
        whole = SliceValue(*[tr.constant(None)] * 3)
        masked = [whole if at in symbols else item for at, item in enumerate(items)]
        tensor = tr.call_torch(operator.getitem, (tensor, TupleValue(masked)), {})
        lengths = [_left(item, length) for item, length in zip(masked, lengths, strict=True)]
        rest = []
    for at in reversed(symbols):
        dim = sum(lengths[:at])
        tensor = tr.call_torch("select", (tensor, tr.constant(dim), _there(tr, tensor, dim, items[at])), {})
    return tensor, TupleValue(rest) if rest else None


def _there(tr: Tracer, tensor: Value, dim: int, place: Any) -> Value:
    """A symbol as an index, guarded to be within the dimension; the program's IndexError where it is not.

    Fakes of torch 2.11 do not look whether it is, nor whether a number is, of symbolic sizes.
    """
    if not isinstance(tensor, TensorObject) or is_unbacked(place.number):
        return place  # type: ignore[no-any-return]
    size = tensor.fake.shape[dim]
    if not -size <= place.number < size:
        where = f"dimension {dim} with size {int(size)}"
        tr.raise_(IndexError, f"index {int(place.number)} is out of bounds for {where}")
    return place  # type: ignore[no-any-return]


def read_at(tr: Tracer, tensor: Any, places: Sequence[Any]) -> Value:
    """The elements, or parts, of a tensor at places that tensors hold."""
    return tr.call_torch(aten.index.Tensor, (tensor, [*places]), {})


def is_read(node: fx.Node) -> bool:
    """Whether the node is such a read."""
    return node.target is aten.index.Tensor


def picked(tr: Tracer, tensor: TensorObject, key: Value) -> Value | None:
    """`tensor[key]` where all of the key is integers, and tensors without dimensions among them; None of other keys.

    Elsewhere torch asks these tensors for their numbers; in a function of single elements they are places. Integers
    that read a part which was read so are places as well.
    """
    items = list(key.unpack(tr)) if isinstance(key, TupleValue) else [key]
    within = tensor.ref.is_used and is_read(tensor.ref.node)
    if len(items) > tensor.fake.dim() or not all(map(_is_index, items)):
        return None
    if not within and not any(isinstance(item, TensorObject) for item in items):
        return None
    options = {"dtype": tr.constant(torch.int64), "device": tr.constant(tensor.fake.device)}
    places = [
        item if isinstance(item, TensorObject) else tr.call_torch(torch.full, (tr.constant(()), item), options)
        for item in items
    ]
    return read_at(tr, tensor, places)


def _is_index(item: Value) -> bool:
    if isinstance(item, TensorObject):
        fake = item.fake
        return fake.dim() == 0 and fake.dtype not in MASKS and not fake.is_floating_point() and not fake.is_complex()
    return item.python_type() is int


def _decided(tr: Tracer, item: Value) -> Value:
    """An item of a key; of a condition on symbols, which torch takes for no truth, whether it holds.

    The ends of a slice that are tensors are the numbers that these hold, if they are known.
    """
    if isinstance(item, SliceValue) and tr.memo.tensor_items:
        return SliceValue(*(item_of(tr, part) or part for part in item.referents()))
    return tr.constant(item.bool_(tr)) if item.is_symbolic() and item.python_type() is bool else item


def _is_symbol(item: Value) -> bool:
    return isinstance(item, SymbolicNumber) and isinstance(item.number, torch.SymInt) and not item.is_constant()


def _leads_to_input(tensor: Value) -> bool:
    """Whether gradients of views of the tensor are those of an input.

    Such a view is made before the graph that reads it, and by then nobody knows what the data tell.
    """
    if not isinstance(tensor, TensorObject):
        return False
    builder, fake = tensor.ref.builder, tensor.fake
    recorded = fake.requires_grad and torch.is_grad_enabled()
    return recorded and (builder.is_input(fake) or builder.is_view_of_input(fake))


def _is_basic(item: Value) -> bool:
    """Whether an item of a key makes a view."""
    return isinstance(item, SliceValue) or item.python_type() in (int, type(None), type(...))


def _left(item: Value, length: int) -> int:
    """How many dimensions there are where there were `length`, after indexing with an item that makes a view."""
    return {int: 0, type(None): 1}.get(item.python_type(), length)


def _lengths(tr: Tracer, items: Sequence[Value], dims: int) -> list[int] | None:
    """How many dimensions each item of a key is about; None of a key that is refused, or in which something is rare."""
    lengths = [_length(tr, item) for item in items]
    wide = [at for at, item in enumerate(items) if item.python_type() is type(...)]
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths) or len(wide) > 1 or sum(known) > dims:
        return None
    if wide:
        known[wide[0]] = dims - sum(known)
    return known


def _length(tr: Tracer, item: Value) -> int | None:
    if isinstance(item, TensorObject):
        return item.fake.dim() if item.fake.dtype in MASKS else 1
    if isinstance(item, ListValue | TupleValue):
        return _length_of_list(item.unpack(tr))
    cls = item.python_type()
    if isinstance(item, SliceValue) or (cls is int and item.can_be_constant()):
        return 1
    return 0 if cls in (bool, type(None), type(...)) else None


def _length_of_list(items: Collection[Value]) -> int | None:
    """A list of numbers is a tensor of places; one of truths, or of anything else, is rare."""
    return 1 if items and all(item.python_type() is int for item in items) else None
