"""Keeps in-place changes away from memory that a view shows more than once (an expanded one, an unfolded one).

Functionalisation undoes such a view by adding differences, which is not exact, and wrong where the change goes to all
copies of an element at once; some it refuses.
"""

from __future__ import annotations

from typing import Any

import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.layouts import may_overlap_itself, storage_id
from framesmith_aten.operators import tensors_in

#: The id of what is refused.
OVERLAPPING_MUTATION = "overlapping-mutation"


class Overlaps:
    """Remembers which memory has been shown through a view that overlaps itself."""

    def __init__(self) -> None:
        self._storages: set[int] = set()

    def note(self, result: Any) -> None:
        """Takes in the tensors of a result."""
        self._storages.update(storage_id(tensor) for tensor in tensors_in(result) if may_overlap_itself(tensor))

    def check(self, tensor: torch.Tensor, what: str) -> None:
        """Refuses a change of `tensor` that may have to go through such a view. Raises TraceUnsupported."""
        view = tensor._base is not None or tensor.is_inference()  # of those autograd keeps no base
        if (view and storage_id(tensor) in self._storages) or may_overlap_itself(tensor):
            raise TraceUnsupported(OVERLAPPING_MUTATION, what, "it changes memory that a view shows more than once")
