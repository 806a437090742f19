"""Loop domains as factorisations: common refinements of shapes, and how one shape's axes read in another's."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from functools import lru_cache

from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import Size, exact_quotient, numel

Sizes = tuple[Size, ...]


@lru_cache(maxsize=4096)
def refine(a: Sizes, b: Sizes) -> Sizes | None:
    """The coarsest shape of which both row-major shapes are reshapes by merging axes; None if there is none."""
    if numel(a) != numel(b):
        return None
    chain = _chain(_points_within(a), _points_within(b))
    if chain is None:
        return None
    steps: list[Size] = []
    for inner, outer in itertools.pairwise(chain):
        step = exact_quotient(outer, inner)
        if step is None:
            return None
        steps.append(step)
    return tuple(reversed(steps))


def _points_within(sizes: Sizes) -> list[Size]:
    """The number of points within each axis boundary, from the right: 1 first, all points last."""
    return [*itertools.accumulate(reversed(sizes), operator.mul, initial=1)]


def _chain(a: list[Size], b: list[Size]) -> list[Size] | None:
    """Merge two ascending lists without repetitions; None where the order is not known for all sizes."""
    if all(type(n) is int for n in (*a, *b)):
        return sorted({*a, *b})
    found: list[Size] = []
    left, right = a[::-1], b[::-1]
    while left and right:
        if left[-1] == right[-1]:
            right.pop()
        elif exact_quotient(right[-1], left[-1]) is None:
            if exact_quotient(left[-1], right[-1]) is None:
                return None
            left, right = right, left
        found.append(left.pop())
    return list(dict.fromkeys([*found, *reversed(left), *reversed(right)]))


def _factors(sizes: Sizes, refined: Sizes) -> list[range]:
    """For each axis of `sizes` the axes of their refinement that it merges."""
    found: list[range] = []
    k = len(refined)
    for size in reversed(sizes):
        end = k
        covered: Size = 1
        while covered != size:
            k -= 1
            covered *= refined[k]
        found.append(range(k, end))
    return found[::-1]


def merged_axes(sizes: Sizes, refined: Sizes, variables: Sequence[Var]) -> list[Ix]:
    """Each axis of `sizes` as an expression in the variables of its refinement."""
    return [flat_index([variables[k] for k in axis]) for axis in _factors(sizes, refined)]


def flags_of(sizes: Sizes, reduced: Sequence[bool], refined: Sizes) -> tuple[bool, ...]:
    """Return, for each axis of the refinement, whether it is reduced, given that of `sizes`."""
    return tuple(flag for axis, flag in zip(_factors(sizes, refined), reduced, strict=True) for _ in axis)


@lru_cache(maxsize=1024)
def variables_of(sizes: Sizes) -> tuple[Var, ...]:
    return tuple(Var(f"x{k}", size) for k, size in enumerate(sizes))


def flat_index(loops: Sequence[Var]) -> Ix:
    """Return the number of a point in row-major order."""
    return index.linearize([index.of(v) for v in loops], [v.size for v in loops])
