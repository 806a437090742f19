"""Scans under function transforms: operators, which each transform has rules for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith_dynamo.torch_adapter import unstable

tree_flatten, tree_unflatten = unstable.tree_flatten, unstable.tree_unflatten


def associative_scan(combine_fn: Callable[..., Any], xs: Any, dim: int, reverse: bool) -> Any:
    """`torch.associative_scan` in generic mode: neighbours are joined, their results are scanned, and joined between.

    As many calls of the function as the length has binary digits, twice; in torch's order.
    """
    leaves, structure = tree_flatten(xs)
    joined = torch.vmap(combine_fn)

    def join(first: list[Any], second: list[Any]) -> list[Any]:
        found: list[Any] = tree_flatten(joined(tree_unflatten(first, structure), tree_unflatten(second, structure)))[0]
        return found

    moved = [one.movedim(dim, 0) for one in leaves]
    if reverse:
        moved = [one.flip([0]) for one in moved]
    found = _scanned(join, moved)
    if reverse:
        found = [one.flip([0]) for one in found]
    return tree_unflatten([one.movedim(0, dim) for one in found], structure)


def _scanned(join: Callable[[list[Any], list[Any]], list[Any]], slices: list[Any]) -> list[Any]:
    count = slices[0].shape[0]
    if count < 2:
        return slices
    odd = _scanned(join, join([one[:-1:2] for one in slices], [one[1::2] for one in slices]))
    even = [one[:1] for one in slices]
    if count > 2:
        before = [one[:-1] for one in odd] if count % 2 == 0 else odd
        between = join(before, [one[2::2] for one in slices])
        even = [torch.cat([first, rest]) for first, rest in zip(even, between, strict=True)]
    return [_alternating(one, other) for one, other in zip(even, odd, strict=True)]


def _alternating(even: Any, odd: Any) -> Any:
    """Return slices of both by turns; the first may have one more."""
    count = odd.shape[0]
    pairs = torch.stack([even[:count], odd], 1).flatten(0, 1)
    return pairs if even.shape[0] == count else torch.cat([pairs, even[count:]])
