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
from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.layouts import is_dense, is_read_late, may_overlap, may_overlap_itself, span, storage_id
from framesmith_aten.operators import tensors_in, written

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


class Overlaps:
    """Remembers which memory has been shown through a view that overlaps itself, and what inputs show of theirs."""

    def __init__(self) -> None:
        self._storages: set[int] = set()
        self._first: dict[int, weakref.ref[torch.Tensor]] = {}
        self._inputs: dict[int, list[tuple[int, int]]] = {}
        self._parts: set[int] = set()
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
            self._parts.add(storage_id(tensor))

    def note_restrided(self, tensor: torch.Tensor, what: str) -> None:
        """Takes in a tensor of which a view by strides is taken. Raises TraceUnsupported, as `check` does.

        What an input that is written to becomes in a graph lies in memory of its own, without gaps, from its beginning.
        """
        self._restrided.add(storage_id(tensor))
        self._check_part(tensor, what)

    def _check_part(self, tensor: torch.Tensor, what: str) -> None:
        if storage_id(tensor) in self._parts & self._written & self._restrided:
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
            if may_overlap_itself(tensor):
                self._storages.add(storage_id(tensor))

    def check(self, tensor: torch.Tensor, what: str) -> None:
        """Refuses a change of `tensor` that may have to go through such a view. Raises TraceUnsupported."""
        if (storage_id(tensor) in self._storages and self._is_view(tensor)) or may_overlap_itself(tensor):
            why = "it changes memory that a view shows more than once, or unfolds"
            raise TraceUnsupported(OVERLAPPING_MUTATION, what, why)
        self._written.add(storage_id(tensor))
        self._check_part(tensor, what)
        shown = self._inputs.get(storage_id(tensor))
        if shown and not any(start <= span(tensor)[0] and span(tensor)[1] <= last for start, last in shown):
            raise TraceUnsupported(OUTSIDE_VIEW, what, "it changes memory around an input")

    def _is_view(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may be a view; of `.data`, and in inference mode, autograd knows no base."""
        if tensor._base is not None or tensor.is_inference():
            return True
        first = self._first.get(storage_id(tensor))
        return first is not None and first() is not tensor
