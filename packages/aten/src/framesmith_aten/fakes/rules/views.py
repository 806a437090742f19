"""Views in symbolic sizes, with the lengths that the call asks for.

Torch's rule splits one dimension after the other, by division: of `n` elements viewed as (n // 2, 2), the last length
is `n // (n // 2)`. It is 2 wherever the rule's conditions hold, but nothing simplifies it, and a view of a view nests
the quotients, until torch's ShapeEnv takes seconds for one question. And it merges dimensions that are not adjacent in
memory with one of size 1 between them: views that the operator refuses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from framesmith_aten.fakes.light_fakes import in_memory_of
from framesmith_aten.symbolic import hint_or_none
from framesmith_guards.torch_adapter import FakeTensor, FakeTensorMode, aten, unstable

_VIEWS: Final = frozenset({aten.view.default, aten._unsafe_view.default})


def view(mode: FakeTensorMode, op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """Return the view; None for other operators, and where torch's rule serves.

    That serves unbacked sizes, empty tensors, and fakes of known contents. Raises the operator's RuntimeError for
    another number of elements and for incompatible strides.
    """
    if op not in _VIEWS:
        return None
    tensor, asked = args[:2]
    if not isinstance(tensor, FakeTensor) or tensor.constant is not None or tensor.layout is not torch.strided:
        return None
    if not tensor.dim() or not asked or None in map(hint_or_none, (*tensor.shape, *tensor.stride(), *asked)):
        return None
    count = math.prod(tensor.shape)
    lengths = unstable.infer_size(asked, count)
    if count == 0:
        return None
    strides = _along_runs([(count, 1)] if unstable.is_contiguous_or_false(tensor) else _runs(tensor), lengths)
    if strides is None:
        unstable.check(False, lambda: _REFUSAL)  # raises from torch's code, whose error it is
        return None
    offset = tensor.storage_offset()
    if tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
        with mode:  # which preserves these bits
            return torch.as_strided(tensor, lengths, strides, offset)
    with torch.inference_mode(tensor.is_inference()):  # a view is an inference tensor if its base is
        return in_memory_of(mode, tensor, lengths, strides, offset)


_REFUSAL: Final = (
    "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
    "contiguous subspaces). Use .reshape(...) instead."
)


def _runs(tensor: torch.Tensor) -> list[tuple[Any, Any]]:
    """Return (count, step) of runs of equally spaced elements, the last dimension's first."""
    runs: list[tuple[Any, Any]] = []
    count, step = tensor.shape[-1], tensor.stride(-1)
    for length, jump in zip(reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True):
        if length != 1 and jump != count * step:
            runs.append((count, step))
            count, step = length, jump
        else:
            count = count * length
    return [*runs, (count, step)]


def _along_runs(runs: Sequence[tuple[Any, Any]], lengths: Sequence[Any]) -> list[Any] | None:
    """Return the strides of these lengths, with as many elements as the runs; None if one would cross two runs."""
    left = list(lengths)
    strides: list[Any] = []
    for at, (count, step) in enumerate(runs):
        covered: Any = 1
        is_last = at == len(runs) - 1  # the remaining lengths cover the rest
        while left and (is_last or covered != count or left[-1] == 1):
            strides.insert(0, covered * step)
            covered = covered * left.pop()
        if not is_last and covered != count:
            return None
    return strides
