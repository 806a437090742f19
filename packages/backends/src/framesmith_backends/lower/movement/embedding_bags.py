"""Gradients of bags of embeddings: rows added up by place, as in `lower/movement/indexing.py`."""

from __future__ import annotations

from framesmith_backends.ir.dtypes import compute_type
from framesmith_backends.ir.expr import Index, Op, guarded, indirect, number
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.size import Size
from framesmith_backends.lower.registry import rule
from framesmith_backends.lower.scope import Decline, Scope, cast
from framesmith_backends.lower.tensor import Tensor, point

#: Modes of bags of embeddings: sums, and means. (Others are maxima.)
SUMMED, AVERAGED = 0, 1


@rule("_embedding_bag_backward")
def embedding_bag_backward(
    s: Scope, grad: Tensor, indices: Tensor, offsets: Tensor, bag_of: Tensor, sizes: Tensor, largest: Tensor,
    count: Size, by_frequency: bool, mode: int, sparse: bool, weights: Tensor | None, padding: Size = -1,
) -> Tensor:  # fmt: skip
    """Rows added up by place, where all bags have one length."""
    if s.target.on_gpu or by_frequency or sparse or weights is not None or mode not in (SUMMED, AVERAGED):
        raise Decline("bags on GPUs, weighted ones, by frequency, of maxima, sparse")
    if compute_type(grad.dtype) != grad.dtype or padding != -1:
        raise Decline("low-precision types, which ATen rounds by steps of its own, or padding")
    length = _length_of_bags(s, offsets)
    if length is None or indices.shape != (offsets.shape[0] * length,):
        raise Decline("bags of several lengths")
    shape = (offsets.shape[0], length, grad.shape[1])
    bag, within, column = point(shape)
    place = cast(indices.at((index.total(((bag, length), (within, 1))),)), "i64")
    value = grad.at((bag, column))
    nothing = s.elementwise(s.result.shape, number(0, s.result.dtype))
    scaled = value * (1.0 / length) if mode == AVERAGED else value
    inside = guarded(scaled, Op("and", place >= 0, place < count))
    return s.added(nothing, shape, (indirect(place, count), column), inside, repeatable=True)


def _length_of_bags(s: Scope, offsets: Tensor) -> int | None:
    """The distance of the beginnings of bags, if it is the same for all; None if it is unbacked."""
    made = s.program.defs.get(offsets.source)
    if made is None or not isinstance(made.body, Index) or len(made.axes) != 1 or offsets.index != point(offsets.shape):
        return None
    (axis_of,) = made.axes
    step = 0 if axis_of is None else index.coefficient(made.body.ix, axis_of)
    starts_at_0 = axis_of is not None and index.substitute(made.body.ix, {axis_of: index.ZERO}) is index.ZERO
    return step if isinstance(step, int) and step > 0 and starts_at_0 else None
