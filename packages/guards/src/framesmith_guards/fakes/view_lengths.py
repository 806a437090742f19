"""Views of symbolic sizes, with the lengths that were asked for.

Torch's rule splits one dimension after the other, and divides: of `n` elements viewed as (n // 2, 2), the last length
is `n // (n // 2)`. It is 2 wherever the rule's conditions hold, but nothing simplifies that, and a view of a view nests
the quotients, until torch's ShapeEnv takes seconds for one question about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sympy
import torch
from torch._prims_common import is_contiguous_or_false
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from framesmith_guards.fakes.light_fakes import in_memory_of
from framesmith_guards.fakes.symbols import expr_of

_aten: Any = torch.ops.aten
_VIEWS: Final = frozenset(
    {_aten.view.default, _aten.view_copy.default, _aten._unsafe_view.default, _aten._reshape_copy.default}
)


def as_asked(mode: FakeTensorMode, op: Any, args: Sequence[Any], result: Any) -> Any:
    """What `op` gave for `args`, with the lengths asked for if it is such a view."""
    if op not in _VIEWS or not isinstance(result, FakeTensor) or len(result.shape) != len(args[1]):
        return result
    tensor, asked = args[0], args[1]
    lengths = [given if expr_of(length) == -1 else length for length, given in zip(asked, result.shape, strict=True)]
    becomes = {
        expr_of(given): expr_of(length)
        for length, given in zip(lengths, result.shape, strict=True)
        if expr_of(given) != expr_of(length)
    }
    if not becomes:
        return result
    if is_contiguous_or_false(tensor):
        strides = _contiguous(lengths)
    else:
        strides = [_replaced(mode, stride, becomes) for stride in result.stride()]
    return in_memory_of(mode, result, lengths, strides, result.storage_offset())


def _contiguous(lengths: Sequence[Any]) -> list[Any]:
    """The strides of elements, of which the rule has found that there are some, one after the other."""
    strides: list[Any] = []
    step: Any = 1
    for length in reversed(lengths):
        strides.insert(0, step)
        step = step * length
    return strides


def _replaced(mode: FakeTensorMode, number: Any, becomes: dict[sympy.Basic, sympy.Basic]) -> Any:
    expr = expr_of(number)
    replaced = expr.xreplace(becomes)
    if replaced == expr:
        return number
    if replaced.is_Integer:
        return int(replaced)
    env: Any = mode.shape_env
    return env.create_symintnode(replaced, hint=number.node.hint if number.node.has_hint() else None)
