"""Loop domains as factorisations: common refinements of shapes, and how one shape's axes read in another's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

from framesmith_backends.ir import index
from framesmith_backends.ir.index import Ix, Var

Sizes = tuple[int, ...]


def suffix_products(sizes: Sequence[int]) -> list[int]:
    """The number of points within each axis boundary, from the right: 1 first, all points last."""
    products = [1]
    for size in reversed(sizes):
        products.append(products[-1] * size)
    return products


@lru_cache(maxsize=4096)
def refine(a: Sizes, b: Sizes) -> Sizes | None:
    """The coarsest shape of which both row-major shapes are reshapes by merging axes; None if there is none."""
    if math.prod(a) != math.prod(b):
        return None
    chain = sorted({*suffix_products(a), *suffix_products(b)})
    steps: list[int] = []
    for inner, outer in itertools.pairwise(chain):
        if outer % inner:
            return None
        steps.append(outer // inner)
    return tuple(reversed(steps))


def merged_axes(sizes: Sizes, refined: Sizes, variables: Sequence[Var]) -> list[Ix]:
    """Each axis of `sizes` as an expression in the variables of its refinement."""
    found: list[Ix] = []
    k = len(refined)
    for size in reversed(sizes):
        parts: list[tuple[Ix, int]] = []
        covered = 1
        while covered < size:
            k -= 1
            parts.append((index.of(variables[k]), covered))
            covered *= refined[k]
        found.append(index.total(parts))
    return list(reversed(found))


def flags_of(sizes: Sizes, reduced: Sequence[bool], refined: Sizes) -> tuple[bool, ...]:
    """Which axes of the refinement are reduced, given which axes of `sizes` are."""
    flags: list[bool] = []
    k = len(refined)
    for size, flag in zip(reversed(sizes), reversed(reduced), strict=True):
        covered = 1
        while covered < size:
            k -= 1
            covered *= refined[k]
            flags.append(flag)
    return tuple(reversed(flags))


@lru_cache(maxsize=1024)
def variables_of(sizes: Sizes) -> tuple[Var, ...]:
    return tuple(Var(f"x{k}", size) for k, size in enumerate(sizes))
