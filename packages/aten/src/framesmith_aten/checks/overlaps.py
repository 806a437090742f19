"""Refuses in-place changes that functionalisation would get wrong.

Changes of memory under a view with overlapping elements (expanded, unfolded): functionalisation undoes such a view by
adding differences, which is inexact, and wrong where all copies of an element change at once. Changes of memory under
an unfolded view: it is undone by adding to zeros, and elements outside the view are lost. Changes of memory around an
input, which a view by strides can reach: they would be lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.layouts import (
    is_dense,
    is_read_late,
    may_overlap,
    may_overlap_itself,
    may_share_elements,
    span,
    spanned,
    storage_id,
)
from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import arguments, row, shows_part, written
from framesmith_aten.symbolic import as_expressions, has_symbols, holds, holds_at_present

#: The ids of refused calls.
OVERLAPPING_MUTATION = "overlapping-mutation"
OUTSIDE_VIEW = "outside-view"
READ_LATE = "read-late"


def check_operands(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that may read elements of its operands after it has written them. Raises TraceUnsupported.

    Eager mode refuses it where both are dense; otherwise the result depends on the kernel's order. Tensors of lists are
    processed one after the other.
    """
    changed = written(op, args, kwargs)
    if scatter_operands := row(op).scatter_operands:
        given = arguments(op, args, kwargs)
        read = tensors_in([given.get(name) for name in scatter_operands])
        # For dynamic shapes it may be unknown; operands are then read first.
        pairs = [(one, other) for other in read for one in changed if not has_symbols(one) and not has_symbols(other)]
        if any(may_overlap(one, other) for one, other in pairs):
            raise TraceUnsupported(READ_LATE, str(op), "it writes to memory of its indices or values")
    written_to = {id(tensor) for tensor in changed}
    storages = {storage_id(tensor): list[tuple[int, torch.Tensor]]() for tensor in changed}
    lists = [value if isinstance(value, (list, tuple)) else [value] for value in (*args, *kwargs.values())]
    for values in lists:
        for at, tensor in enumerate(values):
            if torch.is_tensor(tensor) and (beside := storages.get(storage_id(tensor))) is not None:
                beside.append((at, tensor))
    for operands in storages.values():
        for at, tensor in operands if len(operands) > 1 else ():
            if id(tensor) in written_to and any(_is_hit(tensor, other, at == position) for position, other in operands):
                raise TraceUnsupported(READ_LATE, str(op), "it writes to memory that it reads at another element")


def _is_hit(written: torch.Tensor, other: torch.Tensor, together: bool) -> bool:
    """Whether `other` may be read after the write; `together`: at one position of two lists, or outside lists."""
    return is_read_late(written, other) if together else may_overlap(written, other)


@dataclass(frozen=True, slots=True)
class Shown:
    """The layout of a strided tensor, which remains when the tensor is restrided."""

    dtype: torch.dtype
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @classmethod
    def by(cls, tensor: torch.Tensor) -> Shown:
        return cls(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for layouts whose numbers are all known to be equal."""
        return (self.dtype, *as_expressions((self.size, self.stride, self.offset)))

    def may_repeat(self) -> bool:
        """Whether elements may share memory."""
        return may_share_elements(self.size, self.stride)

    def is_disjoint_at_present(self) -> bool:
        """Whether no elements share memory; adds a guard where that is not known."""
        return not may_share_elements(self.size, self.stride, holds_at_present)

    def span(self) -> tuple[Any, Any]:
        """See `layouts.span`."""
        return spanned(self.size, self.stride, self.offset, self.dtype.itemsize)


#: A view for which `operators.shows_part` holds, and its base.
Part = tuple[Shown, Shown]


def parts_shown(op: Any, args: Sequence[Any], out: Any) -> list[Part]:
    """Return the views of symbolic layouts among a call's results that show parts of its first argument."""
    views = [one for one in tensors_in(out) if has_symbols(one) and one.layout is torch.strided]
    if not views or not shows_part(op):
        return []
    whole = next(tensors_in(args), None)
    if whole is None or whole.layout is not torch.strided:
        return []
    return [(Shown.by(view), Shown.by(whole)) for view in views]


def _is_disjoint(bases: Sequence[Shown]) -> bool:
    """Whether no elements of the first share memory, each being a part of the next; may add a guard."""
    return not all(one.may_repeat() for one in bases) or any(one.is_disjoint_at_present() for one in reversed(bases))


def _is_within(bases: Sequence[Shown], spans: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the first lies within one of these byte ranges; may add a guard."""
    for first, end in (one.span() for one in bases):
        if any(holds(start <= first) and holds(end <= last) for start, last in spans):
            return True
    first, end = bases[0].span()
    return any(start <= first and end <= last for start, last in spans)


class Overlaps:
    """Remembers memory under views that overlap themselves, and the byte ranges of inputs.

    A view of symbolic sizes is examined when its memory is written to, since that may add a guard. `parts` lists such
    views; the caller may add to it, too.
    """

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self._base_of: dict[Any, Shown] = {}
        self._indexed = 0
        self._storages: set[int] = set()
        self._unasked: dict[int, list[Shown]] = {}
        self._first: dict[int, weakref.ref[torch.Tensor]] = {}
        self._inputs: dict[int, list[tuple[int, int]]] = {}
        self._gappy: set[int] = set()
        self._written: set[int] = set()
        self._restrided: set[int] = set()

    def note_input(self, tensor: torch.Tensor, real: torch.Tensor | None = None) -> None:
        """Add an input, around which there may be memory outside of it.

        With dynamic shapes the fake begins at offset 0 wherever the `real` tensor does.
        """
        self.note(tensor)
        self._inputs.setdefault(storage_id(tensor), []).append(span(tensor))
        in_order = tensor.is_contiguous() if tensor.requires_grad else is_dense(tensor.shape, tensor.stride())
        begin = (tensor if real is None else real).storage_offset()
        if begin != 0 or not in_order:  # (autograd writes through views by strides of contiguous inputs)
            self._gappy.add(storage_id(tensor))

    def note_restrided(self, tensor: torch.Tensor, what: str) -> None:
        """Add the operand of a view by strides. Raises TraceUnsupported, as `check` does.

        A written input becomes, in a graph, a tensor with memory of its own, dense and from offset 0.
        """
        self._restrided.add(storage_id(tensor))
        self._check_part(tensor, what)

    def _check_part(self, tensor: torch.Tensor, what: str) -> None:
        if storage_id(tensor) in self._gappy & self._written & self._restrided:
            raise TraceUnsupported(
                OUTSIDE_VIEW, what, "it changes an input, and a view by strides shows more of its memory"
            )

    def note_undone_by_sums(self, tensor: torch.Tensor) -> None:
        """Add the operand of a view through which writes are not carried back exactly."""
        self._storages.add(storage_id(tensor))

    def note(self, result: Any) -> None:
        for tensor in tensors_in(result):
            self._first.setdefault(storage_id(tensor), weakref.ref(tensor))
            if has_symbols(tensor) and tensor.layout is torch.strided:
                self._unasked.setdefault(storage_id(tensor), []).append(Shown.by(tensor))
            elif may_overlap_itself(tensor):
                self._storages.add(storage_id(tensor))

    def check(self, tensor: torch.Tensor, what: str) -> None:
        """Refuse a change of `tensor` that may pass through such a view. Raises TraceUnsupported."""
        if self._may_repeat(tensor):
            why = "it changes memory that a view shows more than once, or unfolds"
            raise TraceUnsupported(OVERLAPPING_MUTATION, what, why)
        self._written.add(storage_id(tensor))
        self._check_part(tensor, what)
        shown = self._inputs.get(storage_id(tensor))
        if shown and not _is_within(self._bases(Shown.by(tensor)), shown):
            raise TraceUnsupported(OUTSIDE_VIEW, what, "it changes memory around an input")

    def _may_repeat(self, tensor: torch.Tensor) -> bool:
        """Whether a change of `tensor` may change memory under a view with overlapping elements."""
        storage = storage_id(tensor)
        for one in self._unasked.pop(storage, ()):
            if not _is_disjoint(self._bases(one)):
                self._storages.add(storage)
        if storage in self._storages and self._is_view(tensor):
            return True
        if not has_symbols(tensor):
            return may_overlap_itself(tensor)
        return tensor.layout is torch.strided and not _is_disjoint(self._bases(Shown.by(tensor)))

    def _bases(self, shown: Shown) -> list[Shown]:
        """Return the layout, the one that it is a known part of, and so on."""
        for part, whole in self.parts[self._indexed :]:
            if part.key != whole.key:
                self._base_of.setdefault(part.key, whole)
        self._indexed = len(self.parts)
        found = {shown.key: shown}
        above = self._base_of.get(shown.key)
        while above is not None and above.key not in found:
            found[above.key] = above
            above = self._base_of.get(above.key)
        return list(found.values())

    def _is_view(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may be a view; of `.data`, and in inference mode, autograd knows no base."""
        if tensor._base is not None or tensor.is_inference():
            return True
        first = self._first.get(storage_id(tensor))
        return first is not None and first() is not tensor
