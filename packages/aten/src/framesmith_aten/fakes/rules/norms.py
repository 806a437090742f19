"""Dtypes of what norms return beside their result: statistics, and new values of running ones.

By torch's rules both have the dtype of a computation that kernels do otherwise: on the CPU the statistics of a
low-precision input are float32 if any parameter is, and running ones have the dtypes of the old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_guards.torch_adapter import aten

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import FakeTensorMode

#: Norms, with the positions of the arguments whose new values are their last results.
_NORMS: Final[dict[Any, tuple[int, ...]]] = {
    aten.native_layer_norm.default: (),
    aten.native_group_norm.default: (),
    aten.native_batch_norm.default: (),
    aten._native_batch_norm_legit.default: (),
    aten._native_batch_norm_legit.no_stats: (),
    aten._native_batch_norm_legit_no_training.default: (),
    aten._native_batch_norm_legit_functional.default: (3, 4),
    aten._batch_norm_with_update.default: (),
    aten._batch_norm_with_update_functional.default: (3, 4),
}
#: Positions of mean and reciprocal deviation among the results.
_STATISTICS: Final = (1, 2)
_LOW_PRECISION: Final = (torch.float16, torch.bfloat16)


def typed(
    mode: FakeTensorMode, op: Any, args: Sequence[Any], run: Callable[[Any], Any]
) -> tuple[torch.Tensor, ...] | None:
    """Return a norm's results with the dtypes that its kernels give; None for other operators."""
    updated = _NORMS.get(op)
    if updated is None:
        return None
    with mode:
        results = list(run(args))
        if args[0].device.type == "cpu" and args[0].dtype in _LOW_PRECISION:
            others = {one.dtype for one in args[1:] if isinstance(one, torch.Tensor)}
            saved = torch.float32 if torch.float32 in others else args[0].dtype
            for at in _STATISTICS:
                results[at] = _with_dtype(results[at], saved)
        for at, argument in zip(range(len(results) - len(updated), len(results)), updated, strict=True):
            results[at] = _with_dtype(results[at], args[argument].dtype)
    return tuple(results)


def _with_dtype(result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return result if result.dtype == dtype else torch.empty_like(result, dtype=dtype)
