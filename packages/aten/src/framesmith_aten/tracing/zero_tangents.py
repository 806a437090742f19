"""Zero tangents: torch's forward derivatives make tensors that are known to be zero, and compute less with them.

A multiple of one is zero, also where the other factor is infinite or not a number; a sum with one is the other term.
All other operators take them as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import is_view
from framesmith_guards.torch_adapter import aten

_MULTIPLIED: Final = frozenset({aten.mul.Tensor, aten.mul.Scalar, aten.dot.default, aten.vdot.default})
_ADDED: Final = frozenset({aten.add.Tensor, aten.sub.Tensor})


class ZeroTangents:
    """The zero tangents among the fake tensors of one trace, which keeps them alive."""

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def note(self, func: Any, args: Sequence[Any], out: Any) -> None:
        """Note the results of an operator that are zero tangents: a new one, and views of one."""
        if func is aten._efficientzerotensor.default or (self._ids and is_view(func) and self._has(args[0])):
            self._ids.update(map(id, tensors_in(out)))

    def instead_of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
        """Return the function that computes the result of an operator on zero tangents; None: as on other tensors.

        It is called where operators are recorded; this is called where they are not.
        """
        if not self._ids:
            return None
        zeros = [self._has(one) for one in args[:2]]
        if not any(zeros):
            return None
        if (
            func in _MULTIPLIED
            or (func is aten.div.Tensor and zeros == [True, False])
            or (func in _ADDED and all(zeros))
        ):
            return partial(self._zero, func(*args, **kwargs))
        if func in _ADDED and isinstance(args[1], torch.Tensor):
            return partial(_other, func(*args, **kwargs), args[zeros.index(False)], _factor(func, zeros, kwargs))
        return None

    def _has(self, value: Any) -> bool:
        return id(value) in self._ids

    def _zero(self, like: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = aten.zeros.default(like.shape, dtype=like.dtype, device=like.device)
        self._ids.add(id(made))
        return made


def _factor(func: Any, zeros: Sequence[bool], kwargs: Mapping[str, Any]) -> Any:
    """Return the factor of the term that is left."""
    if zeros[1]:
        return 1
    alpha = kwargs.get("alpha", 1)
    return -alpha if func is aten.sub.Tensor else alpha


def _other(like: torch.Tensor, term: torch.Tensor, factor: Any) -> torch.Tensor:
    scaled = term if factor == 1 else aten.mul.Scalar(term, factor)
    result: torch.Tensor = aten.clone.default(aten.expand.default(scaled.to(like.dtype), like.shape))
    return result
