"""Keeps in-place changes away from memory that no functional form can tell of.

Memory that a view shows more than once (an expanded one, an unfolded one): functionalisation undoes such a view by
adding differences, which is not exact, and wrong where the change goes to all copies of an element at once; some it
refuses. Memory of which an unfolded view is taken, also one that shows nothing twice: such a view is undone by adding
to zeros, and what it does not show is lost. And memory around an input, which a view by strides can reach: what is
written there would be lost.
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
from framesmith_aten.operators import arguments, row, shows_part, tensors_in, written
from framesmith_aten.symbolic import as_expressions, has_symbols, holds, holds_at_present

#: The ids of what is refused.
OVERLAPPING_MUTATION = "overlapping-mutation"
OUTSIDE_VIEW = "outside-view"
READ_LATE = "read-late"


def check_operands(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses a call that may read elements of its operands after it has written them. Raises TraceUnsupported.

    Eager mode does too where both are dense; else what it gives depends on the order in which its kernel runs. Of lists
    of tensors, one is done after the other.
    """
    changed = written(op, args, kwargs)
    if scatter_operands := row(op).scatter_operands:
        given = arguments(op, args, kwargs)
        told = tensors_in([given.get(name) for name in scatter_operands])
        # Where sizes or places change between calls it may not be known: what is read is read first then.
        pairs = [(one, other) for other in told for one in changed if not has_symbols(one) and not has_symbols(other)]
        if any(may_overlap(one, other) for one, other in pairs):
            raise TraceUnsupported(READ_LATE, str(op), "it writes to memory in which its places or values lie")
    written_to = {id(tensor) for tensor in changed}
    storages = {storage_id(tensor): list[tuple[int, torch.Tensor]]() for tensor in changed}
    lists = [value if isinstance(value, (list, tuple)) else [value] for value in (*args, *kwargs.values())]
    for values in lists:
        for at, tensor in enumerate(values):
            if torch.is_tensor(tensor) and (beside := storages.get(storage_id(tensor))) is not None:
                beside.append((at, tensor))
    for operands in storages.values():
        for at, tensor in operands if len(operands) > 1 else ():
            if id(tensor) in written_to and any(_is_hit(tensor, other, at == place) for place, other in operands):
                raise TraceUnsupported(READ_LATE, str(op), "it writes to memory that it reads at another element")


def _is_hit(written: torch.Tensor, other: torch.Tensor, together: bool) -> bool:
    """`together`: the same of two lists, or two that are not in lists."""
    return is_read_late(written, other) if together else may_overlap(written, other)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a strided tensor shows of some storage, which remains when the tensor is made to show something else."""

    dtype: torch.dtype
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @classmethod
    def by(cls, tensor: torch.Tensor) -> Shown:
        """What `tensor` shows."""
        return cls(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal where it is known, of all their numbers, that two show the same."""
        return (self.dtype, *as_expressions((self.size, self.stride, self.offset)))

    def may_repeat(self) -> bool:
        """Whether elements may share a place, which is not known to be otherwise."""
        return may_share_elements(self.size, self.stride)

    def is_disjoint_at_present(self) -> bool:
        """Whether no elements share a place, of which a guard says so where that is not known."""
        return not may_share_elements(self.size, self.stride, holds_at_present)

    def span(self) -> tuple[Any, Any]:
        """See `layouts.span`."""
        return spanned(self.size, self.stride, self.offset, self.dtype.itemsize)


#: A view of which `operators.shows_part` holds, and what it was taken of.
Part = tuple[Shown, Shown]


def parts_shown(op: Any, args: Sequence[Any], out: Any) -> list[Part]:
    """The views among the results of a call that show parts of its first argument, where symbols tell which."""
    views = [one for one in tensors_in(out) if has_symbols(one) and one.layout is torch.strided]
    if not views or not shows_part(op):
        return []
    whole = next(tensors_in(args), None)
    if whole is None or whole.layout is not torch.strided:
        return []
    return [(Shown.by(view), Shown.by(whole)) for view in views]


def _is_disjoint(bases: Sequence[Shown]) -> bool:
    """Whether no elements of the first share a place; each is a part of the next. A guard may say so."""
    return not all(one.may_repeat() for one in bases) or any(one.is_disjoint_at_present() for one in reversed(bases))


def _is_within(bases: Sequence[Shown], spans: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the first of them lies within one of these bytes. A guard may say so."""
    for first, end in (one.span() for one in bases):
        if any(holds(start <= first) and holds(end <= last) for start, last in spans):
            return True
    first, end = bases[0].span()
    return any(start <= first and end <= last for start, last in spans)


class Overlaps:
    """Remembers which memory has been shown through a view that overlaps itself, and what inputs show of theirs.

    Of a view whose sizes are symbols it is asked when memory that it shows is written to: it may need a guard. `parts`
    tells of such views; whoever makes it may go on adding to it.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
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
        """Takes in an input, around which there may be memory that it does not show.

        Of one whose sizes change, the fake tensor begins at 0 wherever the `real` one does.
        """
        self.note(tensor)
        self._inputs.setdefault(storage_id(tensor), []).append(span(tensor))
        in_order = tensor.is_contiguous() if tensor.requires_grad else is_dense(tensor.shape, tensor.stride())
        begin = (tensor if real is None else real).storage_offset()
        if begin != 0 or not in_order:  # (autograd writes through views by strides of what is contiguous)
            self._gappy.add(storage_id(tensor))

    def note_restrided(self, tensor: torch.Tensor, what: str) -> None:
        """Takes in a tensor of which a view by strides is taken. Raises TraceUnsupported, as `check` does.

        What an input that is written to becomes in a graph lies in memory of its own, without gaps, from its beginning.
        """
        self._restrided.add(storage_id(tensor))
        self._check_part(tensor, what)

    def _check_part(self, tensor: torch.Tensor, what: str) -> None:
        if storage_id(tensor) in self._gappy & self._written & self._restrided:
            raise TraceUnsupported(
                OUTSIDE_VIEW, what, "it changes an input, and a view by strides shows more of its memory"
            )

    def note_undone_by_sums(self, tensor: torch.Tensor) -> None:
        """Takes in a tensor of which a view is taken through which no write is carried back exactly."""
        self._storages.add(storage_id(tensor))

    def note(self, result: Any) -> None:
        """Takes in the tensors of a result."""
        for tensor in tensors_in(result):
            self._first.setdefault(storage_id(tensor), weakref.ref(tensor))
            if has_symbols(tensor) and tensor.layout is torch.strided:
                self._unasked.setdefault(storage_id(tensor), []).append(Shown.by(tensor))
            elif may_overlap_itself(tensor):
                self._storages.add(storage_id(tensor))

    def check(self, tensor: torch.Tensor, what: str) -> None:
        """Refuses a change of `tensor` that may have to go through such a view. Raises TraceUnsupported."""
        if self._may_repeat(tensor):
            why = "it changes memory that a view shows more than once, or unfolds"
            raise TraceUnsupported(OVERLAPPING_MUTATION, what, why)
        self._written.add(storage_id(tensor))
        self._check_part(tensor, what)
        shown = self._inputs.get(storage_id(tensor))
        if shown and not _is_within(self._bases(Shown.by(tensor)), shown):
            raise TraceUnsupported(OUTSIDE_VIEW, what, "it changes memory around an input")

    def _may_repeat(self, tensor: torch.Tensor) -> bool:
        """Whether a change of `tensor` may change memory that a view shows more than once."""
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
        """This, what it is a known part of, what that is a part of, and so on."""
        for part, whole in self._parts[self._indexed :]:
            if part.key != whole.key:
                self._base_of.setdefault(part.key, whole)
        self._indexed = len(self._parts)
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
