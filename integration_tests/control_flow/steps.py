"""Control flow of torch, one step after the other: the reference where eager mode itself fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map

Tensor = torch.Tensor


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    slices = _slices(xs, dim)
    carry, given = init, []
    for one in slices[::-1] if reverse else slices:
        carry, out = combine_fn(carry, one)
        given.append(out)
    return carry, _stacked(given[::-1] if reverse else given, dim)


def associative_scan(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    slices = _slices(xs, dim)
    found: list[Any] = []
    for one in slices[::-1] if reverse else slices:
        found.append(combine_fn(found[-1], one) if found else one)
    return _stacked(found[::-1] if reverse else found, dim)


def mapped(function: Any, xs: Any, *args: Any) -> Any:
    return _stacked([function(one, *args) for one in _slices(xs, 0)], 0)


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return (true_fn if pred else false_fn)(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried: Any) -> Any:
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def _slices(xs: Any, dim: int) -> list[Any]:
    first = torch.utils._pytree.tree_leaves(xs)[0]
    return [tree_map(lambda x, at=at: x.select(dim, at), xs) for at in range(first.shape[dim])]


def _stacked(steps: list[Any], dim: int) -> Any:
    return tree_map(lambda *each: None if each[0] is None else torch.stack(each, 0).movedim(0, dim), *steps)


def by_steps(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a program of which each call of torch's control flow is one of this module."""

    def run(*args: Any) -> Any:
        here = {name: one for name, one in globals().items() if name in function.__globals__ and name in OWN}
        with mock.patch.dict(function.__globals__, here), mock.patch.object(torch, "cond", cond):
            return function(*args)

    return run


OWN = ("scan", "associative_scan", "mapped", "while_loop")
